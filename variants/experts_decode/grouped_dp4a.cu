// out[t] = sum over ranks of weight * Down_e (gelu(Gate_e x) * Up_e x), two launches in all, in int8 (grouped.cuh).
#include "kernels/experts_decode/grouped.cuh"

namespace assay {

void launch_grouped_dp4a(const ExpertsDecode::Shape& s,
                         const ExpertsDecode::Args& a,
                         Workspace workspace,
                         Stream stream) {
  experts_decode::launch_grouped_as<true>(s, a, workspace, stream);
}

}  // namespace assay
