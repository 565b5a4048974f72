// The device scratch of one call, the same for every variant.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/experts_decode/op.h"

namespace assay::experts_decode {

struct Scratch {
  float* gate;            // [width], of one slot
  float* up;              // [width], of one slot
  float* y;               // [hidden], of one slot
  float* u;               // [slots][width]; a slot is token * top_k + rank
  std::int8_t* codes;     // [slots][width]: u quantised
  std::uint16_t* scales;  // [slots][width / 32]
  std::size_t bytes;
};
inline Scratch scratch_of(const ExpertsDecode::Shape& s, std::byte* base) {
  const auto width = static_cast<std::size_t>(s.width);
  const std::size_t slots = static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.top_k);
  std::size_t at = 0;
  const auto take = [&](std::size_t bytes) {
    const std::size_t here = at;
    at += (bytes + 255) / 256 * 256;
    return base == nullptr ? nullptr : base + here;
  };
  Scratch p{};
  p.gate = reinterpret_cast<float*>(take(width * sizeof(float)));
  p.up = reinterpret_cast<float*>(take(width * sizeof(float)));
  p.y = reinterpret_cast<float*>(take(static_cast<std::size_t>(s.hidden) * sizeof(float)));
  p.u = reinterpret_cast<float*>(take(slots * width * sizeof(float)));
  p.codes = reinterpret_cast<std::int8_t*>(take(slots * width));
  p.scales = reinterpret_cast<std::uint16_t*>(take(slots * (width / kQ8Block) * 2));
  p.bytes = at;
  return p;
}
inline std::size_t scratch_bytes(const ExpertsDecode::Shape& s) {
  return scratch_of(s, nullptr).bytes;
}

}  // namespace assay::experts_decode
