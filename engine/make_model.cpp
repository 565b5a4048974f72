#include "engine/make_model.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/output_file.h"

namespace assay {
namespace {

struct Preset {
  const char* name;
  int layers;
  int context;
  int hidden;
  int dense_width;
  int heads;
  int kv_heads_local;
  int kv_heads_global;
  int dim_local;
  int dim_global;
  int window;
  int experts;
  int experts_used;
  int expert_width;
  int vocab;
  std::size_t max_merges;
  bool full_vocabulary;  // token ids of the released model, else packed ids
};
// Every sixth layer is global in all of them.
constexpr Preset kPresets[] = {
    {"tiny", 12, 8192, 256, 256, 4, 2, 1, 64, 128, 128, 64, 8, 32, 4096, 1 << 20, false},
    {"spec", 6, 256, 256, 160, 4, 2, 1, 32, 64, 8, 8, 2, 96, 512, 1 << 20, false},
    {"26b-a4b",
     30,
     262144,
     2816,
     2112,
     16,
     8,
     2,
     256,
     512,
     1024,
     128,
     8,
     704,
     262144,
     514906,
     true},
};

template <class List>
std::string joined(const List& names) {
  std::string out;
  for (const auto& n : names) out += (out.empty() ? "" : ", ") + std::string(n);
  return out;
}

const Preset& find_preset(const std::string& name) {
  for (const Preset& p : kPresets) {
    if (name == p.name) return p;
  }
  throw UserError("unknown preset '" + name + "'; valid are " + joined(make_model_presets()));
}

// ---- vocabulary ----

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::vector<std::string> merges;
};

// The chat format's tokens. id: in the released model; the packed vocabulary takes those with `packed`, in this order.
struct SpecialToken {
  const char* text;
  int id;
  std::int32_t type;  // tokenizer.ggml.token_type
  bool packed;
};
constexpr SpecialToken kSpecials[] = {
    {"<pad>", 0, 3, true},
    {"<eos>", 1, 3, true},
    {"<bos>", 2, 3, true},
    {"<unk>", 3, 2, true},
    {"<mask>", 4, 3, true},
    {"<|turn>", 105, 3, true},
    {"<turn|>", 106, 3, true},
    {"<|channel>", 100, 4, true},
    {"<channel|>", 101, 4, true},
    {"<|think|>", 98, 3, true},
    {"<|tool>", 46, 3, true},
    {"<tool|>", 47, 3, true},
    {"<|tool_call>", 48, 4, true},
    {"<tool_call|>", 49, 4, true},
    {"<|tool_response>", 50, 4, true},
    {"<tool_response|>", 51, 4, true},
    {"<|\"|>", 52, 4, true},
    {"<|image|>", 258880, 3, true},
    {"<|audio|>", 258881, 3, true},
    {"<|video|>", 258884, 3, true},
    {"</s>", 212, 4, false},
    {"<|image>", 255999, 3, false},
    {"<image|>", 258882, 3, false},
    {"<|audio>", 256000, 3, false},
    {"<audio|>", 258883, 3, false},
};

class VocabularyBuilder {
 public:
  explicit VocabularyBuilder(const Preset& preset)
      : size_(static_cast<std::size_t>(preset.vocab)), max_merges_(preset.max_merges) {
    v_.tokens.resize(size_);
    v_.types.assign(size_, 0);
    if (preset.full_vocabulary) {
      for (const SpecialToken& s : kSpecials) place(static_cast<std::size_t>(s.id), s.text, s.type);
      newline_runs_ = 31;
      for (std::size_t k = 0; k < newline_runs_; ++k) place(107 + k, std::string(k + 1, '\n'), 1);
      bytes(238);
      for (std::size_t i = 0; i < 238; ++i) {
        if (v_.types[i] == 0) place(i, "<unused" + std::to_string(i) + ">", 5);
      }
      next_ = 494;
    } else {
      for (const SpecialToken& s : kSpecials) {
        if (s.packed) place(next_++, s.text, s.type);
      }
      newline_runs_ = 8;
      for (std::size_t k = 0; k < newline_runs_; ++k) place(next_++, std::string(k + 1, '\n'), 1);
      bytes(next_);
      next_ += 256;
    }
  }

  Vocabulary build() {
    for (int c = '!'; c <= '~'; ++c) append(std::string(1, static_cast<char>(c)));
    for (const char* wide : {"\xE2\x96\x81",
                             "\xC3\xA9",
                             "\xC3\xBC",
                             "\xE2\x80\x93",
                             "\xE2\x80\x9C",
                             "\xE2\x80\x9D",
                             "\xE6\xBC\xA2",
                             "\xF0\x9F\x98\x80"}) {
      append(wide);
    }
    for (std::size_t i = 1; i < newline_runs_; ++i) merge(std::string(i, '\n'), "\n");
    for (int length = 2; length <= 4; ++length) strings(length);
    for (const std::string& s : quads_) merge(cut(s, 0, 3), cut(s, 3, 4));
    return std::move(v_);
  }

 private:
  void place(std::size_t id, std::string text, std::int32_t type) {
    v_.tokens[id] = std::move(text);
    v_.types[id] = type;
  }
  void bytes(std::size_t first) {
    for (unsigned b = 0; b < 256; ++b) {
      static constexpr char kHex[] = "0123456789ABCDEF";
      place(first + b, std::string("<0x") + kHex[b >> 4] + kHex[b & 15] + '>', 6);
    }
  }
  bool append(const std::string& text) {
    while (next_ < size_ && v_.types[next_] != 0) ++next_;
    if (next_ == size_) return false;
    place(next_++, text, 1);
    known_.insert(text);
    return true;
  }
  bool known(const std::string& text) const {
    return text.find('\n') != std::string::npos || known_.contains(text);
  }
  void merge(const std::string& left, const std::string& right) {
    if (v_.merges.size() < max_merges_ && known(left) && known(right))
      v_.merges.push_back(left + ' ' + right);
  }
  // Symbols [from, to) of a string over the alphabet.
  static std::string cut(const std::string& text, int from, int to) {
    std::string out;
    int index = 0;
    for (std::size_t at = 0; at < text.size(); ++index) {
      const std::size_t n = static_cast<unsigned char>(text[at]) == 0xE2 ? 3 : 1;
      if (index >= from && index < to) out += text.substr(at, n);
      at += n;
    }
    return out;
  }
  // Strings of `length` symbols in a scattered order, until the vocabulary is full, and the merges that reach them.
  void strings(int length) {
    constexpr std::string_view kLetters = "etaoinsrhldcumfpgwybvkxjqz";
    constexpr std::uint64_t kSymbols = kLetters.size() + 1;
    std::uint64_t total = 1;
    for (int i = 0; i < length; ++i) total *= kSymbols;
    for (std::uint64_t k = 0; k < total; ++k) {
      std::uint64_t code = k * 7919 % total;  // 7919 is prime to every power of 27
      std::string text;
      for (int i = 0; i < length; ++i, code /= kSymbols) {
        const std::uint64_t symbol = code % kSymbols;
        if (symbol == 0) {
          text += "\xE2\x96\x81";
        } else {
          text += kLetters[symbol - 1];
        }
      }
      if (!append(text)) return;
      if (length == 2) {
        merge(cut(text, 0, 1), cut(text, 1, 2));
      } else if (length == 3) {
        merge(cut(text, 0, 2), cut(text, 2, 3));
        merge(cut(text, 0, 1), cut(text, 1, 3));
      } else {
        merge(cut(text, 0, 2), cut(text, 2, 4));
        quads_.push_back(text);
      }
    }
  }

  std::size_t size_;
  std::size_t max_merges_;
  std::size_t newline_runs_ = 0;
  std::size_t next_ = 0;
  Vocabulary v_;
  std::unordered_set<std::string> known_;
  std::vector<std::string> quads_;
};

// ---- block types of a file ----

BlockType fitting(BlockType type, std::int64_t row) {
  if (row % static_cast<std::int64_t>(block_elements(type)) == 0) return type;
  switch (type) {
    case BlockType::kQ4_K:
      return BlockType::kQ5_0;
    case BlockType::kQ5_K:
      return BlockType::kQ5_1;
    case BlockType::kQ6_K:
      return BlockType::kQ8_0;
    default:
      return BlockType::kF16;
  }
}

// llama.cpp's rule for which of n tensors get more bits in a "_M" file.
bool more_bits(int i, int n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

struct Recipe {
  bool mixture = false;
  BlockType type = BlockType::kQ4_0;
  BlockType embedding = BlockType::kQ4_0;
  std::uint32_t file_type = 0;

  BlockType plain(std::int64_t row) const {
    return fitting(mixture ? BlockType::kQ4_K : type, row);
  }
  // attn_v and ffn_down: the i-th of n.
  BlockType important(std::int64_t row, int i, int n) const {
    return mixture && more_bits(i, n) ? fitting(BlockType::kQ6_K, row) : plain(row);
  }
};

Recipe find_recipe(const MakeModelOptions& o) {
  struct FileType {
    BlockType type;
    std::uint32_t id;
  };
  static constexpr FileType kFileTypes[] = {{BlockType::kF32, 0},
                                            {BlockType::kF16, 1},
                                            {BlockType::kQ4_0, 2},
                                            {BlockType::kQ4_1, 3},
                                            {BlockType::kQ8_0, 7},
                                            {BlockType::kQ5_0, 8},
                                            {BlockType::kQ5_1, 9},
                                            {BlockType::kQ4_K, 14},
                                            {BlockType::kQ5_K, 16},
                                            {BlockType::kQ6_K, 18},
                                            {BlockType::kBF16, 32}};
  Recipe r;
  if (o.type == "q4_k_m") {
    r.mixture = true;
    r.embedding = BlockType::kQ6_K;
    r.file_type = 15;
  } else if (const auto type = parse_block_type(o.type)) {
    r.type = *type;
    r.embedding = *type;
    for (const FileType& f : kFileTypes) {
      if (f.type == *type) r.file_type = f.id;
    }
  } else {
    throw UserError("unknown type '" + o.type + "'; valid are " + joined(make_model_types()));
  }
  if (!o.embedding_type.empty()) {
    const auto type = parse_block_type(o.embedding_type);
    if (!type) throw UserError("unknown embedding type '" + o.embedding_type + "'");
    r.embedding = *type;
  }
  return r;
}

// ---- values ----

// How a tensor's values are drawn.
struct Fill {
  enum { kDeviation, kRange, kRopeFactors } kind;
  double low;  // the deviation, or the range
  double high;
};

// Matrices keep the size of their input; norms and scales vary around 1 (q and k norms around what makes scores of
// unscaled attention spread by about 2, the router's scale around sqrt(D), which its formula divides by).
Fill fill_of(const TensorInfo& t) {
  const std::string_view name = t.name;
  const auto width = static_cast<double>(t.ne[0]);
  const auto ends = [&](std::string_view s) { return name.ends_with(s); };
  if (name == "rope_freqs.weight") return {Fill::kRopeFactors, 0, 0};
  if (name == "token_embd.weight") return {Fill::kDeviation, 3.0 / std::sqrt(width), 0};
  if (ends("attn_q_norm.weight") || ends("attn_k_norm.weight")) {
    const double center = 1.5 / std::sqrt(std::sqrt(width));
    return {Fill::kRange, 0.6 * center, 1.4 * center};
  }
  if (ends("ffn_gate_inp.scale"))
    return {Fill::kRange, 0.5 * std::sqrt(width), 1.5 * std::sqrt(width)};
  if (ends("ffn_gate_inp.weight")) return {Fill::kDeviation, 2.0 / std::sqrt(width), 0};
  if (ends("layer_output_scale.weight")) return {Fill::kRange, 0.85, 1.15};
  if (ends("post_attention_norm.weight") || ends("post_ffw_norm.weight"))
    return {Fill::kRange, 0.3, 0.9};
  if (ends(".scale") || name.find("norm") != std::string_view::npos)
    return {Fill::kRange, 0.5, 1.5};
  return {Fill::kDeviation, 1.0 / std::sqrt(width), 0};
}

template <class T>
void store(std::byte* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

// One piece of work: blocks [first, first + count) of a tensor, from a stream of its own, so that neither the thread
// count nor the order of the work can change a byte.
constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;

std::uint64_t chunk_blocks(BlockType type) { return kChunkBytes / block_bytes(type); }

void fill_chunk(const TensorInfo& t,
                std::uint64_t seed,
                std::uint64_t chunk,
                std::vector<std::byte>& out) {
  const std::uint64_t total = t.bytes / block_bytes(t.type);
  const std::uint64_t first = chunk * chunk_blocks(t.type);
  const std::uint64_t count = std::min(chunk_blocks(t.type), total - first);
  out.resize(count * block_bytes(t.type));
  Rng rng(seed ^ seed_from_name(t.name) ^ (chunk * 0x9E3779B97F4A7C15ULL));
  const Fill fill = fill_of(t);
  if (fill.kind == Fill::kDeviation) {
    random_blocks(t.type, fill.low, rng, count, out.data());
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i) {  // F32
    float v = 0.0F;
    if (fill.kind == Fill::kRange) {
      v = static_cast<float>(fill.low + (fill.high - fill.low) * rng.uniform());
    } else {
      // A quarter of the pairs rotates; the divisor stops the rest.
      v = first + i < total / 4 ? 1.0F : 1e30F;
    }
    store(out.data() + 4 * i, v);
  }
}

// ---- writing ----

class ModelFile {
 public:
  explicit ModelFile(const std::string& path) : file_(path) {
    if (file_.in_place()) throw UserError(path + ": a model needs a regular file");
  }
  void resize(std::uint64_t bytes) const {
    if (::ftruncate(file_.fd(), static_cast<off_t>(bytes)) != 0) file_.fail("set its size");
  }
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes) const {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::pwrite(file_.fd(), p, bytes, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) file_.fail("write");
      p += n;
      offset += static_cast<std::uint64_t>(n);
      bytes -= static_cast<std::size_t>(n);
    }
  }
  void finish() { file_.finish(); }

 private:
  OutputFile file_;
};

}  // namespace

std::vector<std::string> make_model_presets() {
  std::vector<std::string> out;
  for (const Preset& p : kPresets) out.emplace_back(p.name);
  return out;
}
std::vector<std::string> make_model_types() {
  std::vector<std::string> out;
  for (const BlockType t : kAllBlockTypes) out.emplace_back(to_string(t));
  out.emplace_back("q4_k_m");
  return out;
}

GgufWriter describe_model(const MakeModelOptions& options) {
  const Preset& p = find_preset(options.preset);
  const Recipe recipe = find_recipe(options);
  const auto u32 = [](int v) { return static_cast<std::uint32_t>(v); };
  std::vector<bool> local;
  std::vector<std::int32_t> kv_heads;
  for (int i = 0; i < p.layers; ++i) {
    local.push_back(i % 6 != 5);
    kv_heads.push_back(local.back() ? p.kv_heads_local : p.kv_heads_global);
  }

  GgufWriter w;
  w.add_text("general.architecture", "gemma4");
  w.add_text("general.name", "random " + options.preset + " seed " + std::to_string(options.seed));
  w.add_u32("general.file_type", recipe.file_type);
  w.add_u32("general.quantization_version", 2);
  const std::string g = "gemma4.";
  w.add_u32(g + "block_count", u32(p.layers));
  w.add_u32(g + "context_length", u32(p.context));
  w.add_u32(g + "embedding_length", u32(p.hidden));
  w.add_u32(g + "feed_forward_length", u32(p.dense_width));
  w.add_u32(g + "attention.head_count", u32(p.heads));
  w.add_i32s(g + "attention.head_count_kv", kv_heads);
  w.add_u32(g + "attention.key_length", u32(p.dim_global));
  w.add_u32(g + "attention.value_length", u32(p.dim_global));
  w.add_u32(g + "attention.key_length_swa", u32(p.dim_local));
  w.add_u32(g + "attention.value_length_swa", u32(p.dim_local));
  w.add_u32(g + "attention.sliding_window", u32(p.window));
  w.add_bools(g + "attention.sliding_window_pattern", local);
  w.add_u32(g + "attention.shared_kv_layers", 0);
  w.add_f32(g + "attention.layer_norm_rms_epsilon", 1e-6F);
  w.add_f32(g + "rope.freq_base", 1e6F);
  w.add_f32(g + "rope.freq_base_swa", 1e4F);
  w.add_u32(g + "rope.dimension_count", u32(p.dim_global));
  w.add_u32(g + "rope.dimension_count_swa", u32(p.dim_local));
  w.add_u32(g + "expert_count", u32(p.experts));
  w.add_u32(g + "expert_used_count", u32(p.experts_used));
  w.add_u32(g + "expert_feed_forward_length", u32(p.expert_width));
  w.add_f32(g + "final_logit_softcapping", 30.0F);
  w.add_u32(g + "embedding_length_per_layer_input", 0);

  const Vocabulary v = VocabularyBuilder(p).build();
  const auto id = [&](std::string_view text) {
    const auto it = std::find(v.tokens.begin(), v.tokens.end(), text);
    return static_cast<std::uint32_t>(it - v.tokens.begin());
  };
  w.add_text("tokenizer.ggml.model", "gemma4");
  w.add_texts("tokenizer.ggml.tokens", v.tokens);
  w.add_f32s("tokenizer.ggml.scores", std::vector<float>(v.tokens.size(), -1000.0F));
  w.add_i32s("tokenizer.ggml.token_type", v.types);
  w.add_texts("tokenizer.ggml.merges", v.merges);
  w.add_u32("tokenizer.ggml.bos_token_id", id("<bos>"));
  w.add_u32("tokenizer.ggml.eos_token_id", id("<turn|>"));
  w.add_u32("tokenizer.ggml.unknown_token_id", id("<unk>"));
  w.add_u32("tokenizer.ggml.padding_token_id", id("<pad>"));
  w.add_u32("tokenizer.ggml.mask_token_id", id("<mask>"));
  w.add_bool("tokenizer.ggml.add_bos_token", true);
  w.add_bool("tokenizer.ggml.add_space_prefix", false);

  const std::int64_t d = p.hidden;
  const std::int64_t fd = p.dense_width;
  const std::int64_t fe = p.expert_width;
  const std::int64_t experts = p.experts;
  const BlockType f32 = BlockType::kF32;
  w.add_tensor("token_embd.weight", fitting(recipe.embedding, d), {d, p.vocab});
  w.add_tensor("output_norm.weight", f32, {d});
  w.add_tensor("rope_freqs.weight", f32, {p.dim_global / 2});
  const int n_local = static_cast<int>(std::count(local.begin(), local.end(), true));
  int v_index = 0;
  for (int i = 0; i < p.layers; ++i) {
    const bool is_local = local[static_cast<std::size_t>(i)];
    const std::int64_t hd = is_local ? p.dim_local : p.dim_global;
    const std::int64_t q = p.heads * hd;
    const std::int64_t kv = kv_heads[static_cast<std::size_t>(i)] * hd;
    const std::string b = "blk." + std::to_string(i) + ".";
    w.add_tensor(b + "attn_norm.weight", f32, {d});
    w.add_tensor(b + "attn_q.weight", recipe.plain(d), {d, q});
    w.add_tensor(b + "attn_k.weight", recipe.plain(d), {d, kv});
    if (is_local)
      w.add_tensor(b + "attn_v.weight", recipe.important(d, v_index++, n_local), {d, kv});
    w.add_tensor(b + "attn_output.weight", recipe.plain(q), {q, d});
    w.add_tensor(b + "attn_q_norm.weight", f32, {hd});
    w.add_tensor(b + "attn_k_norm.weight", f32, {hd});
    w.add_tensor(b + "post_attention_norm.weight", f32, {d});
    w.add_tensor(b + "ffn_norm.weight", f32, {d});
    w.add_tensor(b + "ffn_gate.weight", recipe.plain(d), {d, fd});
    w.add_tensor(b + "ffn_up.weight", recipe.plain(d), {d, fd});
    w.add_tensor(b + "ffn_down.weight", recipe.important(fd, i, p.layers), {fd, d});
    w.add_tensor(b + "post_ffw_norm_1.weight", f32, {d});
    w.add_tensor(b + "ffn_gate_inp.weight", f32, {d, experts});
    w.add_tensor(b + "ffn_gate_inp.scale", f32, {d});
    w.add_tensor(b + "pre_ffw_norm_2.weight", f32, {d});
    w.add_tensor(b + "ffn_gate_up_exps.weight", recipe.plain(d), {d, 2 * fe, experts});
    w.add_tensor(b + "ffn_down_exps.weight", recipe.important(fe, i, p.layers), {fe, d, experts});
    w.add_tensor(b + "ffn_down_exps.scale", f32, {experts});
    w.add_tensor(b + "post_ffw_norm_2.weight", f32, {d});
    w.add_tensor(b + "post_ffw_norm.weight", f32, {d});
    w.add_tensor(b + "layer_output_scale.weight", f32, {1});
  }
  return w;
}

void make_model(const MakeModelOptions& options,
                const std::string& path,
                int threads,
                const std::function<void(std::uint64_t done, std::uint64_t total)>& progress) {
  const GgufWriter writer = describe_model(options);
  const std::vector<TensorInfo> tensors = writer.tensors();
  ModelFile file(path);
  file.resize(writer.file_bytes());  // padding stays zero
  {
    const std::string head = writer.head();
    file.write_at(0, head.data(), head.size());
  }

  struct Chunk {
    std::uint32_t tensor;
    std::uint32_t index;
  };
  std::vector<Chunk> chunks;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::uint64_t blocks = tensors[t].bytes / block_bytes(tensors[t].type);
    const std::uint64_t per_chunk = chunk_blocks(tensors[t].type);
    for (std::uint64_t c = 0; c * per_chunk < blocks; ++c) {
      chunks.push_back({static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(c)});
    }
  }

  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> written{0};
  std::mutex mutex;
  std::condition_variable changed;
  std::exception_ptr failure;
  int running = std::max(1, threads);
  const auto work = [&] {
    try {
      std::vector<std::byte> buffer;
      for (std::size_t i = next.fetch_add(1); i < chunks.size(); i = next.fetch_add(1)) {
        const TensorInfo& t = tensors[chunks[i].tensor];
        fill_chunk(t, options.seed, chunks[i].index, buffer);
        file.write_at(t.offset + chunks[i].index * chunk_blocks(t.type) * block_bytes(t.type),
                      buffer.data(),
                      buffer.size());
        written.fetch_add(buffer.size());
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = chunks.size();  // the others stop after their chunk
    }
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_all();
  };
  std::vector<std::thread> workers;
  for (int i = 0, n = running; i < n; ++i) workers.emplace_back(work);
  {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return running == 0; })) {
      if (progress) progress(written.load(), writer.file_bytes());
    }
  }
  for (std::thread& t : workers) t.join();
  if (failure) std::rethrow_exception(failure);
  file.finish();
  if (progress) progress(writer.file_bytes(), writer.file_bytes());
}

// Codes are uniform random bits; the scale spreads by a factor of two around what gives the deviation. Only integer and
// correctly rounded operations, so that every machine draws the same bytes.
void random_blocks(
    BlockType type, double deviation, Rng& rng, std::uint64_t blocks, std::byte* out) {
  const std::size_t size = block_bytes(type);
  // Half-precision scales for a code step of the given deviation, chosen by 8 random bits.
  const auto table = [&](double code_deviation) {
    std::vector<std::uint16_t> scales(256);
    for (int i = 0; i < 256; ++i) {
      // The mean square of (0.65 .. 1.35) is close to 1.
      scales[static_cast<std::size_t>(i)] =
          float_to_half(static_cast<float>(deviation / code_deviation * (0.65 + 0.7 * i / 255.0)));
    }
    return scales;
  };
  const auto bytes = [&](std::byte* p, std::size_t n) {
    for (; n >= 8; p += 8, n -= 8) store(p, rng.next());
    if (n > 0) {
      const std::uint64_t last = rng.next();
      std::memcpy(p, &last, n);
    }
  };
  // Standard deviation of 0 .. n-1, each as likely.
  const auto uniform_deviation = [](double n) { return std::sqrt((n * n - 1.0) / 12.0); };

  switch (type) {
    case BlockType::kF32:
    case BlockType::kF16:
    case BlockType::kBF16: {
      const auto range = static_cast<float>(2.0 * std::sqrt(3.0) * deviation);
      for (std::uint64_t b = 0; b < blocks; ++b, out += size) {
        const float u = static_cast<float>(rng.next() >> 40) * 0x1p-24F - 0.5F;
        const float v = u * range;
        if (type == BlockType::kF32) {
          store(out, v);
        } else {
          store(out, type == BlockType::kF16 ? float_to_half(v) : float_to_bf16(v));
        }
      }
      return;
    }
    case BlockType::kQ4_0:
    case BlockType::kQ5_0: {
      const auto scales = table(uniform_deviation(type == BlockType::kQ4_0 ? 16 : 32));
      for (std::uint64_t b = 0; b < blocks; ++b, out += size) {
        const std::uint64_t bits = rng.next();
        // Either sign occurs in real files: the largest value sits on the most negative code.
        store(out, static_cast<std::uint16_t>(scales[bits & 255] | ((bits >> 8 & 1) << 15)));
        bytes(out + 2, size - 2);
      }
      return;
    }
    case BlockType::kQ4_1:
    case BlockType::kQ5_1: {
      const int levels = type == BlockType::kQ4_1 ? 16 : 32;
      const auto scales = table(uniform_deviation(levels));
      for (std::uint64_t b = 0; b < blocks; ++b, out += size) {
        const std::uint64_t bits = rng.next();
        const std::uint16_t scale = scales[bits & 255];
        // The minimum puts code (levels - 1) / 2, give or take one, at zero.
        const float shift = 0.5F * static_cast<float>(levels - 1) +
                            (static_cast<float>(bits >> 8 & 7) - 3.5F) * 0.25F;
        store(out, scale);
        store(out + 2, float_to_half(-half_to_float(scale) * shift));
        bytes(out + 4, size - 4);
      }
      return;
    }
    case BlockType::kQ8_0: {
      const auto scales = table(uniform_deviation(255));
      for (std::uint64_t b = 0; b < blocks; ++b, out += size) {
        store(out, scales[rng.next() & 255]);
        bytes(out + 2, 32);
        for (int j = 2; j < 34; ++j) {
          if (out[j] == std::byte{0x80}) out[j] = std::byte{0};  // no quantiser writes -128
        }
      }
      return;
    }
    case BlockType::kQ4_K:
    case BlockType::kQ5_K: {
      const bool five = type == BlockType::kQ5_K;
      const int levels = five ? 32 : 16;
      // Sub-block scales 32 .. 63 and minima of nearly the same size.
      const auto scales = table(uniform_deviation(levels) * 47.5);
      for (std::uint64_t b = 0; b < blocks; ++b, out += size) {
        const std::uint16_t scale = scales[rng.next() & 255];
        store(out, scale);
        store(out + 2, float_to_half(half_to_float(scale) * 0.5F * static_cast<float>(levels - 1)));
        const std::uint64_t bits = rng.next();
        int sc[8];
        int m[8];
        for (int s = 0; s < 8; ++s) {
          sc[s] = 32 + static_cast<int>(bits >> (8 * s) & 31);
          m[s] = std::min(63, sc[s] - 3 + static_cast<int>(bits >> (8 * s + 5) & 7));
        }
        for (int s = 0; s < 4; ++s) {
          out[4 + s] = static_cast<std::byte>(sc[s] | (sc[s + 4] >> 4) << 6);
          out[8 + s] = static_cast<std::byte>(m[s] | (m[s + 4] >> 4) << 6);
          out[12 + s] = static_cast<std::byte>((sc[s + 4] & 15) | (m[s + 4] & 15) << 4);
        }
        bytes(out + 16, size - 16);
      }
      return;
    }
    case BlockType::kQ6_K: {
      // Sub-block scales -127 .. 127 but never near 0: (64 .. 127) with either sign.
      const auto scales = table(uniform_deviation(64) * 97.0);
      for (std::uint64_t b = 0; b < blocks; ++b, out += size) {
        bytes(out, 208);
        for (int s = 192; s < 208; ++s) {
          const int bits = static_cast<int>(out[s]);
          const int magnitude = 64 + (bits & 63);
          out[s] = static_cast<std::byte>((bits & 64) != 0 ? -magnitude : magnitude);
        }
        store(out + 208, scales[rng.next() & 255]);
      }
      return;
    }
  }
}

}  // namespace assay
