// out[t] = sum over ranks of weight * Down_e (gelu(Gate_e x) * Up_e x), two launches in all, in float (grouped.cuh).
#include "kernels/experts_decode/grouped.cuh"

namespace assay {

void launch_grouped(const ExpertsDecode::Shape& s,
                    const ExpertsDecode::Args& a,
                    Workspace workspace,
                    Stream stream) {
  experts_decode::launch_grouped_as<false>(s, a, workspace, stream);
}

}  // namespace assay
