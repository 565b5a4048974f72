#include "kernels/attention_prefill/mma_tiles.h"

#include "kernels/attention_prefill/op.h"

namespace assay {
namespace {

// Queries and weights rounded to half: a weight by 2^-12, a score of order 4 by 2^-11 / sqrt(3) * 4 / sqrt(head_dim) more.
double error_bound(const AttentionPrefill::Shape&) { return 1e-3; }

Why ineligible(const AttentionPrefill::Shape& s, const DeviceInfo& d) {
  if (d.cc < 80) return "needs compute capability 8.0 (mma.sync m16n8k16)";
  if (s.kv != KvType::kF16) return "the keys and values are not in half";
  const std::size_t shared = attention_prefill::mma_shared_bytes(s.head_dim);
  if (shared == 0) return "the head size is not 64, 128, 256 or 512";
  return shared <= static_cast<std::size_t>(d.shared_bytes_per_block)
             ? nullptr
             : "the tiles do not fit the shared memory of a block";
}

}  // namespace

void launch_mma_tiles(const AttentionPrefill::Shape&,
                      const AttentionPrefill::Args&,
                      Workspace,
                      Stream);

ASSAY_VARIANT(AttentionPrefill, mma_tiles){
    .summary = "tensor-core tiles of 64 query rows by 32 keys, half operands, float softmax",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = false,
    .ineligible = ineligible,
    .cuda = ASSAY_LAUNCH(launch_mma_tiles, .error_bound = error_bound)};

}  // namespace assay
