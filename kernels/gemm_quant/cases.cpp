#include "kernels/base/op_impl.h"
#include "kernels/gemm_quant/op.h"

namespace assay {

std::vector<GemmQuant::Case> GemmQuant::cases() {
  std::vector<Case> cases;
  for (const Numerics lane : {Numerics::kExact, Numerics::kFast}) {
    for (const BlockType type : kAllBlockTypes) {
      cases.push_back(
          {.name = std::string("types_") + to_string(type) + "_" + to_string(lane),
           .shape = {.tokens = 20, .rows = 40, .cols = 512, .type = type, .numerics = lane}});
    }
  }
  return cases;
}

void GemmQuant::fill(const Case& c, const Filler& f) {
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
