#include "engine/model_config.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/gguf_writer.h"
#include "kernels/base/error.h"

namespace assay {
namespace {

// A two-layer model (local, global) described by data, so that each test changes one thing.
struct Setting {
  enum { kU32, kI32s, kBools, kF32, kText } kind = kU32;
  std::vector<double> values = {};
  std::string text = {};
};
struct Tensor {
  BlockType type;
  std::vector<std::int64_t> ne;
};
struct Model {
  std::map<std::string, Setting> settings;
  std::vector<std::pair<std::string, Tensor>> tensors;
  float rope_factor = 1.0F;

  Model() {
    const auto n = [&](const char* key, double v) {
      settings[std::string("gemma4.") + key] = {Setting::kU32, {v}};
    };
    const auto f = [&](const char* key, double v) {
      settings[std::string("gemma4.") + key] = {Setting::kF32, {v}};
    };
    settings["general.architecture"] = {Setting::kText, {}, "gemma4"};
    n("block_count", 2);
    n("context_length", 64);
    n("embedding_length", 64);
    n("feed_forward_length", 96);
    n("attention.head_count", 4);
    settings["gemma4.attention.head_count_kv"] = {Setting::kI32s, {2, 1}};
    settings["gemma4.attention.sliding_window_pattern"] = {Setting::kBools, {1, 0}};
    n("attention.key_length", 32);
    n("attention.value_length", 32);
    n("attention.key_length_swa", 16);
    n("attention.value_length_swa", 16);
    n("rope.dimension_count", 32);
    n("rope.dimension_count_swa", 16);
    n("attention.sliding_window", 8);
    n("attention.shared_kv_layers", 0);
    n("embedding_length_per_layer_input", 0);
    n("expert_count", 4);
    n("expert_used_count", 2);
    n("expert_feed_forward_length", 32);
    f("attention.layer_norm_rms_epsilon", 1e-6);
    f("rope.freq_base", 1e6);
    f("rope.freq_base_swa", 1e4);
    f("final_logit_softcapping", 30);
    add("token_embd.weight", {64, 5}, BlockType::kQ8_0);
    add("output_norm.weight", {64});
    add("rope_freqs.weight", {16});
    for (int i = 0; i < 2; ++i) {
      const std::int64_t hd = i == 0 ? 16 : 32;
      const std::int64_t kv = (i == 0 ? 2 : 1) * hd;
      const std::string b = "blk." + std::to_string(i) + ".";
      add(b + "attn_norm.weight", {64});
      add(b + "attn_q.weight", {64, 4 * hd}, BlockType::kQ4_0);
      add(b + "attn_k.weight", {64, kv}, BlockType::kQ4_0);
      if (i == 0) add(b + "attn_v.weight", {64, kv}, BlockType::kQ4_0);
      add(b + "attn_output.weight", {4 * hd, 64}, BlockType::kQ4_0);
      add(b + "attn_q_norm.weight", {hd});
      add(b + "attn_k_norm.weight", {hd});
      for (const char* norm : {"post_attention_norm",
                               "ffn_norm",
                               "post_ffw_norm_1",
                               "pre_ffw_norm_2",
                               "post_ffw_norm_2",
                               "post_ffw_norm"}) {
        add(b + norm + ".weight", {64});
      }
      add(b + "ffn_gate.weight", {64, 96}, BlockType::kQ4_0);
      add(b + "ffn_up.weight", {64, 96}, BlockType::kQ4_0);
      add(b + "ffn_down.weight", {96, 64}, BlockType::kQ4_0);
      add(b + "ffn_gate_inp.weight", {64, 4});
      add(b + "ffn_gate_inp.scale", {64});
      add(b + "ffn_gate_up_exps.weight", {64, 64, 4}, BlockType::kQ4_0);
      add(b + "ffn_down_exps.weight", {32, 64, 4}, BlockType::kQ4_0);
      add(b + "ffn_down_exps.scale", {4});
      add(b + "layer_output_scale.weight", {1});
    }
  }

  void add(const std::string& name,
           std::vector<std::int64_t> ne,
           BlockType type = BlockType::kF32) {
    tensors.emplace_back(name, Tensor{type, std::move(ne)});
  }
  Tensor& tensor(const std::string& name) {
    for (auto& [n, t] : tensors) {
      if (n == name) return t;
    }
    throw std::logic_error("no tensor " + name);
  }
  void remove(const std::string& name) {
    std::erase_if(tensors, [&](const auto& t) { return t.first == name; });
  }
  void set(const std::string& key, Setting s) { settings["gemma4." + key] = std::move(s); }
  void set(const std::string& key, double v) { set(key, Setting{Setting::kU32, {v}}); }
  void set_float(const std::string& key, double v) { set(key, Setting{Setting::kF32, {v}}); }

  ModelConfig config() const {
    GgufWriter w;
    for (const auto& [key, s] : settings) {
      switch (s.kind) {
        case Setting::kU32:
          w.add_u32(key, static_cast<std::uint32_t>(s.values[0]));
          break;
        case Setting::kF32:
          w.add_f32(key, static_cast<float>(s.values[0]));
          break;
        case Setting::kText:
          w.add_text(key, s.text);
          break;
        case Setting::kI32s: {
          std::vector<std::int32_t> v;
          for (const double x : s.values) v.push_back(static_cast<std::int32_t>(x));
          w.add_i32s(key, v);
          break;
        }
        case Setting::kBools: {
          std::vector<bool> v;
          for (const double x : s.values) v.push_back(x != 0);
          w.add_bools(key, v);
          break;
        }
      }
    }
    w.add_texts("tokenizer.ggml.tokens",
                std::vector<std::string>{"a", "b", "c", "<|turn>", "<turn|>"});
    for (const auto& [name, t] : tensors) {
      switch (t.ne.size()) {
        case 1:
          w.add_tensor(name, t.type, {t.ne[0]});
          break;
        case 2:
          w.add_tensor(name, t.type, {t.ne[0], t.ne[1]});
          break;
        default:
          w.add_tensor(name, t.type, {t.ne[0], t.ne[1], t.ne[2]});
      }
    }
    std::string bytes = w.head();
    bytes.resize(w.file_bytes(), '\0');
    for (const TensorInfo& t : w.tensors()) {
      if (t.name != "rope_freqs.weight") continue;
      for (std::uint64_t i = 0; i < t.bytes; i += 4)
        std::memcpy(bytes.data() + t.offset + i, &rope_factor, 4);
    }
    const std::string path = (std::filesystem::path(testing::TempDir()) /
                              ("assay_config_" + std::to_string(::getpid()) + "_" +
                               testing::UnitTest::GetInstance()->current_test_info()->name()))
                                 .string();
    std::ofstream(path, std::ios::binary) << bytes;
    struct Remove {
      std::string path;
      ~Remove() { std::filesystem::remove(path); }
    } const cleanup{path};
    return read_config(GgufFile::open(path));
  }
};

// The message must hold the name and a byte offset.
void refused(const Model& model, const std::string& name) {
  try {
    (void)model.config();
    ADD_FAILURE() << "accepted, expected a refusal of " << name;
  } catch (const InputError& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("'" + name + "'"), std::string::npos) << what;
    EXPECT_NE(what.find(" byte "), std::string::npos) << what;
  }
}

TEST(ModelConfig, ReadsTheShippedModel) {
  const GgufFile file =
      GgufFile::open(std::string(ASSAY_SOURCE_DIR "/engine/models/tiny-gemma4-moe-q4_0.gguf"));
  const ModelConfig c = read_config(file);
  EXPECT_EQ(c.layers, 12);
  EXPECT_EQ(c.hidden, 256);
  EXPECT_EQ(c.vocab, 4096);
  EXPECT_EQ(c.experts, 64);
  EXPECT_EQ(c.experts_used, 8);
  EXPECT_EQ(c.expert_width, 32);
  EXPECT_EQ(c.softcap, 30.0F);
  EXPECT_EQ(c.eps, 1e-6F);
  EXPECT_TRUE(c.tied_head);
  for (int i = 0; i < 12; ++i) {
    const LayerConfig& l = c.layer[static_cast<std::size_t>(i)];
    const bool global = i == 5 || i == 11;
    EXPECT_EQ(l.is_local, !global);
    EXPECT_EQ(l.heads, 4);
    EXPECT_EQ(l.kv_heads, global ? 1 : 2);
    EXPECT_EQ(l.head_dim, global ? 128 : 64);
    EXPECT_EQ(l.rope_base, global ? 1e6F : 1e4F);
    EXPECT_EQ(l.rope_factors, global);
    EXPECT_EQ(l.window, global ? 0 : 128);
    EXPECT_EQ(l.has_v, !global);
    EXPECT_TRUE(l.fused_gate_up);
    EXPECT_EQ(l.dense_width, 256);
  }
}

TEST(ModelConfig, ReadsTheTestModel) {
  const ModelConfig c = Model().config();
  EXPECT_EQ(c.layer[0].kv_heads, 2);
  EXPECT_EQ(c.layer[1].kv_heads, 1);
  EXPECT_EQ(c.layer[1].head_dim, 32);
  EXPECT_FALSE(c.layer[1].has_v);
}

TEST(ModelConfig, AcceptsScalarsAndArraysForPerLayerSettings) {
  Model m;
  m.set("attention.head_count", {Setting::kI32s, {4, 4}});
  m.set("feed_forward_length", {Setting::kI32s, {96, 64}});
  m.tensor("blk.1.ffn_gate.weight").ne = {64, 64};
  m.tensor("blk.1.ffn_up.weight").ne = {64, 64};
  m.tensor("blk.1.ffn_down.weight").ne = {64, 64};
  EXPECT_EQ(m.config().layer[1].dense_width, 64);

  Model scalar;
  scalar.set("attention.head_count_kv", 1);
  scalar.tensor("blk.0.attn_k.weight").ne = {64, 16};
  scalar.tensor("blk.0.attn_v.weight").ne = {64, 16};
  scalar.set("attention.sliding_window_pattern", 2);  // every second layer is global
  EXPECT_EQ(scalar.config().layer[0].kv_heads, 1);
  EXPECT_TRUE(scalar.config().layer[0].is_local);
  EXPECT_FALSE(scalar.config().layer[1].is_local);
}

TEST(ModelConfig, UsesTheVOfAGlobalLayerThatHasOne) {
  Model m;
  m.add("blk.1.attn_v.weight", {64, 32}, BlockType::kQ4_0);
  EXPECT_TRUE(m.config().layer[1].has_v);
  m.tensor("blk.1.attn_v.weight").ne = {64, 64};
  refused(m, "blk.1.attn_v.weight");
}

TEST(ModelConfig, AcceptsASeparateHeadAndSplitExperts) {
  Model m;
  m.add("output.weight", {64, 5}, BlockType::kQ8_0);
  m.remove("blk.1.ffn_gate_up_exps.weight");
  m.add("blk.1.ffn_gate_exps.weight", {64, 32, 4}, BlockType::kQ4_0);
  m.add("blk.1.ffn_up_exps.weight", {64, 32, 4}, BlockType::kQ4_0);
  const ModelConfig c = m.config();
  EXPECT_FALSE(c.tied_head);
  EXPECT_TRUE(c.layer[0].fused_gate_up);
  EXPECT_FALSE(c.layer[1].fused_gate_up);
  m.tensor("output.weight").ne = {64, 6};
  refused(m, "output.weight");
}

TEST(ModelConfig, RefusesBothLayoutsOfTheExpertsAtOnce) {
  Model m;
  m.add("blk.1.ffn_gate_exps.weight", {64, 32, 4}, BlockType::kQ4_0);
  refused(m, "blk.1.ffn_gate_exps.weight");
}

TEST(ModelConfig, EveryTensorIsNeededAtItsExactShape) {
  const Model sound;
  for (const auto& [name, tensor] : sound.tensors) {
    Model missing;
    missing.remove(name);
    refused(missing, name);
    for (std::size_t d = 0; d < tensor.ne.size(); ++d) {
      Model larger;
      larger.tensor(name).ne[d] += d == 0 ? 256 : 1;
      refused(larger, name);
    }
    Model deeper;
    deeper.tensor(name).ne.resize(3, 1);
    deeper.tensor(name).ne[2] += 1;
    refused(deeper, name);
    if (tensor.type == BlockType::kF32) {
      Model half;
      half.tensor(name).type = BlockType::kF16;
      refused(half, name);
    }
  }
}

TEST(ModelConfig, EverySettingIsNeeded) {
  const Model sound;
  for (const auto& [key, setting] : sound.settings) {
    if (key.find("shared_kv") != std::string::npos ||
        key.find("dimension_count") != std::string::npos)
      continue;
    Model m;
    m.settings.erase(key);
    refused(m, key);
  }
}

TEST(ModelConfig, RefusesSettingsOutOfRange) {
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, double>>{
           {"block_count", 0},
           {"block_count", 513},
           {"block_count", 2147483648.0},
           {"expert_used_count", 0},
           {"expert_used_count", 5},
           {"attention.sliding_window", 0},
           {"attention.value_length", 16},
           {"attention.value_length_swa", 32},
           {"rope.dimension_count", 8},
           {"rope.dimension_count_swa", 8},
           {"context_length", 0},
           {"embedding_length_per_layer_input", 8},
           {"attention.shared_kv_layers", 1},
           {"attention.head_count_kv", 0},
           {"expert_feed_forward_length", 0}}) {
    Model m;
    m.set(key, value);
    refused(m, std::string("gemma4.") + key);
  }
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const char* key : {"attention.layer_norm_rms_epsilon",
                          "rope.freq_base",
                          "rope.freq_base_swa",
                          "final_logit_softcapping"}) {
    for (const double bad : {0.0, -1.0, kNan, kInf, -kInf}) {
      Model m;
      m.set_float(key, bad);
      refused(m, std::string("gemma4.") + key);
    }
  }
  Model odd;
  odd.set("attention.key_length", 31);
  refused(odd, "gemma4.attention.key_length");
}

TEST(ModelConfig, RefusesHeadsThatKvHeadsDoNotDivide) {
  Model m;
  m.set("attention.head_count_kv", {Setting::kI32s, {3, 1}});
  refused(m, "gemma4.attention.head_count_kv");
}

TEST(ModelConfig, RefusesArraysOfAnotherLength) {
  for (const std::vector<double>& v :
       {std::vector<double>{1}, std::vector<double>{1, 1, 1}, std::vector<double>{}}) {
    Model m;
    m.set("attention.head_count_kv", {Setting::kI32s, v});
    refused(m, "gemma4.attention.head_count_kv");
    Model p;
    p.set("attention.sliding_window_pattern", {Setting::kBools, v});
    refused(p, "gemma4.attention.sliding_window_pattern");
  }
}

// Each pair of a setting and the tensor whose shape contradicts it.
TEST(ModelConfig, RefusesShapesThatContradictTheSettings) {
  for (const auto& [key, value, tensor] :
       std::initializer_list<std::tuple<const char*, double, const char*>>{
           {"embedding_length", 32, "token_embd.weight"},
           {"expert_count", 8, "blk.0.ffn_gate_inp.weight"},
           {"expert_feed_forward_length", 16, "blk.0.ffn_gate_up_exps.weight"},
           {"feed_forward_length", 64, "blk.0.ffn_gate.weight"},
           {"attention.head_count", 8, "blk.0.attn_q.weight"},
           {"block_count", 1, "gemma4.attention.sliding_window_pattern"}}) {
    Model m;
    m.set(key, value);
    refused(m, tensor);
  }
}

TEST(ModelConfig, RefusesLayersPastTheCountAndTensorsItDoesNotKnow) {
  for (const char* name : {"blk.2.attn_norm.weight",
                           "blk.00.attn_norm.weight",
                           "blk.0.attn_q.bias",
                           "per_layer_model_proj.weight"}) {
    Model m;
    m.add(name, {64});
    refused(m, name);
  }
  Model towers;
  towers.add("v.blk.0.attn_q.weight", {64});
  towers.add("mm.input_projection.weight", {64});
  EXPECT_NO_THROW(towers.config()) << "another modality's tower does not touch the text pass";
}

TEST(ModelConfig, RefusesOtherArchitectures) {
  Model m;
  m.settings["general.architecture"].text = "llama";
  refused(m, "general.architecture");
}

TEST(ModelConfig, RefusesRopeDivisorsThatAreNotPositiveNumbers) {
  for (const float bad : {0.0F,
                          -1.0F,
                          std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    Model m;
    m.rope_factor = bad;
    refused(m, "rope_freqs.weight");
  }
}

}  // namespace
}  // namespace assay
