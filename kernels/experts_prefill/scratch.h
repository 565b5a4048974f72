// Device scratch of the CUDA stock, and how its calls are cut so that it stays bounded.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/experts_prefill/op.h"

namespace assay::experts_prefill {

constexpr int kPassTokens = 512;  // tokens that are sorted and combined together
constexpr int kBucketRows = 512;  // rows of one product

// Pieces of a workspace, each 256-byte aligned. base null: only the size.
class Pieces {
 public:
  explicit Pieces(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::size_t count) {
    const std::size_t here = bytes_;
    bytes_ += (count * sizeof(T) + 255) / 256 * 256;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + here);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::size_t bytes_ = 0;
};

struct FloatScratch {
  float* gate_up;       // [2 width][hidden] of one expert
  float* down;          // [hidden][width] of one expert
  float* x;             // [rows][hidden], rows up to kBucketRows
  float* products;      // [rows][2 width]
  float* u;             // [rows][width]
  float* y;             // [slots][hidden] in the order of the experts
  std::int32_t* slots;  // [slots] token * top_k + rank, by expert
  std::int32_t* where;  // [tokens][top_k]: row of y, -1 for none
  std::size_t bytes;
};
inline FloatScratch float_scratch(const ExpertsPrefill::Shape& s, std::byte* base) {
  const auto hidden = static_cast<std::size_t>(s.hidden);
  const auto width = static_cast<std::size_t>(s.width);
  const std::size_t slots =
      static_cast<std::size_t>(std::min(s.tokens, kPassTokens)) * static_cast<std::size_t>(s.top_k);
  const std::size_t rows = std::min(slots, static_cast<std::size_t>(kBucketRows));
  Pieces pieces(base);
  FloatScratch p{};
  p.gate_up = pieces.take<float>(2 * width * hidden);
  p.down = pieces.take<float>(hidden * width);
  p.x = pieces.take<float>(rows * hidden);
  p.products = pieces.take<float>(rows * 2 * width);
  p.u = pieces.take<float>(rows * width);
  p.y = pieces.take<float>(slots * hidden);
  p.slots = pieces.take<std::int32_t>(slots);
  p.where = pieces.take<std::int32_t>(slots);
  p.bytes = pieces.bytes();
  return p;
}
inline std::size_t float_scratch_bytes(const ExpertsPrefill::Shape& s) {
  return float_scratch(s, nullptr).bytes;
}

}  // namespace assay::experts_prefill
