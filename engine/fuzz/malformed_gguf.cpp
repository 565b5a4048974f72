#include "engine/fuzz/malformed_gguf.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include <unistd.h>

#include "engine/model_config.h"
#include "engine/tokenizer.h"
#include "kernels/base/error.h"

namespace assay {
namespace {

template <class T>
std::string raw(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}
template <class T>
void overwrite(std::string& bytes, std::uint64_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}
template <class T>
T load(const std::string& bytes, std::uint64_t at) {
  T v{};
  std::memcpy(&v, bytes.data() + at, sizeof v);
  return v;
}

constexpr std::uint64_t kNoNumber = ~std::uint64_t{0};
std::uint64_t scalar_bytes(MetaType type) {
  static constexpr std::uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, kNoNumber, kNoNumber, 8, 8, 8};
  return kBytes[static_cast<std::size_t>(type)];
}

std::uint64_t stored_bytes(const GgufParts::Tensor& t) {
  std::uint64_t elements = 1;
  for (const std::int64_t n : t.ne) elements *= static_cast<std::uint64_t>(n);
  const BlockType type = block_type_from_id(t.type).value();
  return elements / block_elements(type) * block_bytes(type);
}

// Array head: element type and count in front of the elements.
constexpr std::uint64_t kArrayHead = 12;
std::uint64_t array_count(const GgufParts::Pair& p) { return load<std::uint64_t>(p.value, 4); }

}  // namespace

// ---- files in parts ----

GgufParts::Pair& GgufParts::pair(std::string_view key) {
  for (Pair& p : pairs) {
    if (p.key == key) return p;
  }
  throw std::logic_error("no key " + std::string(key));
}
GgufParts::Tensor& GgufParts::tensor(std::string_view name) {
  for (Tensor& t : tensors) {
    if (t.name == name) return t;
  }
  throw std::logic_error("no tensor " + std::string(name));
}

std::vector<std::string> GgufParts::texts(const Pair& pair) {
  std::vector<std::string> out;
  std::uint64_t at = kArrayHead;
  for (std::uint64_t i = 0; i < array_count(pair); ++i) {
    const auto n = load<std::uint64_t>(pair.value, at);
    out.push_back(pair.value.substr(at + 8, n));
    at += 8 + n;
  }
  return out;
}
void GgufParts::set_texts(Pair& pair, const std::vector<std::string>& texts) {
  pair.value =
      raw(static_cast<std::uint32_t>(MetaType::kString)) + raw<std::uint64_t>(texts.size());
  for (const std::string& t : texts) pair.value += raw<std::uint64_t>(t.size()) + t;
}

std::string GgufParts::write(std::vector<Field>* fields) const {
  std::string out;
  const auto mark = [&](Field::Kind kind, int bytes, const std::string& owner) {
    if (fields != nullptr) fields->push_back({kind, out.size(), bytes, owner});
  };
  const auto put_text = [&](const std::string& text, const std::string& owner) {
    mark(Field::kLength, 8, owner);
    out += raw<std::uint64_t>(text.size()) + text;
  };
  mark(Field::kMagic, 4, "header");
  out += "GGUF";
  mark(Field::kVersion, 4, "header");
  out += raw<std::uint32_t>(3);
  mark(Field::kTensorCount, 8, "header");
  out += raw<std::uint64_t>(tensors.size());
  mark(Field::kKeyCount, 8, "header");
  out += raw<std::uint64_t>(pairs.size());
  for (const Pair& p : pairs) {
    put_text(p.key, p.key);
    mark(Field::kValueType, 4, p.key);
    out += raw(static_cast<std::uint32_t>(p.type));
    const std::uint64_t at = out.size();
    if (p.type == MetaType::kString) mark(Field::kLength, 8, p.key);
    if (p.type == MetaType::kArray) {
      mark(Field::kElementType, 4, p.key);
      if (fields != nullptr) fields->push_back({Field::kArrayCount, at + 4, 8, p.key});
      if (load<std::uint32_t>(p.value, 0) == static_cast<std::uint32_t>(MetaType::kString) &&
          fields != nullptr) {
        std::uint64_t element = kArrayHead;
        for (std::uint64_t i = 0; i < array_count(p); ++i) {
          fields->push_back({Field::kLength, at + element, 8, p.key});
          element += 8 + load<std::uint64_t>(p.value, element);
        }
      }
    }
    out += p.value;
  }
  std::uint64_t offset = 0;
  for (const Tensor& t : tensors) {
    put_text(t.name, t.name);
    mark(Field::kDims, 4, t.name);
    out += raw(static_cast<std::uint32_t>(t.ne.size()));
    for (const std::int64_t n : t.ne) {
      mark(Field::kDim, 8, t.name);
      out += raw(n);
    }
    mark(Field::kTensorType, 4, t.name);
    out += raw(t.type);
    mark(Field::kTensorOffset, 8, t.name);
    out += raw(offset);
    offset = (offset + t.data.size() + 31) / 32 * 32;
  }
  for (const Tensor& t : tensors) {
    out.resize((out.size() + 31) / 32 * 32, '\0');
    out += t.data;
  }
  return out;
}

GgufParts take_apart(const std::string& path) {
  const GgufFile file = GgufFile::open(path);
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  GgufParts out;
  std::uint64_t at = 24;
  for (std::uint64_t i = 0; i < load<std::uint64_t>(bytes, 16); ++i) {
    GgufParts::Pair p;
    const auto length = load<std::uint64_t>(bytes, at);
    p.key = bytes.substr(at + 8, length);
    at += 8 + length;
    p.type = static_cast<MetaType>(load<std::uint32_t>(bytes, at));
    at += 4;
    const std::uint64_t begin = at;
    if (p.type == MetaType::kString) {
      at += 8 + load<std::uint64_t>(bytes, at);
    } else if (p.type == MetaType::kArray) {
      const auto element = static_cast<MetaType>(load<std::uint32_t>(bytes, at));
      const auto count = load<std::uint64_t>(bytes, at + 4);
      at += kArrayHead;
      for (std::uint64_t e = 0; e < count; ++e) {
        at += element == MetaType::kString ? 8 + load<std::uint64_t>(bytes, at)
                                           : scalar_bytes(element);
      }
    } else {
      at += scalar_bytes(p.type);
    }
    p.value = bytes.substr(begin, at - begin);
    out.pairs.push_back(std::move(p));
  }
  for (const TensorInfo& t : file.tensors()) {
    out.tensors.push_back({t.name,
                           static_cast<std::uint32_t>(t.type),
                           {t.ne.begin(), t.ne.begin() + t.dims},
                           bytes.substr(t.offset, t.bytes)});
  }
  return out;
}

GgufParts smallest_model() {
  GgufParts m;
  const auto u32 = [&](const std::string& key, std::uint32_t v) {
    m.pairs.push_back({key, MetaType::kU32, raw(v)});
  };
  const auto f32 = [&](const std::string& key, float v) {
    m.pairs.push_back({key, MetaType::kF32, raw(v)});
  };
  const auto text = [&](const std::string& key, const std::string& v) {
    m.pairs.push_back({key, MetaType::kString, raw<std::uint64_t>(v.size()) + v});
  };
  const auto i32s = [&](const std::string& key, const std::vector<std::int32_t>& v) {
    std::string value =
        raw(static_cast<std::uint32_t>(MetaType::kI32)) + raw<std::uint64_t>(v.size());
    for (const std::int32_t x : v) value += raw(x);
    m.pairs.push_back({key, MetaType::kArray, value});
  };
  const auto texts = [&](const std::string& key, const std::vector<std::string>& v) {
    m.pairs.push_back({key, MetaType::kArray, {}});
    GgufParts::set_texts(m.pairs.back(), v);
  };
  text("general.architecture", "gemma4");
  const std::string g = "gemma4.";
  u32(g + "block_count", 2);
  u32(g + "context_length", 64);
  u32(g + "embedding_length", 32);
  u32(g + "feed_forward_length", 32);
  u32(g + "attention.head_count", 2);
  i32s(g + "attention.head_count_kv", {2, 1});
  m.pairs.push_back({g + "attention.sliding_window_pattern",
                     MetaType::kArray,
                     raw(static_cast<std::uint32_t>(MetaType::kBool)) + raw<std::uint64_t>(2) +
                         std::string("\1\0", 2)});
  for (const char* key : {"attention.key_length",
                          "attention.value_length",
                          "attention.key_length_swa",
                          "attention.value_length_swa",
                          "rope.dimension_count",
                          "rope.dimension_count_swa"}) {
    u32(g + key, 16);
  }
  u32(g + "attention.sliding_window", 8);
  u32(g + "embedding_length_per_layer_input", 0);
  u32(g + "expert_count", 2);
  u32(g + "expert_used_count", 1);
  u32(g + "expert_feed_forward_length", 32);
  f32(g + "attention.layer_norm_rms_epsilon", 1e-6F);
  f32(g + "rope.freq_base", 1e6F);
  f32(g + "rope.freq_base_swa", 1e4F);
  f32(g + "final_logit_softcapping", 30.0F);
  text("tokenizer.ggml.model", "gemma4");
  texts("tokenizer.ggml.tokens",
        {"<eos>",
         "<bos>",
         "<|turn>",
         "<turn|>",
         "\xE2\x96\x81",
         "a",
         "b",
         "ab",
         "\n",
         "<|\"|>",
         "<0x41>",
         "\xC3\xA9"});
  i32s("tokenizer.ggml.token_type", {3, 3, 3, 3, 1, 1, 1, 1, 1, 4, 6, 1});
  texts("tokenizer.ggml.merges", {"a b"});
  u32("tokenizer.ggml.bos_token_id", 1);

  constexpr std::uint32_t kQ4_0 = 2;
  const auto tensor =
      [&](const std::string& name, std::vector<std::int64_t> ne, std::uint32_t type = 0) {
        GgufParts::Tensor t{name, type, std::move(ne), {}};
        t.data.assign(stored_bytes(t), '\x3C');  // as f32 and f16 a finite number
        m.tensors.push_back(std::move(t));
      };
  tensor("token_embd.weight", {32, 12}, kQ4_0);
  tensor("output_norm.weight", {32});
  tensor("rope_freqs.weight", {8});
  for (int i = 0; i < 2; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    const std::int64_t kv = i == 0 ? 32 : 16;
    for (const char* norm : {"attn_norm",
                             "post_attention_norm",
                             "ffn_norm",
                             "post_ffw_norm_1",
                             "pre_ffw_norm_2",
                             "post_ffw_norm_2",
                             "post_ffw_norm"}) {
      tensor(b + norm + ".weight", {32});
    }
    tensor(b + "attn_q_norm.weight", {16});
    tensor(b + "attn_k_norm.weight", {16});
    tensor(b + "layer_output_scale.weight", {1});
    tensor(b + "attn_q.weight", {32, 32}, kQ4_0);
    tensor(b + "attn_k.weight", {32, kv}, kQ4_0);
    if (i == 0) tensor(b + "attn_v.weight", {32, kv}, kQ4_0);
    tensor(b + "attn_output.weight", {32, 32}, kQ4_0);
    for (const char* matrix : {"ffn_gate", "ffn_up", "ffn_down"})
      tensor(b + matrix + ".weight", {32, 32}, kQ4_0);
    tensor(b + "ffn_gate_inp.weight", {32, 2});
    tensor(b + "ffn_gate_inp.scale", {32});
    tensor(b + "ffn_gate_up_exps.weight", {32, 64, 2}, kQ4_0);
    tensor(b + "ffn_down_exps.weight", {32, 32, 2}, kQ4_0);
    tensor(b + "ffn_down_exps.scale", {2});
  }
  return m;
}

// ---- the changes ----

namespace {

using Field = GgufParts::Field;

class Changer {
 public:
  Changer(const GgufParts& base,
          const std::string& bytes,
          const std::vector<Field>& fields,
          std::uint64_t data_at,
          std::uint64_t last_used,
          Rng rng)
      : base_(base),
        bytes_(bytes),
        fields_(fields),
        data_at_(data_at),
        last_used_(last_used),
        rng_(rng) {}

  MalformedFile make(std::uint64_t index) {
    // Round robin, so that every kind of change occurs however few files are asked for.
    static constexpr void (Changer::*kChanges[])() = {
        &Changer::truncate_head,    &Changer::truncate_data,    &Changer::container_number,
        &Changer::container_number, &Changer::container_number, &Changer::container_number,
        &Changer::key_removed,      &Changer::key_doubled,      &Changer::key_renamed,
        &Changer::setting_integer,  &Changer::setting_float,    &Changer::setting_kind,
        &Changer::setting_array,    &Changer::alignment,        &Changer::split,
        &Changer::tensor_removed,   &Changer::tensor_added,     &Changer::tensor_renamed,
        &Changer::tensor_shape,     &Changer::tensor_retyped,   &Changer::tensors_swapped,
        &Changer::vocabulary,       &Changer::merges,           &Changer::special_id,
        &Changer::bad_value,        &Changer::bad_value,        &Changer::rope_divisor,
        &Changer::shrinks,
    };
    (this->*kChanges[index % std::size(kChanges)])();
    return std::move(out_);
  }

 private:
  template <class List>
  const auto& any(const List& list) {
    return list[rng_.below(std::size(list))];
  }
  void say(std::string words) { out_.change = std::move(words); }
  // A changed copy of the base, written soundly.
  GgufParts& parts() {
    copy_ = base_;
    return copy_;
  }
  void written(std::string words) {
    out_.bytes = copy_.write();
    say(std::move(words));
  }

  // ---- bytes ----

  void truncate_head() {
    const std::uint64_t n = rng_.below(data_at_);
    out_.bytes = bytes_.substr(0, n);
    say("cut to " + std::to_string(n) + " bytes, inside the head");
  }
  void truncate_data() {
    const std::uint64_t n = data_at_ + rng_.below(last_used_ - data_at_);
    out_.bytes = bytes_.substr(0, n);
    say("cut to " + std::to_string(n) + " bytes, inside the data");
  }

  void container_number() {
    const Field& f = fields_[rng_.below(fields_.size())];
    out_.bytes = bytes_;
    std::uint64_t old = 0;
    std::memcpy(&old, bytes_.data() + f.at, static_cast<std::size_t>(f.bytes));
    static constexpr std::uint64_t kExtremes[] = {0,
                                                  1,
                                                  0x7F,
                                                  0xFF,
                                                  0xFFFF,
                                                  std::uint64_t{1} << 24,
                                                  (std::uint64_t{1} << 24) + 1,
                                                  0x7FFFFFFF,
                                                  std::uint64_t{1} << 31,
                                                  0xFFFFFFFF,
                                                  std::uint64_t{1} << 32,
                                                  (std::uint64_t{1} << 42) + 1,
                                                  std::uint64_t{1} << 61,
                                                  std::uint64_t{1} << 62,
                                                  0x7FFFFFFFFFFFFFFF,
                                                  std::uint64_t{1} << 63,
                                                  0xFFFFFFFFFFFFFFE0,
                                                  ~std::uint64_t{0}};
    const std::uint64_t mask = f.bytes == 8 ? ~std::uint64_t{0} : 0xFFFFFFFF;
    std::uint64_t value = old;
    while (!invalid(f, old, value)) {
      switch (rng_.below(4)) {
        case 0:
          value = any(kExtremes) & mask;
          break;
        case 1:
          value = (old + 1 + rng_.below(8)) & mask;
          break;
        case 2:
          value = (old - 1 - rng_.below(8)) & mask;
          break;
        default:
          value = rng_.next() & mask;
      }
    }
    std::memcpy(out_.bytes.data() + f.at, &value, static_cast<std::size_t>(f.bytes));
    static constexpr const char* kNames[] = {"magic",
                                             "version",
                                             "tensor count",
                                             "key count",
                                             "length",
                                             "value type",
                                             "element type",
                                             "array count",
                                             "dims",
                                             "dimension",
                                             "tensor type",
                                             "tensor offset"};
    say(std::string(kNames[f.kind]) + " of " + f.owner + " at byte " + std::to_string(f.at) + ": " +
        std::to_string(old) + " becomes " + std::to_string(value));
  }
  // Whether the new number surely makes the file unsound.
  bool invalid(const Field& f, std::uint64_t old, std::uint64_t value) const {
    if (value == old) return false;
    switch (f.kind) {
      case Field::kVersion:
        return value != 2 && value != 3;
      case Field::kValueType:
      case Field::kElementType:
        // A type of the same width may be as good; another width moves everything behind it.
        if (value > 12) return true;
        if (old == 8 || old == 9) return true;
        return scalar_bytes(static_cast<MetaType>(value)) !=
               scalar_bytes(static_cast<MetaType>(old));
      default:
        return true;
    }
  }

  // ---- metadata ----

  static bool optional_key(const std::string& key) {
    return key == "general.name" || key == "general.file_type" ||
           key == "general.quantization_version" || key == "gemma4.attention.shared_kv_layers" ||
           key.find("dimension_count") != std::string::npos || key == "tokenizer.ggml.scores" ||
           key.find("_token") != std::string::npos || key == "tokenizer.ggml.add_space_prefix";
  }
  std::size_t needed_key() {
    for (;;) {
      const std::size_t i = rng_.below(base_.pairs.size());
      // token_type holds "_token" too, and is needed.
      if (!optional_key(base_.pairs[i].key) || base_.pairs[i].key == "tokenizer.ggml.token_type")
        return i;
    }
  }

  void key_removed() {
    const std::size_t i = needed_key();
    parts().pairs.erase(copy_.pairs.begin() + static_cast<std::ptrdiff_t>(i));
    written("key " + base_.pairs[i].key + " is missing");
  }
  void key_doubled() {
    const std::size_t i = rng_.below(base_.pairs.size());
    const auto at = static_cast<std::ptrdiff_t>(rng_.below(base_.pairs.size() + 1));
    parts().pairs.insert(copy_.pairs.begin() + at, base_.pairs[i]);
    written("key " + base_.pairs[i].key + " occurs twice");
  }
  // One byte becomes another.
  void flip(std::string& name) {
    char& c = name[rng_.below(name.size())];
    c = static_cast<char>(static_cast<unsigned char>(c) ^ (1 + rng_.below(255)));
  }
  void key_renamed() {
    const std::size_t i = needed_key();
    std::string& key = parts().pairs[i].key;
    flip(key);
    written("key " + base_.pairs[i].key + " is renamed");
  }

  void setting_integer() {
    struct Wrong {
      const char* key;
      std::vector<std::uint32_t> values;
    };
    static const std::vector<Wrong> kWrong = {
        {"block_count", {0, 1, 5, 7, 513, 1U << 31, 0xFFFFFFFF}},
        {"context_length", {0, 1U << 31, 0xFFFFFFFF}},
        {"embedding_length", {0, 1, 128, 255, 257, 512, 1U << 31, 0xFFFFFFFF}},
        {"feed_forward_length", {0, 1, 96, 161, 0xFFFFFFFF}},
        {"attention.head_count", {0, 1, 2, 3, 8, 65537, 0xFFFFFFFF}},
        {"attention.key_length", {0, 1, 32, 63, 128, 0xFFFFFFFF}},
        {"attention.value_length", {0, 32, 65, 0xFFFFFFFF}},
        {"attention.key_length_swa", {0, 1, 31, 64, 0xFFFFFFFF}},
        {"attention.value_length_swa", {0, 16, 33, 0xFFFFFFFF}},
        {"attention.sliding_window", {0, 1U << 31, 0xFFFFFFFF}},
        {"attention.shared_kv_layers", {1, 6, 0xFFFFFFFF}},
        {"rope.dimension_count", {0, 16, 63, 128, 0xFFFFFFFF}},
        {"rope.dimension_count_swa", {0, 8, 64, 0xFFFFFFFF}},
        {"expert_count", {0, 1, 7, 9, 16, 65537, 0xFFFFFFFF}},
        {"expert_used_count", {0, 9, 128, 0xFFFFFFFF}},
        {"expert_feed_forward_length", {0, 95, 97, 192, 1U << 30, 0xFFFFFFFF}},
        {"embedding_length_per_layer_input", {1, 256, 0xFFFFFFFF}},
    };
    const Wrong& w = any(kWrong);
    const std::uint32_t value = any(w.values);
    parts().pair(std::string("gemma4.") + w.key).value = raw(value);
    written(std::string(w.key) + " is " + std::to_string(value));
  }
  void setting_float() {
    static constexpr const char* kKeys[] = {"attention.layer_norm_rms_epsilon",
                                            "rope.freq_base",
                                            "rope.freq_base_swa",
                                            "final_logit_softcapping"};
    // NaN, -NaN, inf, -inf, 0, -0, negative, the largest NaN payload
    static constexpr std::uint32_t kBits[] = {0x7FC00000,
                                              0xFFC00000,
                                              0x7F800000,
                                              0xFF800000,
                                              0x00000000,
                                              0x80000000,
                                              0xBF800000,
                                              0x7FFFFFFF};
    const char* const key = any(kKeys);
    const std::uint32_t bits = any(kBits);
    parts().pair(std::string("gemma4.") + key).value = raw(bits);
    written(std::string(key) + " has the bits " + std::to_string(bits));
  }
  // A needed setting of another kind: text for a number, an array for a scalar, a float for an integer.
  void setting_kind() {
    for (;;) {
      GgufParts::Pair& p = parts().pairs[needed_key()];
      if (p.type == MetaType::kArray) {
        p.type = MetaType::kF64;
        p.value = raw(1.0);
      } else if (p.type == MetaType::kString) {
        p.type = MetaType::kU32;
        p.value = raw<std::uint32_t>(4);
      } else if (rng_.below(2) == 0) {
        p.type = MetaType::kString;
        p.value = raw<std::uint64_t>(1) + "4";
      } else if (p.key == "gemma4.feed_forward_length" || p.key == "gemma4.attention.head_count" ||
                 p.key == "gemma4.embedding_length_per_layer_input") {
        continue;  // these may be arrays
      } else {
        p.value = raw(static_cast<std::uint32_t>(p.type)) + raw<std::uint64_t>(1) + p.value;
        p.type = MetaType::kArray;
      }
      written("key " + p.key + " is a " + to_string(p.type));
      return;
    }
  }
  void setting_array() {
    const bool pattern = rng_.below(2) == 0;
    GgufParts::Pair& p = parts().pair(pattern ? "gemma4.attention.sliding_window_pattern"
                                              : "gemma4.attention.head_count_kv");
    const std::uint64_t n = array_count(p);
    const std::uint64_t size = pattern ? 1 : 4;
    if (rng_.below(2) == 0) {
      std::uint64_t count = n;
      while (count == n) count = rng_.below(2 * n + 1);
      p.value.resize(kArrayHead + count * size, '\1');
      overwrite(p.value, 4, count);
      written(p.key + " has " + std::to_string(count) + " elements");
      return;
    }
    const std::uint64_t i = rng_.below(n);
    const std::uint64_t at = kArrayHead + i * size;
    if (pattern) {
      p.value[at] = p.value[at] == 0 ? '\1' : '\0';
    } else {
      static constexpr std::int32_t kValues[] = {0, -1, 3, 4, 8, 1000, 2147483647, -2147483647 - 1};
      overwrite(p.value, at, any(kValues));
    }
    written(p.key + " differs in layer " + std::to_string(i));
  }
  void alignment() {
    static constexpr std::uint32_t kValues[] = {0, 3, 31, 33, 1U << 31, 0xFFFFFFFF};
    GgufParts::Pair p{"general.alignment", MetaType::kU32, raw(any(kValues))};
    if (rng_.below(3) == 0) {
      static constexpr MetaType kTypes[] = {
          MetaType::kU64, MetaType::kI32, MetaType::kF32, MetaType::kString};
      p.type = any(kTypes);
      p.value = p.type == MetaType::kU64 ? raw<std::uint64_t>(32) : raw<std::uint32_t>(32);
      if (p.type == MetaType::kString) p.value = raw<std::uint64_t>(2) + "32";
    }
    parts().pairs.push_back(p);
    written("general.alignment of an impossible value or type");
  }
  void split() {
    GgufParts::Pair p{
        "split.count", MetaType::kU16, raw(static_cast<std::uint16_t>(2 + rng_.below(60000)))};
    if (rng_.below(2) == 0) p.key = "split.no";
    parts().pairs.push_back(p);
    written("one part of a split model");
  }

  // ---- tensors ----

  void tensor_removed() {
    const std::size_t i = rng_.below(base_.tensors.size());
    parts().tensors.erase(copy_.tensors.begin() + static_cast<std::ptrdiff_t>(i));
    written("tensor " + base_.tensors[i].name + " is missing");
  }
  void tensor_added() {
    GgufParts::Tensor t = any(base_.tensors);
    switch (rng_.below(4)) {
      case 0:
        break;  // the same name once more
      case 1:
        t.name = "blk." + std::to_string(6 + rng_.below(1000)) + ".attn_norm.weight";
        break;
      case 2:
        t.name = "blk." + std::to_string(rng_.below(6)) + ".attn_q.bias";
        break;
      default:
        t.name = "unknown." + std::to_string(rng_.below(100));
    }
    const auto at = static_cast<std::ptrdiff_t>(rng_.below(base_.tensors.size() + 1));
    parts().tensors.insert(copy_.tensors.begin() + at, t);
    written("one more tensor, " + t.name);
  }
  void tensor_renamed() {
    GgufParts::Tensor& t = parts().tensors[rng_.below(base_.tensors.size())];
    const std::string old = t.name;
    if (rng_.below(4) == 0) {
      t.name = rng_.below(2) == 0 ? std::string() : std::string(64 + rng_.below(1000), 'n');
    } else {
      flip(t.name);
    }
    written("tensor " + old + " is renamed");
  }
  // Sound in itself, but not what the settings say.
  void tensor_shape() {
    GgufParts::Tensor& t = parts().tensors[rng_.below(base_.tensors.size())];
    const auto block = static_cast<std::int64_t>(block_elements(*block_type_from_id(t.type)));
    switch (rng_.below(4)) {
      case 0:
        t.ne[0] += block;
        break;
      case 1:
        if (t.ne.size() > 1) {
          t.ne.back() += rng_.below(2) == 0 && t.ne.back() > 1 ? -1 : 1;
        } else {
          t.ne[0] += block;
        }
        break;
      case 2:
        if (t.ne.size() > 1 && t.ne[0] != t.ne[1] && t.ne[1] % block == 0) {
          std::swap(t.ne[0], t.ne[1]);
        } else {
          t.ne[0] += block;
        }
        break;
      default:
        t.ne.push_back(2);
        if (t.ne.size() > 4) t.ne = {t.ne[0], 1};
    }
    t.data.resize(stored_bytes(t), '\0');
    written("tensor " + t.name + " has another shape");
  }
  // A supported type, but not in a place that allows it: norms, scales and the router are f32.
  void tensor_retyped() {
    for (;;) {
      GgufParts::Tensor& t = parts().tensors[rng_.below(base_.tensors.size())];
      if (t.type != 0) continue;
      t.type = rng_.below(2) == 0 ? 1 : 30;
      t.data.resize(stored_bytes(t));
      written("tensor " + t.name + " is no longer f32");
      return;
    }
  }
  // Two records exchanged, offsets kept: file order and offsets disagree.
  void tensors_swapped() {
    parts();
    const std::size_t i = rng_.below(copy_.tensors.size() - 1);
    std::vector<Field> fields;
    out_.bytes = copy_.write(&fields);
    std::vector<std::uint64_t> at;
    for (const Field& f : fields) {
      if (f.kind == Field::kTensorOffset) at.push_back(f.at);
    }
    const auto a = load<std::uint64_t>(out_.bytes, at[i]);
    overwrite(out_.bytes, at[i], load<std::uint64_t>(out_.bytes, at[i + 1]));
    overwrite(out_.bytes, at[i + 1], a);
    say("offsets of " + copy_.tensors[i].name + " and the next are exchanged");
  }

  // ---- vocabulary ----

  void vocabulary() {
    parts();
    GgufParts::Pair& tokens = copy_.pair("tokenizer.ggml.tokens");
    GgufParts::Pair& types = copy_.pair("tokenizer.ggml.token_type");
    std::vector<std::string> texts = GgufParts::texts(tokens);
    const auto n = texts.size();
    switch (rng_.below(7)) {
      case 0: {  // duplicate
        const std::size_t from = rng_.below(n);
        std::size_t to = from;
        while (to == from) to = rng_.below(n);
        texts[to] = texts[from];
        GgufParts::set_texts(tokens, texts);
        written("token " + std::to_string(to) + " repeats token " + std::to_string(from));
        return;
      }
      case 1: {  // no turn marks
        const char* const mark = rng_.below(2) == 0 ? "<|turn>" : "<turn|>";
        *std::find(texts.begin(), texts.end(), mark) += "x";
        GgufParts::set_texts(tokens, texts);
        written(std::string("no token ") + mark);
        return;
      }
      case 2: {  // more or fewer than the embedding has rows, everything else in step
        if (rng_.below(2) == 0) {
          texts.emplace_back("one too many");
        } else {
          texts.pop_back();
        }
        GgufParts::set_texts(tokens, texts);
        written("the vocabulary has " + std::to_string(texts.size()) + " tokens");
        return;
      }
      case 3: {
        static constexpr std::int32_t kTypes[] = {0, -1, 7, 100, 2147483647, -2147483647 - 1};
        overwrite(types.value, kArrayHead + 4 * rng_.below(n), any(kTypes));
        written("an impossible token type");
        return;
      }
      case 4: {  // a byte token that names no byte
        const auto it = std::find(texts.begin(), texts.end(), "<0x41>");
        static constexpr const char* kTexts[] = {"<0x4>", "<0xGG>", "", "byte", "<0x411>"};
        *it = any(kTexts);
        GgufParts::set_texts(tokens, texts);
        written("a byte token named '" + *it + "'");
        return;
      }
      case 5: {
        types.value.resize(types.value.size() - 4);
        overwrite(types.value, 4, static_cast<std::uint64_t>(n - 1));
        written("one token type too few");
        return;
      }
      default: {
        static constexpr const char* kModels[] = {"llama", "gpt2", "", "gemma3", "GEMMA4"};
        const std::string model = any(kModels);
        copy_.pair("tokenizer.ggml.model").value = raw<std::uint64_t>(model.size()) + model;
        written("tokenizer model '" + model + "'");
      }
    }
  }
  void merges() {
    parts();
    GgufParts::Pair& p = copy_.pair("tokenizer.ggml.merges");
    std::vector<std::string> texts = GgufParts::texts(p);
    const std::size_t i = rng_.below(texts.size());
    static constexpr const char* kTexts[] = {
        "", " ", "  ", "a", "ab", "a ", " a", "a\x01 b", "unknown parts", "<0x41> a", "zq\xFFzq q"};
    texts[i] = any(kTexts);
    GgufParts::set_texts(p, texts);
    written("merge " + std::to_string(i) + " is '" + texts[i] + "'");
  }
  void special_id() {
    std::vector<std::size_t> ids;
    for (std::size_t i = 0; i < base_.pairs.size(); ++i) {
      if (base_.pairs[i].key.ends_with("_token_id")) ids.push_back(i);
    }
    static constexpr std::uint32_t kValues[] = {512, 513, 262144, 1U << 31, 0xFFFFFFFF};
    GgufParts::Pair& p = parts().pairs[any(ids)];
    p.value = raw(any(kValues));
    written(p.key + " is outside the vocabulary");
  }

  // ---- values ----

  void bad_value() {
    GgufParts::Tensor& t = parts().tensors[rng_.below(base_.tensors.size())];
    const BlockType type = *block_type_from_id(t.type);
    const std::uint64_t block = rng_.below(t.data.size() / block_bytes(type));
    const std::uint64_t at = block * block_bytes(type);
    if (type == BlockType::kF32) {
      static constexpr std::uint32_t kBits[] = {
          0x7FC00000, 0xFFC00000, 0x7F800000, 0xFF800000, 0x7F800001};
      overwrite(t.data, at, any(kBits));
    } else {
      static constexpr std::uint16_t kBits[] = {0x7E00, 0xFE00, 0x7C00, 0xFC00, 0x7C01};
      overwrite(t.data, at + (type == BlockType::kQ6_K ? 208 : 0), any(kBits));
    }
    written("block " + std::to_string(block) + " of " + t.name + " is not finite");
  }
  void rope_divisor() {
    GgufParts::Tensor& t = parts().tensor("rope_freqs.weight");
    static constexpr float kValues[] = {0.0F, -0.0F, -1.0F, -1e30F};
    overwrite(t.data, 4 * rng_.below(t.data.size() / 4), any(kValues));
    written("a RoPE divisor that is not positive");
  }
  void shrinks() {
    out_.bytes = bytes_;
    out_.shrinks_to = data_at_ + rng_.below(last_used_ - data_at_);
    say("shrinks to " + std::to_string(out_.shrinks_to) + " bytes after it was opened");
  }

  const GgufParts& base_;
  const std::string& bytes_;
  const std::vector<Field>& fields_;
  std::uint64_t data_at_;
  std::uint64_t last_used_;
  Rng rng_;
  GgufParts copy_;
  MalformedFile out_;
};

}  // namespace

MalformedGguf::MalformedGguf(GgufParts base, std::uint64_t seed)
    : base_(std::move(base)), seed_(seed) {
  bytes_ = base_.write(&fields_);
  last_used_ = bytes_.size();
  std::uint64_t data = 0;
  for (const auto& t : base_.tensors) data = (data + 31) / 32 * 32 + t.data.size();
  data_at_ = last_used_ - data;
}

MalformedFile MalformedGguf::make(std::uint64_t index) const {
  const Rng rng(seed_ ^ (index * 0x9E3779B97F4A7C15ULL) ^ seed_from_name("malformed_gguf"));
  return Changer(base_, bytes_, fields_, data_at_, last_used_, rng).make(index);
}

// ---- judging ----

std::string load_everything(const std::string& path, std::uint64_t shrink_to) {
  try {
    const GgufFile file = GgufFile::open(path);
    if (shrink_to != 0 && ::truncate(path.c_str(), static_cast<off_t>(shrink_to)) != 0) {
      throw std::runtime_error("cannot shrink " + path);
    }
    (void)read_config(file);
    const Tokenizer tokenizer = Tokenizer::load(file);
    std::vector<std::byte> buffer;
    for (const TensorInfo& t : file.tensors()) {
      const std::uint64_t piece =
          (std::uint64_t{1} << 20) / block_bytes(t.type) * block_bytes(t.type);
      for (std::uint64_t at = 0; at < t.bytes; at += piece) {
        buffer.resize(std::min(piece, t.bytes - at));
        file.read_tensor(t, at, buffer);
        check_finite(file, t, buffer, at);
      }
    }
    return {};
  } catch (const InputError& e) {
    return e.what();
  }
}

bool well_formed_refusal(const std::string& message, const std::string& path) {
  if (!message.starts_with(path + ": ")) return false;
  std::string_view rest = std::string_view(message).substr(path.size() + 2);
  const std::size_t open = rest.find("(at byte ");
  if (open == std::string_view::npos) return false;
  const std::string_view subject = rest.substr(0, open);
  const bool named = subject.starts_with("key '") || subject.starts_with("tensor '") ||
                     subject == "header " || subject.starts_with("metadata pair ") ||
                     subject.starts_with("tensor record ") || subject == "data section ";
  rest.remove_prefix(open + 9);
  std::size_t digits = 0;
  while (digits < rest.size() && std::isdigit(static_cast<unsigned char>(rest[digits])) != 0)
    ++digits;
  return named && digits > 0 && rest.substr(digits).starts_with("): ") && rest.size() > digits + 3;
}

}  // namespace assay
