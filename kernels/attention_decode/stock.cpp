// Scalar host stock: kernels/base/attend.h for each head, heads shared among threads.
#include "kernels/attention_decode/heads.h"

namespace assay {
namespace {

void run_stock(const AttentionDecode::Shape& s,
               const AttentionDecode::Args& a,
               Workspace,
               Stream stream) {
  attention_decode::for_each_head(
      s, a, stream, 8192.0, [](const auto& keys, auto... rest) { attend_scalar(keys, rest...); });
}

}  // namespace

void launch_stock(const AttentionDecode::Shape&, const AttentionDecode::Args&, Workspace, Stream);

ASSAY_VARIANT(AttentionDecode, stock){.summary = "scalar: a head at a time, blocks of 256 keys",
                                      .stage = Stage::kStock,
                                      .exactness = Exactness::kBounded,
                                      .deterministic = true,
                                      .batch_invariant = true,
                                      .host = ASSAY_HOST(run_stock),
                                      .cuda = ASSAY_LAUNCH(launch_stock)};

}  // namespace assay
