// Device scratch of experts_prefill's grouped variants, and how calls and buckets are cut.
#pragma once
#include "kernels/experts_prefill/scratch.h"

namespace assay::experts_prefill {

constexpr int kGroupedTokens = 1024;  // tokens a pass: bounds y
constexpr int kTileRows = 64;         // slots of one tile
constexpr int kMaxExperts = 1024;

// Tiles that the buckets of a call can make: a full share of the slots, and each expert's last one.
inline int most_tiles(const ExpertsPrefill::Shape& s) {
  const int slots = std::min(s.tokens, kGroupedTokens) * s.top_k;
  return slots / kTileRows + std::min(s.experts, slots);
}

struct GroupedScratch {
  std::int32_t* begin;    // [experts + 1]
  std::int32_t* slots;    // [slots] token * top_k + rank, by expert
  std::int32_t* tiles;    // [most_tiles]
  std::uint16_t* x;       // [tokens][hidden] in half
  float* x_scales;        // [tokens]
  float* u;               // [slots][width] by expert
  std::uint16_t* u_half;  // the same in half
  float* u_scales;        // [slots]
  float* y;               // [slots][hidden] by token
  std::size_t bytes;
};
inline GroupedScratch grouped_scratch(const ExpertsPrefill::Shape& s, std::byte* base) {
  const auto tokens = static_cast<std::size_t>(std::min(s.tokens, kGroupedTokens));
  const std::size_t slots = tokens * static_cast<std::size_t>(s.top_k);
  const auto hidden = static_cast<std::size_t>(s.hidden);
  const auto width = static_cast<std::size_t>(s.width);
  Pieces pieces(base);
  GroupedScratch p{};
  p.begin = pieces.take<std::int32_t>(static_cast<std::size_t>(s.experts) + 1);
  p.slots = pieces.take<std::int32_t>(slots);
  p.tiles = pieces.take<std::int32_t>(static_cast<std::size_t>(most_tiles(s)));
  p.x = pieces.take<std::uint16_t>(tokens * hidden);
  p.x_scales = pieces.take<float>(tokens);
  p.u = pieces.take<float>(slots * width);
  p.u_half = pieces.take<std::uint16_t>(slots * width);
  p.u_scales = pieces.take<float>(slots);
  p.y = pieces.take<float>(slots * hidden);
  p.bytes = pieces.bytes();
  return p;
}
inline std::size_t grouped_scratch_bytes(const ExpertsPrefill::Shape& s) {
  return grouped_scratch(s, nullptr).bytes;
}

}  // namespace assay::experts_prefill
