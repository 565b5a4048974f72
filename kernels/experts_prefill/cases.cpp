#include "kernels/base/op_impl.h"
#include "kernels/experts_prefill/op.h"

namespace assay {

std::vector<ExpertsPrefill::Case> ExpertsPrefill::cases() {
  std::vector<Case> cases;
  for (const Numerics lane : {Numerics::kExact, Numerics::kFast}) {
    cases.push_back({.name = std::string("tiny_") + to_string(lane),
                     .shape = {.tokens = 20,
                               .hidden = 256,
                               .width = 32,
                               .experts = 16,
                               .top_k = 8,
                               .numerics = lane}});
  }
  return cases;
}

void ExpertsPrefill::fill(const Case& c, const Filler& f) {
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
