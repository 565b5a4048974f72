#include "kernels/base/op_impl.h"
#include "kernels/experts_decode/op.h"

namespace assay {

namespace {

struct Types {
  const char* name;
  BlockType gate_up;
  BlockType down;
};
constexpr Types kMixes[] = {
    {"f32", BlockType::kF32, BlockType::kF32},
    {"f16", BlockType::kF16, BlockType::kF16},
    {"bf16", BlockType::kBF16, BlockType::kBF16},
    {"q4_0", BlockType::kQ4_0, BlockType::kQ4_0},
    {"q4_1", BlockType::kQ4_1, BlockType::kQ4_1},
    {"q5_0", BlockType::kQ5_0, BlockType::kQ5_0},
    {"q5_1", BlockType::kQ5_1, BlockType::kQ5_1},
    {"q8_0", BlockType::kQ8_0, BlockType::kQ8_0},
    {"q4_k", BlockType::kQ4_K, BlockType::kQ4_K},
    {"q5_k", BlockType::kQ5_K, BlockType::kQ5_K},
    {"q6_k", BlockType::kQ6_K, BlockType::kQ6_K},
    {"q4_k_q5_0", BlockType::kQ4_K, BlockType::kQ5_0},
    {"q4_k_q8_0", BlockType::kQ4_K, BlockType::kQ8_0},
    {"f16_q8_0", BlockType::kF16, BlockType::kQ8_0},
    {"q8_0_f16", BlockType::kQ8_0, BlockType::kF16},
};
constexpr const char* kPatternNames[] = {
    "plain", "positive", "all_equal", "zero_blocks", "denormal", "huge", "nan", "infinity"};

}  // namespace

// The cases of experts_host, name by name, because the int8 variants are held to its bytes.
std::vector<ExpertsDecode::Case> ExpertsDecode::cases() {
  std::vector<Case> cases;
  for (const Numerics lane : {Numerics::kExact, Numerics::kFast}) {
    const std::string suffix = std::string("_") + to_string(lane);
    const auto add = [&](const std::string& name,
                         Shape shape,
                         Pattern pattern = Pattern::kPlain,
                         Routing routing = Routing::kUniform) {
      shape.numerics = lane;
      // One NaN in an expert reaches every output of every token that chose it, and where u is quantised a huge u
      // overflows its fp16 scale.
      const bool nonfinite = pattern == Pattern::kInfinity || pattern == Pattern::kNan ||
                             (pattern == Pattern::kHuge && shape.down_reads_q8());
      cases.push_back({.name = name + suffix,
                       .shape = shape,
                       .mostly_nonfinite = nonfinite,
                       .pattern = pattern,
                       .routing = routing});
    };
    for (const auto& [name, gate_up, down] : kMixes) {
      for (const bool fused : {true, false}) {
        add(std::string("types_") + name + (fused ? "" : "_split"),
            {.tokens = 2,
             .hidden = 256,
             .width = block_elements(down) == 256 ? 256 : 96,
             .experts = 3,
             .top_k = 2,
             .fused = fused,
             .gate_up_type = gate_up,
             .down_type = down});
      }
    }
    for (int tokens = 1; tokens <= 8; ++tokens) {
      add("tokens_" + std::to_string(tokens),
          {.tokens = tokens, .hidden = 64, .width = 32, .experts = 8, .top_k = 4});
    }
    add("tokens_64", {.tokens = 64, .hidden = 64, .width = 32, .experts = 8, .top_k = 4});
    add("tiny_decode", {.tokens = 1, .hidden = 256, .width = 32, .experts = 64, .top_k = 8});
    add("26b_decode", {.tokens = 1, .hidden = 2816, .width = 704, .experts = 3, .top_k = 2});
    add("26b_two_tokens", {.tokens = 2, .hidden = 2816, .width = 704, .experts = 2, .top_k = 1});
    // Widths and hidden sizes that are no multiple of 16 rows: groups that reach over two experts.
    for (const bool fused : {true, false}) {
      add(fused ? "ragged" : "ragged_split",
          {.tokens = 3,
           .hidden = 40,
           .width = 32,
           .experts = 5,
           .top_k = 3,
           .fused = fused,
           .gate_up_type = BlockType::kF16});
      add(fused ? "ragged_width" : "ragged_width_split",
          {.tokens = 3,
           .hidden = 32,
           .width = 20,
           .experts = 5,
           .top_k = 3,
           .fused = fused,
           .down_type = BlockType::kF32});
    }
    add("one_expert_of_one", {.tokens = 3, .hidden = 32, .width = 32, .experts = 1, .top_k = 1});
    const Shape routed{.tokens = 6, .hidden = 64, .width = 64, .experts = 16, .top_k = 4};
    add("skewed", routed, Pattern::kPlain, Routing::kSkewed);
    add("one_expert_everywhere", routed, Pattern::kPlain, Routing::kOneExpert);
    add("holes", routed, Pattern::kPlain, Routing::kHoles);
    for (int p = 1; p < 8; ++p) {
      for (const BlockType type : {BlockType::kQ4_0, BlockType::kQ5_1, BlockType::kF32}) {
        add(std::string(kPatternNames[p]) + "_" + to_string(type),
            {.tokens = 4,
             .hidden = 64,
             .width = 32,
             .experts = 12,
             .top_k = 2,
             .gate_up_type = type,
             .down_type = type},
            static_cast<Pattern>(p));
      }
    }
  }
  return cases;
}

void ExpertsDecode::fill(const Case& c, const Filler& f) {
  Rng rng(f.seed());
  const Shape& s = c.shape;
  const auto matrix = [&](const char* name, BlockType type) {
    fill_blocks(f.get<std::byte>(name), type, c.pattern, rng);
  };
  if (s.fused) {
    matrix("gate_up", s.gate_up_type);
  } else {
    matrix("gate", s.gate_up_type);
    matrix("up", s.gate_up_type);
  }
  matrix("down", s.down_type);
  const auto x = f.get<float>("x");
  fill_activations(x, c.pattern, rng);
  if (s.reads_q8()) {
    quantize_q8(x.data(),
                x.size(),
                f.get<std::int8_t>("xq_codes").data(),
                f.get<std::uint16_t>("xq_scales").data());
  }
  fill_routing(
      f.get<std::int32_t>("ids"), f.get<float>("weights"), s.top_k, s.experts, c.routing, rng);
}

}  // namespace assay
