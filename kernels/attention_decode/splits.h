// How variants of attention_decode cut the keys over blocks: by the shape alone, so that the scratch is known beforehand.
#pragma once
#include <algorithm>
#include <cstddef>

#include "kernels/attention_decode/op.h"

namespace assay::attention_decode {

constexpr int kSplitWarps = 8;
// Two blocks on each SM of the largest card; a few more or less cost little.
constexpr int kSplitBlocks = 264;

// Keys that a warp has in flight: what fits the registers beside `heads` accumulators. value_bytes: of the cache's type.
constexpr int split_keys(std::size_t value_bytes, int heads) {
  return (heads == 2 ? 8 : 4) / (value_bytes == 4 ? 2 : 1);
}

struct Splits {
  int heads;        // query heads that a block serves: 2 or 8
  int head_groups;  // blocks for all query heads of a KV head
  int count;        // blocks over the keys
};
inline Splits splits_of(const AttentionDecode::Shape& s) {
  const int group = s.heads / s.kv_heads;
  Splits p{};
  p.heads = group <= 2 ? 2 : 8;
  p.head_groups = (group + p.heads - 1) / p.heads;
  const int step =
      kSplitWarps * split_keys(kv_bytes(s.kv), p.heads);  // keys of one step of a block
  const int wanted = std::max(1, kSplitBlocks / (s.kv_heads * p.head_groups));
  const int chunk = (s.keys + wanted - 1) / wanted;
  const int whole = (chunk + step - 1) / step * step;
  p.count = (s.keys + whole - 1) / whole;
  return p;
}
inline std::size_t split_scratch_bytes(const AttentionDecode::Shape& s) {
  return sizeof(float) * static_cast<std::size_t>(splits_of(s).count) *
         static_cast<std::size_t>(s.heads) * (static_cast<std::size_t>(s.head_dim) + 2);
}

}  // namespace assay::attention_decode
