// As stock with a block of 256 threads, for small records (two_launches.cuh).
// Preconditions: at most 8 * 2560 activations and 80 ids.
#include "kernels/doorbell_publish/two_launches.cuh"

namespace assay {

void launch_threads256(const DoorbellPublish::Shape& s,
                       const DoorbellPublish::Args& a,
                       Workspace,
                       Stream stream) {
  doorbell_publish::launch_two(s, a, 256, stream);
}

}  // namespace assay
