#include "kernels/decode_token/op.h"

namespace assay {

std::string DecodeToken::Shape::describe() const {
  return "layers=" + std::to_string(layers) + " hidden=" + std::to_string(hidden) +
         " vocab=" + std::to_string(vocab) + " position=" + std::to_string(position) +
         " kv=" + to_string(kv) + " numerics=" + to_string(numerics);
}

namespace {
void run_stock(const DecodeToken::Shape&, const DecodeToken::Args& a, Workspace, Stream) {
  a.chain();
}
}  // namespace

ASSAY_VARIANT(DecodeToken, stock){.summary = "embedding, the layers' blocks and the head in turn",
                                  .stage = Stage::kStock,
                                  .exactness = Exactness::kBounded,
                                  .deterministic = true,
                                  .batch_invariant = true,
                                  .host = ASSAY_HOST(run_stock),
                                  .cuda = ASSAY_HOST(run_stock)};

}  // namespace assay
