// The architecture's traps (docs/traps.md), each with a test of its own: the right formula must fit and, where there is a
// well-known wrong one, the wrong one must not, so that the test is known to see the difference. What is compared with is
// rebuilt here in double from the file's weights; nothing of the engine's arithmetic is reused.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "gtest/gtest.h"
#include <unistd.h>

#include "engine/forward.h"
#include "engine/gguf.h"
#include "engine/tokenizer.h"
#include "kernels/attention_decode/op.h"
#include "kernels/attention_prefill/op.h"
#include "kernels/base/blocks.h"
#include "kernels/base/error.h"
#include "kernels/base/measure.h"
#include "kernels/base/program.h"
#include "kernels/base/registry.h"

namespace assay {
namespace {

const std::string kModel = ASSAY_SOURCE_DIR "/engine/models/tiny-gemma4-moe-q4_0.gguf";
constexpr int kLocal = 0;   // a local layer
constexpr int kGlobal = 5;  // the first global one: no attn_v, its own RoPE
constexpr double kNear = 2e-6;
constexpr double kFar = 1e-3;

std::size_t z(int n) { return static_cast<std::size_t>(n); }
using Row = std::vector<double>;

double distance(std::span<const float> got, const Row& want) { return rel_l2(got, want); }

// The shipped model with some tensors' bytes changed, in a temporary file that lives as long as this object.
class EditedModel {
 public:
  using Edit = std::function<void(std::span<std::byte>)>;
  explicit EditedModel(const std::map<std::string, Edit>& edits)
      : path_(testing::TempDir() + "/traps_" + std::to_string(::getpid()) + "_" +
              std::to_string(made++) + ".gguf") {
    std::string bytes = read_file(kModel);
    const GgufFile file = GgufFile::open(kModel);
    for (const auto& [name, edit] : edits) {
      const TensorInfo& t = file.tensor(name);
      edit({reinterpret_cast<std::byte*>(bytes.data()) + t.offset,
            static_cast<std::size_t>(t.bytes)});
    }
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~EditedModel() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  EditedModel(const EditedModel&) = delete;
  EditedModel& operator=(const EditedModel&) = delete;
  const std::string& path() const { return path_; }

  // Element i of a F32 tensor becomes f(i, value).
  static Edit floats(const std::function<float(std::size_t, float)>& f) {
    return [f](std::span<std::byte> bytes) {
      for (std::size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
        float v = 0.0F;
        std::memcpy(&v, bytes.data() + i * sizeof v, sizeof v);
        v = f(i, v);
        std::memcpy(bytes.data() + i * sizeof v, &v, sizeof v);
      }
    };
  }
  static Edit zero() {
    return [](std::span<std::byte> bytes) { std::memset(bytes.data(), 0, bytes.size()); };
  }

 private:
  static inline int made = 0;
  std::string path_;
};

// Ids that repeat nothing and stay clear of special tokens.
std::vector<TokenId> some_ids(int n) {
  std::vector<TokenId> ids;
  for (int i = 0; i < n; ++i) ids.push_back(300 + (i * 577) % 3700);
  return ids;
}

// One run's stages ("5.router_ids" -> rows) and cache.
class Watched {
 public:
  Watched(const std::string& path, const std::vector<TokenId>& ids, const Selection& selection = {})
      : ids_(ids), model_(path, settings(ids, selection)), session_(model_) {
    SessionHooks hooks;
    hooks.stage = [this](const StageChunk& c) {
      auto& rows = stages_[std::to_string(c.layer) + "." + c.name];
      rows.insert(rows.end(), c.data, c.data + static_cast<std::ptrdiff_t>(c.tokens) * c.width);
    };
    session_.set_hooks(hooks);
    const auto last = session_.feed(ids);
    logits_.assign(last.begin(), last.end());
  }

  const std::vector<float>& stage(int layer, const std::string& name) const {
    return stages_.at(std::to_string(layer) + "." + name);
  }
  std::span<const float> row(int layer, const std::string& name, int token) const {
    const auto& all = stage(layer, name);
    const std::size_t width = all.size() / ids_.size();
    return std::span(all).subspan(z(token) * width, width);
  }
  std::span<const float> key(int layer, int position) const {
    return {session_.cache().key_row(layer, position).f32, z(session_.cache().width(layer))};
  }
  std::span<const float> value(int layer, int position) const {
    return {session_.cache().value_row(layer, position).f32, z(session_.cache().width(layer))};
  }
  const ModelConfig& config() const { return model_.config(); }
  const std::vector<TokenId>& ids() const { return ids_; }
  const std::vector<float>& logits() const { return logits_; }

 private:
  static ModelSettings settings(const std::vector<TokenId>& ids, const Selection& selection) {
    ModelSettings s;
    s.threads = 2;
    s.context = static_cast<int>(ids.size());
    s.selection = selection;
    return s;
  }

  std::vector<TokenId> ids_;
  std::map<std::string, std::vector<float>> stages_;
  Model model_;
  Session session_;
  std::vector<float> logits_;
};

const GgufFile& file() {
  static const GgufFile f = GgufFile::open(kModel);
  return f;
}
// The first `rows` rows from row `first` of a tensor, dequantised.
Row weights(const std::string& name, std::int64_t first = 0, std::int64_t rows = -1) {
  const TensorInfo& t = file().tensor(name);
  if (rows < 0) rows = t.rows();
  const std::size_t row_size = t.bytes / static_cast<std::size_t>(t.rows());
  std::vector<std::byte> bytes(row_size * static_cast<std::size_t>(rows));
  file().read_tensor(t, row_size * static_cast<std::size_t>(first), bytes);
  std::vector<float> values(static_cast<std::size_t>(rows * t.ne[0]));
  dequantize(t.type, bytes.data(), values.size(), values.data());
  return {values.begin(), values.end()};
}
Row of_layer(int layer, const char* suffix) { return weights(layer_tensor(layer, suffix)); }

Row to_double(std::span<const float> x) { return {x.begin(), x.end()}; }
Row rms(const Row& x) {
  double sum = 0.0;
  for (const double v : x) sum += v * v;
  const double r = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + 1e-6);
  Row y;
  for (const double v : x) y.push_back(v * r);
  return y;
}
Row times(Row x, const Row& w, double added = 0.0) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= w[i] + added;
  return x;
}
Row plus(Row x, const Row& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  return x;
}
Row scaled(Row x, double s) {
  for (double& v : x) v *= s;
  return x;
}
// W x, W row-major.
Row product(const Row& w, const Row& x) {
  Row y(w.size() / x.size());
  for (std::size_t r = 0; r < y.size(); ++r) {
    for (std::size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
  }
  return y;
}

// Layer 0's residuals in double, from the embedding and the engine's branch outputs.
struct LayerZero {
  double embedding_scale = 16.0;  // sqrt(256)
  double norm_plus = 0.0;
  bool norm_sum = true;
  bool scale_residual = true;

  Row input(const Watched& run, int token) const {
    return scaled(weights("token_embd.weight", run.ids()[z(token)], 1), embedding_scale);
  }
  Row mid(const Watched& run, int token) const {
    const Row attention = to_double(run.row(0, "attn_out", token));
    return plus(input(run, token),
                times(rms(attention), of_layer(0, "post_attention_norm.weight"), norm_plus));
  }
  Row output(const Watched& run, int token) const {
    const Row dense = times(rms(to_double(run.row(0, "dense_out", token))),
                            of_layer(0, "post_ffw_norm_1.weight"),
                            norm_plus);
    const Row routed = times(rms(to_double(run.row(0, "experts_out", token))),
                             of_layer(0, "post_ffw_norm_2.weight"),
                             norm_plus);
    Row update = plus(dense, routed);
    if (norm_sum) update = times(rms(update), of_layer(0, "post_ffw_norm.weight"), norm_plus);
    const double scale = of_layer(0, "layer_output_scale.weight")[0];
    const Row h = mid(run, token);
    return scale_residual ? scaled(plus(h, update), scale) : plus(h, scaled(update, scale));
  }
};

const Watched& short_run() {
  static const Watched run(kModel, some_ids(20));
  return run;
}
double layer_zero_distance(const LayerZero& formula) {
  double worst_distance = 0.0;
  for (const int token : {0, 7, 19}) {
    worst_distance =
        worse(worst_distance,
              distance(short_run().row(0, "layer_out", token), formula.output(short_run(), token)));
  }
  return worst_distance;
}

TEST(Traps, NormsMultiplyByThePlainWeight) {  // 1
  const Row x = LayerZero{}.input(short_run(), 3);
  const auto got = short_run().row(0, "attn_norm", 3);
  const Row w = of_layer(0, "attn_norm.weight");
  EXPECT_LE(distance(got, times(rms(x), w)), kNear);
  EXPECT_GT(distance(got, times(rms(x), w, 1.0)), kFar);
  EXPECT_LE(layer_zero_distance({}), kNear);
  EXPECT_GT(layer_zero_distance({.norm_plus = 1.0}), kFar);
}

TEST(Traps, ScoresAreNotDividedBySqrtOfTheHead) {  // 2
  // Scores ln 3 and 0: weights 3/4 and 1/4, were they halved (head 4), 0.634.
  alignas(64) const float q[4] = {1.0F, 0.0F, 0.0F, 0.0F};
  alignas(64) const float k[8] = {std::log(3.0F), 0, 0, 0, 0, 0, 0, 0};
  alignas(64) const float v[8] = {1.0F, 0, 0, 0, 0, 0, 0, 0};
  alignas(64) float o[4] = {};
  const AttentionDecode::Shape shape{
      .heads = 1, .kv_heads = 1, .head_dim = 4, .position = 1, .keys = 2, .slots = 2};
  std::vector<std::byte> scratch(AttentionDecode::workspace_bytes(shape) + 256);
  variants<AttentionDecode>()[0].variant->host.fn(
      shape, {q, {.f32 = k}, {.f32 = v}, o}, {scratch.data(), scratch.size()}, {});
  EXPECT_NEAR(o[0], 0.75F, 1e-6F);
}

TEST(Traps, ValuesHaveUnitMeanSquareInEveryLayer) {  // 3
  const Watched& run = short_run();
  for (int layer = 0; layer < run.config().layers; ++layer) {
    const int hd = run.config().layer[z(layer)].head_dim;
    for (const int position : {0, 19}) {
      const auto v = run.value(layer, position);
      for (std::size_t h = 0; h < v.size() / z(hd); ++h) {
        double sum = 0.0;
        for (const float x : v.subspan(h * z(hd), z(hd))) sum += static_cast<double>(x) * x;
        EXPECT_NEAR(sum / hd, 1.0, 1e-3) << "layer " << layer << ", head " << h;
      }
    }
  }
}

TEST(Traps, ValuesOfAGlobalLayerAreKeysBeforeTheirNormAndRotation) {  // 4, 5
  const std::string k_norm = layer_tensor(kGlobal, "attn_k_norm.weight");
  const EditedModel doubled(
      {{k_norm, EditedModel::floats([](std::size_t, float w) { return 2.0F * w; })}});
  const EditedModel still(
      {{"rope_freqs.weight", EditedModel::floats([](std::size_t, float) { return 1e30F; })}});
  const Watched& plain = short_run();
  const Watched k_twice(doubled.path(), some_ids(20));
  const Watched unrotated(still.path(), some_ids(20));
  for (const int position : {0, 19}) {
    const auto k = plain.key(kGlobal, position);
    const auto v = plain.value(kGlobal, position);
    const auto same = [&](std::span<const float> other) {
      return std::memcmp(other.data(), v.data(), v.size_bytes()) == 0;
    };
    EXPECT_TRUE(same(k_twice.value(kGlobal, position))) << "V follows K's norm";
    EXPECT_TRUE(same(unrotated.value(kGlobal, position))) << "V is rotated";
    EXPECT_FALSE(same(k)) << "V is the cached K";
    EXPECT_LE(distance(k_twice.key(kGlobal, position), scaled(to_double(k), 2.0)), 1e-6);
  }
  EXPECT_GT(distance(unrotated.key(kGlobal, 19), to_double(plain.key(kGlobal, 19))), kFar);
}

TEST(Traps, TheRouterSeesNeitherTheExpertsNormNorTheDenseOne) {  // 6
  const auto change =
      EditedModel::floats([](std::size_t i, float w) { return w * (i % 2 == 0 ? 3.0F : 0.2F); });
  const EditedModel edited({{layer_tensor(kLocal, "pre_ffw_norm_2.weight"), change},
                            {layer_tensor(kLocal, "ffn_norm.weight"), change}});
  const Watched run(edited.path(), some_ids(20));
  EXPECT_EQ(run.stage(kLocal, "router_probs"), short_run().stage(kLocal, "router_probs"));
  EXPECT_NE(run.stage(kLocal, "experts_out"), short_run().stage(kLocal, "experts_out"));
  EXPECT_NE(run.stage(kLocal, "dense_out"), short_run().stage(kLocal, "dense_out"));
}

// Router logits of layer 0 in double; `power`: how often the input is divided by sqrt(hidden).
Row router_logits(const Watched& run, int token, int power) {
  const Row h = LayerZero{}.mid(run, token);
  const Row in = scaled(times(rms(h), of_layer(0, "ffn_gate_inp.scale")),
                        std::pow(static_cast<double>(h.size()), -0.5 * power));
  return product(of_layer(0, "ffn_gate_inp.weight"), in);
}
Row softmax(Row x) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0.0;
  for (double& v : x) sum += v = std::exp(v - top);
  return scaled(std::move(x), 1.0 / sum);
}

TEST(Traps, TheRoutersInputIsDividedBySqrtOfHiddenOnce) {  // 7
  for (const int token : {0, 11}) {
    const auto got = short_run().row(0, "router_probs", token);
    EXPECT_LE(distance(got, softmax(router_logits(short_run(), token, 1))), 1e-5);
    EXPECT_GT(distance(got, softmax(router_logits(short_run(), token, 0))), kFar);
    EXPECT_GT(distance(got, softmax(router_logits(short_run(), token, 2))), kFar);
  }
}

TEST(Traps, OneScaleIsPerInputAndTheOtherPerExpert) {  // 8
  const auto expert = static_cast<std::size_t>(short_run().row(kLocal, "router_ids", 4)[0]);
  const EditedModel edited(
      {{layer_tensor(kLocal, "ffn_down_exps.scale"),
        EditedModel::floats([&](std::size_t i, float s) { return i == expert ? 4.0F * s : s; })}});
  const Watched run(edited.path(), some_ids(20));
  EXPECT_EQ(run.stage(kLocal, "router_probs"), short_run().stage(kLocal, "router_probs"));
  EXPECT_EQ(run.stage(kLocal, "router_ids"), short_run().stage(kLocal, "router_ids"));
  const auto& ids = run.stage(kLocal, "router_ids");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const float before = short_run().stage(kLocal, "router_weights")[i];
    const float factor = static_cast<std::size_t>(ids[i]) == expert ? 4.0F : 1.0F;
    EXPECT_EQ(run.stage(kLocal, "router_weights")[i], factor * before) << "slot " << i;
  }
}

TEST(Traps, ChosenWeightsSumToOneBeforeTheExpertScaleAndNotAfter) {  // 9, 10
  const Row scale = of_layer(kLocal, "ffn_down_exps.scale");
  double furthest = 0.0;
  for (int token = 0; token < 20; ++token) {
    const auto ids = short_run().row(kLocal, "router_ids", token);
    const auto w = short_run().row(kLocal, "router_weights", token);
    double before = 0.0;
    double after = 0.0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      before += w[i] / scale[static_cast<std::size_t>(ids[i])];
      after += w[i];
    }
    EXPECT_NEAR(before, 1.0, 1e-5) << "token " << token;
    furthest = std::max(furthest, std::abs(after - 1.0));
  }
  EXPECT_GT(furthest, kFar) << "the shipped model's expert scales are not all one";
}

TEST(Traps, TheRoutedBranchDoesNotSeeTheDenseOne) {  // 11
  const EditedModel edited({{layer_tensor(kLocal, "ffn_down.weight"), EditedModel::zero()}});
  const Watched run(edited.path(), some_ids(20));
  EXPECT_EQ(run.stage(kLocal, "experts_out"), short_run().stage(kLocal, "experts_out"));
  EXPECT_EQ(run.stage(kLocal, "router_ids"), short_run().stage(kLocal, "router_ids"));
  for (const float x : run.stage(kLocal, "dense_out")) ASSERT_EQ(x, 0.0F);
}

TEST(Traps, TheSumOfBothBranchesIsNormed) {  // 12
  EXPECT_LE(layer_zero_distance({}), kNear);
  EXPECT_GT(layer_zero_distance({.norm_sum = false}), kFar);
}

TEST(Traps, TheLayerScaleMultipliesResidualAndUpdate) {  // 13
  EXPECT_GT(layer_zero_distance({.scale_residual = false}), kFar);
  const EditedModel edited({{layer_tensor(kLocal, "layer_output_scale.weight"),
                             EditedModel::floats([](std::size_t, float s) { return 0.5F * s; })}});
  const Watched run(edited.path(), some_ids(20));
  const auto& whole = short_run().stage(kLocal, "layer_out");
  const auto& half = run.stage(kLocal, "layer_out");
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(half[i], 0.5F * whole[i]);
}

TEST(Traps, GateIsTheFirstHalfOfTheFusedTensor) {  // 14, 15
  const Watched& run = short_run();
  const int width = run.config().expert_width;
  const int hidden = run.config().hidden;
  const auto experts_out = [&](int token, bool swapped, bool silu) {
    const Row m = times(rms(LayerZero{}.mid(run, token)), of_layer(0, "pre_ffw_norm_2.weight"));
    const auto ids = run.row(0, "router_ids", token);
    const auto w = run.row(0, "router_weights", token);
    Row out(z(hidden));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto e = static_cast<std::int64_t>(ids[i]);
      const auto half = [&](int which) {
        return product(weights("blk.0.ffn_gate_up_exps.weight", (2 * e + which) * width, width), m);
      };
      const Row gate = half(swapped ? 1 : 0);
      const Row up = half(swapped ? 0 : 1);
      Row u;
      for (std::size_t f = 0; f < gate.size(); ++f) {
        const double g = gate[f];
        const double tanh_gelu =
            0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * g * (1.0 + 0.044715 * g * g)));
        u.push_back((silu ? g / (1.0 + std::exp(-g)) : tanh_gelu) * up[f]);
      }
      const Row y = product(weights("blk.0.ffn_down_exps.weight", e * hidden, hidden), u);
      out = plus(out, scaled(y, w[i]));
    }
    return out;
  };
  for (const int token : {0, 13}) {
    const auto got = run.row(0, "experts_out", token);
    EXPECT_LE(distance(got, experts_out(token, false, false)), kNear);
    EXPECT_GT(distance(got, experts_out(token, true, false)), kFar);
    EXPECT_GT(distance(got, experts_out(token, false, true)), kFar);
  }
}

// How a key is rotated.
struct Rotation {
  double base = 0.0;
  int exponent = 0;          // denominator of the exponent
  int rotated = 0;           // pairs that rotate; the others are copied
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + half)
};
Row rotated(Row x, int position, const Rotation& r) {
  const std::size_t half = x.size() / 2;
  for (std::size_t i = 0; i < z(r.rotated); ++i) {
    const std::size_t a = r.interleaved ? 2 * i : i;
    const std::size_t b = r.interleaved ? 2 * i + 1 : i + half;
    const double theta = position * std::pow(r.base, -2.0 * static_cast<double>(i) / r.exponent);
    const double c = std::cos(theta);
    const double s = std::sin(theta);
    const double x_a = x[a];
    x[a] = x_a * c - x[b] * s;
    x[b] = x[b] * c + x_a * s;
  }
  return x;
}

TEST(Traps, KeysAreRotatedByTheirLayersOwnRule) {  // 16, 17, 18, 19
  const Watched run(kModel, some_ids(230));
  const auto furthest = [&](int layer, const Rotation& rule) {
    const int hd = run.config().layer[z(layer)].head_dim;
    double worst_distance = 0.0;
    for (const int position : {128, 199, 229}) {  // still in the ring of a local layer
      const Row normed = to_double(run.row(layer, "k_normed", position));
      const auto got = run.key(layer, position);
      for (std::size_t at = 0; at < normed.size(); at += z(hd)) {
        const Row head(normed.begin() + static_cast<std::ptrdiff_t>(at),
                       normed.begin() + static_cast<std::ptrdiff_t>(at) + hd);
        worst_distance =
            worse(worst_distance, distance(got.subspan(at, z(hd)), rotated(head, position, rule)));
      }
    }
    return worst_distance;
  };
  const Rotation local{.base = 1e4, .exponent = 64, .rotated = 32};
  EXPECT_LE(furthest(kLocal, local), kNear);
  EXPECT_GT(furthest(kLocal, {1e6, 64, 32}), kFar) << "the other base";
  EXPECT_GT(furthest(kLocal, {1e4, 64, 32, true}), kFar) << "interleaved pairs";
  EXPECT_GT(furthest(kLocal, {1e4, 64, 8}), kFar) << "factors in a local layer";
  const Rotation global{.base = 1e6, .exponent = 128, .rotated = 16};
  EXPECT_LE(furthest(kGlobal, global), kNear);
  EXPECT_GT(furthest(kGlobal, {1e4, 128, 16}), kFar) << "the other base";
  EXPECT_GT(furthest(kGlobal, {1e6, 32, 16}), kFar) << "the rotated width in the exponent";
  EXPECT_GT(furthest(kGlobal, {1e6, 128, 64}), kFar) << "factors ignored";
  EXPECT_GT(furthest(kGlobal, {1e6, 128, 16, true}), kFar) << "interleaved pairs";
}

TEST(Traps, AWindowOfEightSeesTheTokenAndSevenBeforeIt) {  // 20
  constexpr int kTokens = 20;
  constexpr int kQuery = 15;
  const AttentionPrefill::Shape shape{
      .tokens = kTokens, .heads = 1, .kv_heads = 1, .head_dim = 4, .slots = 8, .window = 8};
  std::vector<std::byte> scratch(AttentionPrefill::workspace_bytes(shape) + 256);
  const auto output = [&](int changed) {
    alignas(64) float q[kTokens * 4];
    alignas(64) float k[kTokens * 4];
    alignas(64) float v[kTokens * 4];
    alignas(64) float past[8 * 4] = {};
    alignas(64) float o[kTokens * 4] = {};
    for (int i = 0; i < kTokens * 4; ++i) {
      q[i] = 0.1F * static_cast<float>(i % 7);
      k[i] = 0.1F * static_cast<float>(i % 5);
      v[i] = static_cast<float>(i % 11);
    }
    if (changed >= 0) k[changed * 4 + 1] += 1.0F;
    variants<AttentionPrefill>()[0].variant->host.fn(
        shape,
        {q, {.f32 = past}, {.f32 = past}, {.f32 = k}, {.f32 = v}, o},
        {scratch.data(), scratch.size()},
        {});
    return std::vector<float>(o + kQuery * 4, o + kQuery * 4 + 4);
  };
  const auto plain = output(-1);
  EXPECT_NE(output(kQuery - 7), plain) << "the oldest visible key does not matter";
  EXPECT_EQ(output(kQuery - 8), plain) << "a key outside the window matters";
  EXPECT_EQ(output(kQuery + 1), plain) << "a key of the future matters";
}

TEST(Traps, KvHeadsAndHeadSizesAreReadPerLayer) {  // 22
  const ModelConfig& c = short_run().config();
  EXPECT_EQ(c.layer[z(kLocal)].kv_heads, 2);
  EXPECT_EQ(c.layer[z(kLocal)].head_dim, 64);
  EXPECT_EQ(c.layer[z(kGlobal)].kv_heads, 1);
  EXPECT_EQ(c.layer[z(kGlobal)].head_dim, 128);
}

TEST(Traps, ConsecutiveQueryHeadsShareAKvHead) {  // 23
  // One key: each query head returns the value row of its KV head whatever the scores are.
  alignas(64) const float q[4 * 4] = {};
  alignas(64) const float k[2 * 4] = {};
  alignas(64) const float v[2 * 4] = {10, 10, 10, 10, 20, 20, 20, 20};
  alignas(64) float o[4 * 4] = {};
  const AttentionDecode::Shape shape{
      .heads = 4, .kv_heads = 2, .head_dim = 4, .position = 0, .keys = 1, .slots = 1};
  std::vector<std::byte> scratch(AttentionDecode::workspace_bytes(shape) + 256);
  variants<AttentionDecode>()[0].variant->host.fn(
      shape, {q, {.f32 = k}, {.f32 = v}, o}, {scratch.data(), scratch.size()}, {});
  EXPECT_EQ((std::vector<float>{o[0], o[4], o[8], o[12]}), (std::vector<float>{10, 10, 20, 20}));
}

TEST(Traps, TheEmbeddingIsScaledBySqrtOfHidden) {  // 24
  EXPECT_LE(layer_zero_distance({}), kNear);
  EXPECT_GT(layer_zero_distance({.embedding_scale = 1.0}), kFar);
}

TEST(Traps, LogitsAreCappedAfterTheHead) {  // 25
  const Watched& run = short_run();
  const int last = run.config().layers - 1;
  const Row x = to_double(run.row(last, "layer_out", 19));
  const Row head_in = times(rms(x), weights("output_norm.weight"));
  Row want = product(weights("token_embd.weight"), head_in);
  const double before = distance(run.logits(), want);
  for (double& l : want) l = 30.0 * std::tanh(l / 30.0);
  EXPECT_LE(distance(run.logits(), want), kNear);
  EXPECT_GT(before, kFar);
}

TEST(Traps, AQ4BlockHoldsElementsJAndJPlus16InOneByte) {  // 26
  // d = 0.5 (half 0x3800); byte j: low nibble j, high nibble 15 - j.
  std::byte block[18] = {std::byte{0x00}, std::byte{0x38}};
  for (int j = 0; j < 16; ++j) block[2 + j] = static_cast<std::byte>(j | ((15 - j) << 4));
  float got[32];
  dequantize(BlockType::kQ4_0, block, 32, got);
  for (int j = 0; j < 16; ++j) {
    EXPECT_EQ(got[j], 0.5F * static_cast<float>(j - 8)) << j;
    EXPECT_EQ(got[j + 16], 0.5F * static_cast<float>(7 - j)) << j + 16;
  }
}

TEST(Traps, AMergeMustJoinTwoTokensIntoAToken) {  // 31
  // Split at the wrong space, or read line by line, a merge's parts or its result are no tokens: the loader asks.
  const auto with_merge = [](const std::string& text) {
    std::string bytes = read_file(kModel);
    const std::string merge = "\xE2\x96\x81t he";  // the ninth merge, seven bytes
    const std::size_t at = bytes.find(std::string("\x07\0\0\0\0\0\0\0", 8) + merge);
    EXPECT_NE(at, std::string::npos);
    bytes.replace(at + 8, merge.size(), text);
    const std::string path = testing::TempDir() + "/merge_" + std::to_string(::getpid());
    std::ofstream(path, std::ios::binary) << bytes;
    std::string refusal;
    try {
      Tokenizer::load(GgufFile::open(path));
    } catch (const InputError& e) {
      refusal = e.what();
    }
    std::filesystem::remove(path);
    return refusal;
  };
  EXPECT_EQ(with_merge("\xE2\x96\x81t he"), "");
  for (const char* wrong : {"\xE2\x96\x81t hz", "\xE2\x96\x81t\nhe", "\xE2\x96\x81the "}) {
    EXPECT_NE(with_merge(wrong).find("tokenizer.ggml.merges"), std::string::npos) << wrong;
  }
}

TEST(Traps, TheRouterChoosesWhatDoublePrecisionChooses) {  // 36
  // Over 1,000 tokens of layer 0; only where ranks 8 and 9 are closer than float32 can tell may the sets differ. The
  // probabilities are compared too: half precision moves them by a hundred times the bound, but swaps few sets.
  Selection selection;  // variants that promise stock's bits, so that the test is quick
  for (const char* op : {"gemm_quant", "experts_prefill"}) {
    selection.choices[op] = {.variant = "avx2", .source = "switch"};
  }
  const Watched run(kModel, some_ids(1024), selection);
  const Row w = of_layer(0, "ffn_gate_inp.weight");
  int differ = 0;
  for (int token = 0; token < 1024; ++token) {
    const Row logits = router_logits(run, token, 1);
    ASSERT_LE(distance(run.row(0, "router_probs", token), softmax(logits)), 1e-5) << token;
    std::vector<std::size_t> order(logits.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
    const std::set<std::size_t> want(order.begin(), order.begin() + 8);
    std::set<std::size_t> got;
    for (const float id : run.row(0, "router_ids", token)) got.insert(static_cast<std::size_t>(id));
    if (got == want) continue;
    ++differ;
    EXPECT_LT(logits[order[7]] - logits[order[8]], 1e-5) << "token " << token;
  }
  EXPECT_LE(differ, 5);
}

}  // namespace
}  // namespace assay
