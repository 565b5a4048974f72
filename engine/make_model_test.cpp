#include "engine/make_model.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "engine/model_config.h"
#include "engine/tokenizer.h"
#include "kernels/base/error.h"
#include "kernels/base/sha256.h"

namespace assay {
namespace {

std::string temporary(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) / ("assay_make_model_" + name + ".gguf"))
      .string();
}
std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
struct Made {
  explicit Made(const MakeModelOptions& options, int threads = 2)
      : path(temporary(options.preset + "_" + options.type)) {
    make_model(options, path, threads);
  }
  ~Made() { std::filesystem::remove(path); }
  std::string path;
};

void expect_sound(const MakeModelOptions& options) {
  const Made made(options);
  const GgufFile file = GgufFile::open(made.path);
  const ModelConfig config = read_config(file);
  const Tokenizer tokenizer = Tokenizer::load(file);
  EXPECT_EQ(tokenizer.vocab_size(), config.vocab);
  EXPECT_EQ(file.file_bytes(), describe_model(options).file_bytes());
  std::vector<std::byte> bytes;
  for (const TensorInfo& t : file.tensors()) {
    bytes.resize(t.bytes);
    file.read_finite_tensor(t, bytes);
    // The first values of each tensor are enough for its spread; the check above has seen all scales.
    std::vector<float> values(
        static_cast<std::size_t>(std::min<std::int64_t>(t.elements(), 32768)));
    dequantize(t.type, bytes.data(), values.size(), values.data());
    double square = 0.0;
    for (const float v : values) {
      ASSERT_TRUE(std::isfinite(v)) << t.name;
      square += static_cast<double>(v) * static_cast<double>(v);
    }
    const double rms = std::sqrt(square / static_cast<double>(values.size()));
    if (t.name.ends_with("_exps.weight") || t.name.find("attn_q.w") != std::string::npos) {
      EXPECT_NEAR(rms * std::sqrt(static_cast<double>(t.ne[0])), 1.0, 0.15) << t.name;
    }
    if (t.type == BlockType::kF32 && t.ne[0] > 8 && t.name != "rope_freqs.weight") {
      EXPECT_NE(values[0], values[1]) << t.name << " is trivial";
    }
  }
}

TEST(MakeModel, EveryTypeOfTheSpecPresetOpensAndIsFinite) {
  for (const std::string& type : make_model_types()) {
    SCOPED_TRACE(type);
    expect_sound({.preset = "spec", .type = type});
  }
}

TEST(MakeModel, EveryTypeOfTheTinyPresetOpensAndIsFinite) {
  for (const std::string& type : make_model_types()) {
    SCOPED_TRACE(type);
    expect_sound({.preset = "tiny", .type = type});
  }
}

TEST(MakeModel, TheTinyPresetHasTheShippedModelsGeometry) {
  const Made made({.preset = "tiny"});
  const ModelConfig a = read_config(GgufFile::open(made.path));
  const ModelConfig b = read_config(
      GgufFile::open(std::string(ASSAY_SOURCE_DIR "/engine/models/tiny-gemma4-moe-q4_0.gguf")));
  EXPECT_EQ(std::tie(a.layers,
                     a.hidden,
                     a.vocab,
                     a.context,
                     a.experts,
                     a.experts_used,
                     a.expert_width,
                     a.eps,
                     a.softcap),
            std::tie(b.layers,
                     b.hidden,
                     b.vocab,
                     b.context,
                     b.experts,
                     b.experts_used,
                     b.expert_width,
                     b.eps,
                     b.softcap));
  for (std::size_t i = 0; i < a.layer.size(); ++i) {
    const LayerConfig& x = a.layer[i];
    const LayerConfig& y = b.layer[i];
    EXPECT_EQ(std::tie(x.is_local,
                       x.heads,
                       x.kv_heads,
                       x.head_dim,
                       x.rope_base,
                       x.window,
                       x.has_v,
                       x.dense_width),
              std::tie(y.is_local,
                       y.heads,
                       y.kv_heads,
                       y.head_dim,
                       y.rope_base,
                       y.window,
                       y.has_v,
                       y.dense_width));
  }
}

// Literal digests: a change of any byte on any machine, compiler or thread count shows here.
TEST(MakeModel, GivesTheSameBytesFromTheSameSeedWhateverTheThreads) {
  std::string digests[3];
  for (const int threads : {1, 2, 7}) {
    const Made made({.preset = "spec", .type = "q4_k", .seed = 5}, threads);
    digests[threads / 3] = sha256_hex(contents(made.path));
  }
  EXPECT_EQ(digests[0], digests[2]);
  EXPECT_EQ(digests[0], "88f1f3d39dec71db601e81f86c4417fa66275f851b24e2f7c2296340ccff8bc5");
  const Made other({.preset = "spec", .type = "q4_k", .seed = 6});
  EXPECT_NE(sha256_hex(contents(other.path)), digests[0]);
}

TEST(MakeModel, FallsBackWhereNoKBlockFits) {
  const auto types = [](const char* type) {
    std::map<std::string, BlockType> out;
    for (const TensorInfo& t : describe_model({.preset = "spec", .type = type}).tensors())
      out[t.name] = t.type;
    return out;
  };
  auto t = types("q4_k");
  EXPECT_EQ(t["blk.0.ffn_gate.weight"], BlockType::kQ4_K);
  EXPECT_EQ(t["blk.0.ffn_down.weight"], BlockType::kQ5_0);
  EXPECT_EQ(t["blk.0.ffn_down_exps.weight"], BlockType::kQ5_0);
  EXPECT_EQ(types("q6_k")["blk.0.ffn_down_exps.weight"], BlockType::kQ8_0);
  EXPECT_EQ(types("q5_k")["blk.0.ffn_down_exps.weight"], BlockType::kQ5_1);
}

// Sizes and counts of published files (spec 2.1, 2.2), which only the right geometry gives.
TEST(MakeModel, TheLargePresetReproducesTheKnownFiles) {
  const auto all_q4_0 = describe_model({.preset = "26b-a4b", .type = "q4_0"});
  EXPECT_EQ(all_q4_0.tensors().size(), 658U);
  std::uint64_t data = 0;
  std::int64_t elements = 0;
  for (const TensorInfo& t : all_q4_0.tensors()) {
    data += t.bytes;
    elements += t.elements();
  }
  EXPECT_EQ(elements, 25'233'141'790 + 256) << "parameters, and rope_freqs";
  EXPECT_NEAR(static_cast<double>(data) / (1 << 30), 13.256, 0.001);

  std::map<BlockType, int> counts;
  data = 0;
  for (const TensorInfo& t : describe_model({.preset = "26b-a4b", .type = "q4_k_m"}).tensors()) {
    ++counts[t.type];
    data += t.bytes;
  }
  EXPECT_EQ(counts,
            (std::map<BlockType, int>{{BlockType::kF32, 392},
                                      {BlockType::kQ5_0, 32},
                                      {BlockType::kQ8_0, 28},
                                      {BlockType::kQ4_K, 192},
                                      {BlockType::kQ6_K, 14}}));
  EXPECT_NEAR(static_cast<double>(data) / (1 << 30), 15.63, 0.01);
}

TEST(MakeModel, TheLargeVocabularyHasTheReleasedIdsAndLoads) {
  const GgufWriter large = describe_model({.preset = "26b-a4b"});
  const std::string path = temporary("vocabulary");
  {
    std::ofstream out(path, std::ios::binary);
    const std::string head = large.head();
    out.write(head.data(), static_cast<std::streamsize>(head.size()));
  }
  std::filesystem::resize_file(path, large.file_bytes());  // sparse
  const GgufFile file = GgufFile::open(path);
  EXPECT_EQ(file.strings("tokenizer.ggml.merges").size(), 514906U);
  const Tokenizer t = Tokenizer::load(file);
  EXPECT_EQ(t.vocab_size(), 262144);
  for (const auto& [text, id] : {std::pair{"<eos>", 1},
                                 {"<bos>", 2},
                                 {"<|tool_response>", 50},
                                 {"<|\"|>", 52},
                                 {"<|turn>", 105},
                                 {"<turn|>", 106},
                                 {"\n", 107},
                                 {"<|image|>", 258880}}) {
    EXPECT_EQ(t.find(text), id) << text;
  }
  const std::string sample =
      "The quick brown fox\n\n\njumps over the lazy dog \xE6\xBC\xA2\xE5\xAD\x97 42 times.";
  const auto ids = t.encode(sample, true, SpecialMode::kNone);
  EXPECT_EQ(t.decode(ids), sample);
  EXPECT_LT(ids.size(), sample.size() * 2 / 3) << "merges do something";
  std::filesystem::remove(path);
}

TEST(MakeModel, NamesWhatItDoesNotKnow) {
  for (const auto& [options, part] : {std::pair{MakeModelOptions{.preset = "big"}, "26b-a4b"},
                                      std::pair{MakeModelOptions{.type = "q3_k"}, "q4_k_m"}}) {
    try {
      (void)describe_model(options);
      FAIL();
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
}

TEST(MakeModel, LeavesNothingBehindWhenItCannotWrite) {
  EXPECT_THROW(make_model({.preset = "spec"}, "/nonexistent-folder/x.gguf", 1), Error);
  const std::string folder = temporary("folder");
  std::filesystem::create_directory(folder);
  EXPECT_THROW(make_model({.preset = "spec"}, folder, 1), Error);
  for (const auto& e : std::filesystem::directory_iterator(testing::TempDir())) {
    EXPECT_EQ(e.path().string().find(folder + ".tmp"), std::string::npos);
  }
  std::filesystem::remove(folder);
}

}  // namespace
}  // namespace assay
