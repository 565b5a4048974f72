#include "kernels/base/op_impl.h"
#include "kernels/gemv_quant/op.h"

namespace assay {

namespace {

struct Named {
  const char* name;
  GemvQuant::Shape shape;
};

// Shapes of real models, with few rows where the rows repeat.
constexpr Named kModels[] = {
    {"tiny_projection", {.tokens = 1, .rows = 256, .cols = 256, .type = BlockType::kQ4_0}},
    {"tiny_head", {.tokens = 1, .rows = 4096, .cols = 256, .type = BlockType::kQ8_0}},
    {"26b_gate_up", {.tokens = 1, .rows = 1408, .cols = 2816, .type = BlockType::kQ4_0}},
    {"26b_down_22_blocks", {.tokens = 1, .rows = 1408, .cols = 704, .type = BlockType::kQ4_0}},
    {"26b_down_q8", {.tokens = 2, .rows = 352, .cols = 704, .type = BlockType::kQ8_0}},
    {"26b_head_q6", {.tokens = 1, .rows = 512, .cols = 2816, .type = BlockType::kQ6_K}},
    {"26b_output", {.tokens = 8, .rows = 176, .cols = 4096, .type = BlockType::kQ4_0}},
};

// Where a loop over rows, columns or tokens ends.
constexpr Named kEdges[] = {
    {"one_row", {.tokens = 1, .rows = 1, .cols = 256, .type = BlockType::kQ4_0}},
    {"two_rows", {.tokens = 1, .rows = 2, .cols = 256, .type = BlockType::kQ6_K}},
    {"seven_rows", {.tokens = 2, .rows = 7, .cols = 256, .type = BlockType::kQ5_0}},
    {"fifteen_rows", {.tokens = 2, .rows = 15, .cols = 256, .type = BlockType::kQ4_0}},
    {"sixteen_rows", {.tokens = 2, .rows = 16, .cols = 256, .type = BlockType::kQ4_0}},
    {"seventeen_rows", {.tokens = 2, .rows = 17, .cols = 256, .type = BlockType::kQ4_1}},
    {"thirty_one_rows", {.tokens = 2, .rows = 31, .cols = 256, .type = BlockType::kQ5_K}},
    {"one_block", {.tokens = 3, .rows = 48, .cols = 32, .type = BlockType::kQ4_0}},
    {"one_block_q8", {.tokens = 3, .rows = 48, .cols = 32, .type = BlockType::kQ8_0}},
    {"nine_blocks", {.tokens = 3, .rows = 48, .cols = 288, .type = BlockType::kQ4_0}},
    {"five_blocks", {.tokens = 3, .rows = 48, .cols = 160, .type = BlockType::kQ5_1}},
    {"one_superblock", {.tokens = 3, .rows = 48, .cols = 256, .type = BlockType::kQ4_K}},
    {"eleven_superblocks", {.tokens = 3, .rows = 48, .cols = 2816, .type = BlockType::kQ4_K}},
    {"one_column", {.tokens = 2, .rows = 20, .cols = 1, .type = BlockType::kF32}},
    {"thirty_one_columns", {.tokens = 2, .rows = 20, .cols = 31, .type = BlockType::kF32}},
    {"thirty_three_columns", {.tokens = 2, .rows = 20, .cols = 33, .type = BlockType::kF16}},
    {"hundred_columns", {.tokens = 2, .rows = 20, .cols = 100, .type = BlockType::kBF16}},
};

constexpr const char* kPatternNames[] = {
    "plain", "positive", "all_equal", "zero_blocks", "denormal", "huge", "nan", "infinity"};

}  // namespace

// One row and one token make a single sum, whose relative error is bounded only where nothing cancels: such cases are
// positive.
std::vector<GemvQuant::Case> GemvQuant::cases() {
  std::vector<Case> cases;
  for (const Numerics lane : {Numerics::kExact, Numerics::kFast}) {
    const std::string suffix = std::string("_") + to_string(lane);
    const auto add = [&](const std::string& name, Shape shape, Pattern pattern = Pattern::kPlain) {
      shape.numerics = lane;
      cases.push_back({.name = name + suffix,
                       .shape = shape,
                       .mostly_nonfinite = pattern == Pattern::kInfinity,
                       .pattern = pattern});
    };
    for (const BlockType type : kAllBlockTypes) {
      add(std::string("type_") + to_string(type),
          {.tokens = 3, .rows = 40, .cols = 512, .type = type});
    }
    for (const auto& [name, shape] : kModels) add(name, shape);
    for (const auto& [name, shape] : kEdges) {
      add(name, shape, shape.rows < 3 ? Pattern::kPositive : Pattern::kPlain);
    }
    for (int tokens = 1; tokens <= 8; ++tokens) {
      add("tokens_" + std::to_string(tokens),
          {.tokens = tokens, .rows = 40, .cols = 288, .type = BlockType::kQ4_0});
    }
    for (const BlockType type : {BlockType::kQ4_0,
                                 BlockType::kQ5_1,
                                 BlockType::kQ8_0,
                                 BlockType::kQ4_K,
                                 BlockType::kQ6_K,
                                 BlockType::kF16}) {
      for (int p = 1; p < 8; ++p) {
        add(std::string(kPatternNames[p]) + "_" + to_string(type),
            {.tokens = 4, .rows = 24, .cols = 512, .type = type},
            static_cast<Pattern>(p));
      }
    }
  }
  return cases;
}

void GemvQuant::fill(const Case& c, const Filler& f) {
  Rng rng(f.seed());
  fill_blocks(f.get<std::byte>("w"), c.shape.type, c.pattern, rng);
  const auto x = f.get<float>("x");
  fill_activations(x, c.pattern, rng);
  if (c.shape.reads_q8()) {
    quantize_q8(x.data(),
                x.size(),
                f.get<std::int8_t>("xq_codes").data(),
                f.get<std::uint16_t>("xq_scales").data());
  }
}

}  // namespace assay
