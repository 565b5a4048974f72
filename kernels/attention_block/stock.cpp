#include "kernels/attention_block/op.h"

namespace assay {

std::string AttentionBlock::Shape::describe() const {
  return "tokens=" + std::to_string(tokens) + " past=" + std::to_string(past) +
         " slots=" + std::to_string(slots) + " hidden=" + std::to_string(hidden) +
         " kv_width=" + std::to_string(kv_width) + " kv=" + to_string(kv) +
         " numerics=" + to_string(numerics);
}

namespace {
void run_stock(const AttentionBlock::Shape&, const AttentionBlock::Args& a, Workspace, Stream) {
  a.chain();
}
}  // namespace

ASSAY_VARIANT(AttentionBlock, stock){.summary = "the chain of part ops as selected",
                                     .stage = Stage::kStock,
                                     .exactness = Exactness::kBounded,
                                     .deterministic = true,
                                     .batch_invariant = true,
                                     .host = ASSAY_HOST(run_stock),
                                     .cuda = ASSAY_HOST(run_stock)};

}  // namespace assay
