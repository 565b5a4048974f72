// o[h] = softmax(q[h] . k) v over the visible keys, flat: one thread a key (kernels/base/attend_flat.cuh).
#include "kernels/attention_decode/call.cuh"
#include "kernels/base/attend_flat.cuh"

namespace assay {

void launch_stock(const AttentionDecode::Shape& s,
                  const AttentionDecode::Args& a,
                  Workspace,
                  Stream stream) {
  attention_decode::with_call(s, a, [&](const auto& call) { device::attend_flat(call, stream); });
}

}  // namespace assay
