// o[t][h] = softmax(q[t][h] . k) v over the keys that token t sees, flat: one thread a key (kernels/base/attend_flat.cuh).
#include "kernels/attention_prefill/call.cuh"
#include "kernels/base/attend_flat.cuh"

namespace assay {

void launch_stock(const AttentionPrefill::Shape& s,
                  const AttentionPrefill::Args& a,
                  Workspace,
                  Stream stream) {
  attention_prefill::with_call(s, a, [&](const auto& call) { device::attend_flat(call, stream); });
}

}  // namespace assay
