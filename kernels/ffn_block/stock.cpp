#include "kernels/ffn_block/op.h"

namespace assay {

std::string FfnBlock::Shape::describe() const {
  return "tokens=" + std::to_string(tokens) + " hidden=" + std::to_string(hidden) +
         " top_k=" + std::to_string(top_k) + " numerics=" + to_string(numerics);
}

namespace {
void run_stock(const FfnBlock::Shape&, const FfnBlock::Args& a, Workspace, Stream) { a.chain(); }
}  // namespace

ASSAY_VARIANT(FfnBlock, stock){.summary = "the chain of part ops as selected",
                               .stage = Stage::kStock,
                               .exactness = Exactness::kBounded,
                               .deterministic = true,
                               .batch_invariant = true,
                               .host = ASSAY_HOST(run_stock),
                               .cuda = ASSAY_HOST(run_stock)};

}  // namespace assay
