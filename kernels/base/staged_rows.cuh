// Rows of a quantised matrix staged in a warp's own shared memory: blocks of 18 or 34 bytes cannot be read from memory in
// wide loads, but the bytes of a row can.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/base/async_copy.cuh"
#include "kernels/base/blocks.cuh"
#include "kernels/base/launch.cuh"

namespace assay::device {

// Shared bytes for `bytes` of a row, wherever it starts: the sixteens that it touches.
__host__ __device__ constexpr int staged_bytes(int bytes) { return (bytes + 15) / 16 * 16 + 16; }

// Starts copying [from, from + bytes) to `to` by the calling warp; the first byte lands at to + (from % 16), which is
// returned. [begin, end): the matrix, outside of which nothing is read.
__device__ inline const std::byte* stage_row(
    std::byte* to, const std::byte* from, int bytes, const std::byte* begin, const std::byte* end) {
  const auto shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) % 16);
  const std::byte* start = from - shift;
  for (int at = 16 * lane_id(); at < shift + bytes; at += 16 * kWarp) {
    const std::byte* piece = start + at;
    if (piece >= begin && piece + 16 <= end) {
      async_copy16(to + at, piece);
    } else {
      // The matrix's first or last bytes: two at a time, as the format guarantees no more.
      for (int i = 0; i < 16; i += 2) {
        if (piece + i >= begin && piece + i < end) {
          *reinterpret_cast<std::uint16_t*>(to + at + i) = load16(piece + i);
        }
      }
    }
  }
  return to + shift;
}

// block_term for a staged row: Q4_0 by aligned words instead of halves.
template <BlockType T>
__device__ inline BlockTerm staged_term(const std::byte* row, int b, const int (&q)[8]) {
  if constexpr (T == BlockType::kQ4_0) {
    const std::byte* p = row + b * Format<T>::kBytes;
    const auto odd = static_cast<int>(reinterpret_cast<std::uintptr_t>(p) & 2);  // 0 or 2
    const auto* word = reinterpret_cast<const std::uint32_t*>(p - odd);
    std::uint32_t w[5];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = word[i];
    BlockTerm term{0, 0, 0.0F, 0.0F};
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __dp4a(0x01010101, q[i], sum);
    int dot = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // By 16 or, where the block starts in the middle of a word, by 32: then the next word itself.
      const std::uint32_t codes =
          __funnelshift_rc(w[i], w[i + 1], static_cast<unsigned>(16 + 8 * odd));
      dot = __dp4a(static_cast<int>(codes & 0x0F0F0F0FU), q[i], dot);
      dot = __dp4a(static_cast<int>((codes >> 4) & 0x0F0F0F0FU), q[i + 4], dot);
    }
    term.product = dot - 8 * sum;
    term.scale = half_bits_to_float(static_cast<std::uint16_t>(w[0] >> (8 * odd)));
    return term;
  } else {
    return block_term<T>(row, b, q);
  }
}

}  // namespace assay::device
