// Sizes of the float tiles, for the kernel and for the rule that says where it fits.
#pragma once
#include <cstddef>

namespace assay::attention_prefill {

constexpr int kRows = 16;
constexpr int kKeys = 32;

// Of the head size alone: the context does not enter.
constexpr std::size_t tiled_shared_bytes(int head_dim) {
  return sizeof(float) *
         static_cast<std::size_t>((kRows + kKeys) * (head_dim + 4) + kRows * (kKeys + 1));
}

}  // namespace assay::attention_prefill
