#include "engine/model_config.h"

#include <climits>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <unordered_set>

#include "kernels/base/error.h"

namespace assay {
namespace {

constexpr int kMaxLayers = 512;
constexpr int kMaxExperts = 65536;

std::string shape_text(std::span<const std::int64_t> ne) {
  std::string out = "{";
  for (std::size_t i = 0; i < ne.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(ne[i]);
  return out + "}";
}

// Settings of one architecture, each checked against its range where it is read.
class Settings {
 public:
  explicit Settings(const GgufFile& file) : file_(file) {}

  static std::string key(const char* name) { return std::string("gemma4.") + name; }

  int integer(const char* name, std::int64_t low, std::int64_t high = INT_MAX) const {
    const std::string k = key(name);
    return checked(k, file_.integer(k), low, high);
  }
  // A feature that must be absent or off.
  void must_be_zero(const char* name, bool required) const {
    const std::string k = key(name);
    if (!required && !file_.has(k)) return;
    if (file_.is_array(k)) {
      for (const std::int64_t v : file_.integers(k)) {
        if (v != 0) file_.refuse_key(k, "not implemented, must be 0");
      }
    } else if (file_.integer(k) != 0) {
      file_.refuse_key(k,
                       "is " + std::to_string(file_.integer(k)) + "; not implemented, must be 0");
    }
  }
  float positive(const char* name) const {
    const std::string k = key(name);
    const double v = file_.number(k);
    const auto f = static_cast<float>(v);
    if (!(f > 0.0F) || !std::isfinite(f))
      file_.refuse_key(k, "is " + std::to_string(v) + ", must be above 0");
    return f;
  }
  // One value for every layer, or an array of exactly one a layer.
  std::vector<int> per_layer(const char* name,
                             int layers,
                             std::int64_t low,
                             std::int64_t high = INT_MAX) const {
    const std::string k = key(name);
    if (!file_.is_array(k))
      return std::vector<int>(static_cast<std::size_t>(layers), integer(name, low, high));
    std::vector<int> out;
    for (const std::int64_t v : array(k, layers)) out.push_back(checked(k, v, low, high));
    return out;
  }
  // true = local. An array, or as a single number p the period: every p-th layer is global (0: none).
  std::vector<bool> local_pattern(int layers) const {
    const std::string k = key("attention.sliding_window_pattern");
    std::vector<bool> out;
    if (file_.is_array(k)) {
      for (const std::int64_t v : array(k, layers)) out.push_back(v != 0);
      return out;
    }
    if (file_.is_bool(k))
      return std::vector<bool>(static_cast<std::size_t>(layers), file_.boolean(k));
    const int period = integer("attention.sliding_window_pattern", 0);
    for (int i = 0; i < layers; ++i) out.push_back(period == 0 || i % period < period - 1);
    return out;
  }

 private:
  std::vector<std::int64_t> array(const std::string& k, int layers) const {
    std::vector<std::int64_t> values = file_.integers(k);
    if (values.size() != static_cast<std::size_t>(layers)) {
      file_.refuse_key(
          k, std::to_string(values.size()) + " elements for " + std::to_string(layers) + " layers");
    }
    return values;
  }
  int checked(const std::string& k, std::int64_t v, std::int64_t low, std::int64_t high) const {
    if (v < low || v > high) {
      file_.refuse_key(k,
                       "is " + std::to_string(v) + ", must be " + std::to_string(low) + " to " +
                           std::to_string(high));
    }
    return static_cast<int>(v);
  }
  const GgufFile& file_;
};

// Ticks tensors off the file's list as the architecture asks for them.
class TensorCheck {
 public:
  explicit TensorCheck(const GgufFile& file) : file_(file) {}

  const TensorInfo& need(const std::string& name, std::initializer_list<std::int64_t> shape) {
    const TensorInfo& t = file_.tensor(name);
    std::array<std::int64_t, 4> want = {1, 1, 1, 1};
    std::copy(shape.begin(), shape.end(), want.begin());
    if (t.ne != want) {
      file_.refuse_tensor(
          t,
          "shape " + shape_text(std::span(t.ne).first(static_cast<std::size_t>(t.dims))) +
              ", the settings say " + shape_text(std::span(shape.begin(), shape.size())));
    }
    seen_.insert(t.name);
    return t;
  }
  const TensorInfo& need_f32(const std::string& name, std::initializer_list<std::int64_t> shape) {
    const TensorInfo& t = need(name, shape);
    if (t.type != BlockType::kF32) {
      file_.refuse_tensor(t, std::string("type ") + to_string(t.type) + ", f32 is needed");
    }
    return t;
  }
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  // Whatever is left would be silently ignored; only other modalities' towers may be.
  void finish(int layers) const {
    for (const TensorInfo& t : file_.tensors()) {
      const std::string_view name = t.name;
      if (seen_.contains(name) || name.starts_with("v.") || name.starts_with("a.") ||
          name.starts_with("mm.")) {
        continue;
      }
      file_.refuse_tensor(t,
                          name.starts_with("blk.")
                              ? "not part of a layer of this architecture with " +
                                    std::to_string(layers) + " layers"
                              : "not part of this architecture");
    }
  }

 private:
  const GgufFile& file_;
  std::unordered_set<std::string_view> seen_;
};

}  // namespace

std::string layer_tensor(int layer, const char* suffix) {
  return "blk." + std::to_string(layer) + "." + suffix;
}

ModelConfig read_config(const GgufFile& file) {
  if (const std::string_view arch = file.text("general.architecture"); arch != "gemma4") {
    file.refuse_key("general.architecture", "only 'gemma4' is implemented");
  }
  const Settings s(file);
  ModelConfig c;
  c.name = std::string(file.find_text("general.name").value_or(""));
  c.layers = s.integer("block_count", 1, kMaxLayers);
  c.hidden = s.integer("embedding_length", 1);
  c.context = s.integer("context_length", 1);
  c.experts = s.integer("expert_count", 1, kMaxExperts);
  c.experts_used = s.integer("expert_used_count", 1, c.experts);
  c.expert_width = s.integer("expert_feed_forward_length", 1, INT_MAX / 2);
  c.eps = s.positive("attention.layer_norm_rms_epsilon");
  c.softcap = s.positive("final_logit_softcapping");
  s.must_be_zero("embedding_length_per_layer_input", true);
  s.must_be_zero("attention.shared_kv_layers", false);
  for (const char* name : {"rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"}) {
    const std::string k = Settings::key(name);
    if (file.has(k) && !(std::string_view(name) == "rope.scaling.type" && file.text(k) == "none")) {
      file.refuse_key(k, "RoPE scaling is not implemented");
    }
  }

  const auto head_dim = [&](const char* k_name, const char* v_name, const char* rope_name) {
    const int dim = s.integer(k_name, 2, 65536);
    if (dim % 2 != 0)
      file.refuse_key(Settings::key(k_name), "is odd; RoPE pairs the two halves of a head");
    for (const char* name : {v_name, rope_name}) {
      // The rotary width may be left out; it is the head's width.
      if (name == rope_name && !file.has(Settings::key(name))) continue;
      if (const int other = s.integer(name, 1); other != dim) {
        file.refuse_key(Settings::key(name),
                        "is " + std::to_string(other) + ", must equal " + Settings::key(k_name) +
                            ", " + std::to_string(dim));
      }
    }
    return dim;
  };
  const int global_dim =
      head_dim("attention.key_length", "attention.value_length", "rope.dimension_count");
  const int local_dim = head_dim(
      "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa");
  const float global_base = s.positive("rope.freq_base");
  const float local_base = s.positive("rope.freq_base_swa");
  const int window = s.integer("attention.sliding_window", 1);
  const std::vector<bool> local = s.local_pattern(c.layers);
  const std::vector<int> heads = s.per_layer("attention.head_count", c.layers, 1, 65536);
  const std::vector<int> kv_heads = s.per_layer("attention.head_count_kv", c.layers, 1, 65536);
  const std::vector<int> dense = s.per_layer("feed_forward_length", c.layers, 1);
  const std::size_t vocab = file.strings("tokenizer.ggml.tokens").size();
  if (vocab == 0) file.refuse_key("tokenizer.ggml.tokens", "an empty vocabulary");
  c.vocab = static_cast<int>(vocab);  // at most GgufFile::kMaxArrayElements

  TensorCheck tensors(file);
  const std::int64_t d = c.hidden;
  tensors.need("token_embd.weight", {d, c.vocab});
  c.tied_head = !tensors.has("output.weight");
  if (!c.tied_head) tensors.need("output.weight", {d, c.vocab});
  tensors.need_f32("output_norm.weight", {d});

  bool any_global = false;
  for (int i = 0; i < c.layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    LayerConfig l;
    l.is_local = local[at];
    l.heads = heads[at];
    l.kv_heads = kv_heads[at];
    l.head_dim = l.is_local ? local_dim : global_dim;
    l.rope_base = l.is_local ? local_base : global_base;
    l.rope_factors = !l.is_local;
    l.window = l.is_local ? window : 0;
    l.dense_width = dense[at];
    any_global = any_global || !l.is_local;
    if (l.heads % l.kv_heads != 0) {
      file.refuse_key(Settings::key("attention.head_count_kv"),
                      "layer " + std::to_string(i) + ": " + std::to_string(l.heads) +
                          " query heads are not a multiple of " + std::to_string(l.kv_heads) +
                          " KV heads");
    }
    const std::int64_t q = std::int64_t{l.heads} * l.head_dim;
    const std::int64_t kv = std::int64_t{l.kv_heads} * l.head_dim;
    if (q > INT_MAX)
      file.refuse_key(Settings::key("attention.head_count"), "heads times head width overflow");
    const auto name = [&](const char* suffix) { return layer_tensor(i, suffix); };

    for (const char* norm : {"attn_norm.weight",
                             "post_attention_norm.weight",
                             "ffn_norm.weight",
                             "post_ffw_norm_1.weight",
                             "pre_ffw_norm_2.weight",
                             "post_ffw_norm_2.weight",
                             "post_ffw_norm.weight",
                             "ffn_gate_inp.scale"}) {
      tensors.need_f32(name(norm), {d});
    }
    tensors.need_f32(name("attn_q_norm.weight"), {l.head_dim});
    tensors.need_f32(name("attn_k_norm.weight"), {l.head_dim});
    tensors.need_f32(name("layer_output_scale.weight"), {1});
    tensors.need(name("attn_q.weight"), {d, q});
    tensors.need(name("attn_k.weight"), {d, kv});
    // Local layers always have V; in a global one V is K unless the file brings its own.
    l.has_v = l.is_local || tensors.has(name("attn_v.weight"));
    if (l.has_v) tensors.need(name("attn_v.weight"), {d, kv});
    tensors.need(name("attn_output.weight"), {q, d});

    tensors.need(name("ffn_gate.weight"), {d, l.dense_width});
    tensors.need(name("ffn_up.weight"), {d, l.dense_width});
    tensors.need(name("ffn_down.weight"), {l.dense_width, d});

    tensors.need_f32(name("ffn_gate_inp.weight"), {d, c.experts});
    tensors.need_f32(name("ffn_down_exps.scale"), {c.experts});
    l.fused_gate_up =
        tensors.has(name("ffn_gate_up_exps.weight")) || !tensors.has(name("ffn_gate_exps.weight"));
    if (l.fused_gate_up) {
      tensors.need(name("ffn_gate_up_exps.weight"),
                   {d, 2 * std::int64_t{c.expert_width}, c.experts});
    } else {
      tensors.need(name("ffn_gate_exps.weight"), {d, c.expert_width, c.experts});
      tensors.need(name("ffn_up_exps.weight"), {d, c.expert_width, c.experts});
    }
    tensors.need(name("ffn_down_exps.weight"), {c.expert_width, d, c.experts});
    c.layer.push_back(l);
  }
  // Only global layers use the divisors; a file without such layers may leave them out.
  if (any_global || tensors.has("rope_freqs.weight")) {
    const TensorInfo& t = tensors.need_f32("rope_freqs.weight", {global_dim / 2});
    const std::vector<float> factors = file.read_f32(t);
    for (std::size_t i = 0; i < factors.size(); ++i) {
      if (!(factors[i] > 0.0F)) {
        file.refuse_tensor(
            t, "value " + std::to_string(i) + " is not above 0; angles are divided by it", 4 * i);
      }
    }
  }
  tensors.finish(c.layers);
  return c;
}

}  // namespace assay
