// Sizes of the tensor-core tiles, for the kernel and for the rule that says where it fits.
#pragma once
#include <cstddef>

namespace assay::attention_prefill {

constexpr int kTileQueries = 64;
constexpr int kTileKeys = 32;

template <int HD>
struct MmaTile {
  static constexpr int kParts = HD > 256 ? 2 : 1;  // warps that share 16 query rows
  static constexpr int kThreads = 128 * kParts;
  static constexpr int kStride = HD + 8;  // halves from row to row in shared memory
  static constexpr std::size_t kSharedBytes =
      static_cast<std::size_t>((kTileQueries + 2 * kTileKeys) * kStride) * 2 +
      (kParts > 1 ? static_cast<std::size_t>(kTileQueries * (kTileKeys + 4)) * 4 : 0);
};
// 0: no tile for such heads.
constexpr std::size_t mma_shared_bytes(int head_dim) {
  switch (head_dim) {
    case 64:
      return MmaTile<64>::kSharedBytes;
    case 128:
      return MmaTile<128>::kSharedBytes;
    case 256:
      return MmaTile<256>::kSharedBytes;
    case 512:
      return MmaTile<512>::kSharedBytes;
    default:
      return 0;
  }
}

}  // namespace assay::attention_prefill
