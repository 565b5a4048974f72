// out[t] = sum over ranks of weight * Down_e (gelu(Gate_e x) * Up_e x), a chain of launches an expert, in int8 (chain.cuh).
#include "kernels/experts_decode/chain.cuh"

namespace assay {

void launch_chain_dp4a(const ExpertsDecode::Shape& s,
                       const ExpertsDecode::Args& a,
                       Workspace workspace,
                       Stream stream) {
  experts_decode::launch_chain<true>(s, a, workspace, stream);
}

}  // namespace assay
