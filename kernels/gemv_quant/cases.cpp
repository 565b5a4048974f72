#include "kernels/base/op_impl.h"
#include "kernels/gemv_quant/op.h"

namespace assay {

std::vector<GemvQuant::Case> GemvQuant::cases() {
  return {{.name = "small_q4_0",
           .shape = {.tokens = 1, .rows = 33, .cols = 256, .type = BlockType::kQ4_0}}};
}

void GemvQuant::fill(const Case& c, const Filler& f) {
  Rng rng(f.seed());
  std::vector<float> row(static_cast<std::size_t>(c.shape.cols));
  const auto w = f.get<std::byte>("w");
  const std::size_t bytes = row_bytes(c.shape.type, c.shape.cols);
  for (int r = 0; r < c.shape.rows; ++r) {
    for (auto& v : row) v = static_cast<float>(rng.normal());
    quantize(c.shape.type, row.data(), row.size(), w.data() + static_cast<std::size_t>(r) * bytes);
  }
  for (auto& v : f.get<float>("x")) v = static_cast<float>(rng.normal());
}

}  // namespace assay
