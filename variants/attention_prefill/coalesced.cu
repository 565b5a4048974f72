// o[t][h] = softmax(q[t][h] . k) v over the keys that token t sees, a warp a key (kernels/base/attend_coalesced.cuh).
#include "kernels/attention_prefill/call.cuh"
#include "kernels/base/attend_coalesced.cuh"

namespace assay {

void launch_coalesced(const AttentionPrefill::Shape& s,
                      const AttentionPrefill::Args& a,
                      Workspace,
                      Stream stream) {
  attention_prefill::with_call(
      s, a, [&](const auto& call) { device::attend_coalesced(call, stream); });
}

}  // namespace assay
