// o[h] = softmax(q[h] . k) v over the visible keys, a warp a key (kernels/base/attend_coalesced.cuh).
#include "kernels/attention_decode/call.cuh"
#include "kernels/base/attend_coalesced.cuh"

namespace assay {

void launch_coalesced(const AttentionDecode::Shape& s,
                      const AttentionDecode::Args& a,
                      Workspace,
                      Stream stream) {
  attention_decode::with_call(
      s, a, [&](const auto& call) { device::attend_coalesced(call, stream); });
}

}  // namespace assay
