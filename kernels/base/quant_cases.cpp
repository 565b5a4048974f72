#include "kernels/base/quant_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

namespace assay {
namespace {

float uniform(Rng& rng, float lo, float hi) {
  return lo + (hi - lo) * static_cast<float>(rng.uniform());
}

void fill_random_bytes(std::span<std::byte> bytes, Rng& rng) {
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t v = rng.next();
    std::memcpy(bytes.data() + i, &v, std::min<std::size_t>(8, bytes.size() - i));
  }
}

void put_half(std::byte* at, float v) {
  const std::uint16_t h = float_to_half(v);
  std::memcpy(at, &h, 2);
}

// Scale and, where the format has one, minimum such that the block's values have mean 0 and spread about `size`.
struct ScaleFacts {
  std::size_t d_at;
  std::ptrdiff_t m_at;  // -1: none
  float step;           // spread of code * multiplier
  float
      mean_in_steps;  // what the minimum has to take away, in units of d (with its own multiplier about 32)
};
ScaleFacts scale_facts(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0:
      return {0, -1, 4.6F, 0.0F};
    case BlockType::kQ5_0:
      return {0, -1, 9.2F, 0.0F};
    case BlockType::kQ8_0:
      return {0, -1, 74.0F, 0.0F};
    case BlockType::kQ4_1:
      return {0, 2, 4.6F, -7.5F};
    case BlockType::kQ5_1:
      return {0, 2, 9.2F, -15.5F};
    case BlockType::kQ4_K:
      return {0, 2, 4.6F * 36.0F, 7.5F};
    case BlockType::kQ5_K:
      return {0, 2, 9.2F * 36.0F, 15.5F};
    case BlockType::kQ6_K:
      return {208, -1, 18.5F * 74.0F, 0.0F};
    case BlockType::kF32:
    case BlockType::kF16:
    case BlockType::kBF16:
      break;
  }
  return {0, -1, 1.0F, 0.0F};
}

void fill_values(std::span<std::byte> blocks, BlockType type, Pattern pattern, Rng& rng) {
  const std::size_t n = blocks.size() / block_bytes(type);
  const std::size_t nan_at = pattern == Pattern::kNan ? rng.below(n) : n;
  for (std::size_t i = 0; i < n; ++i) {
    float v = uniform(rng, -0.1F, 0.1F);
    if (pattern == Pattern::kPositive) v = uniform(rng, 0.01F, 0.1F);
    if (pattern == Pattern::kAllEqual) v = 0.0625F;
    if (pattern == Pattern::kZeroBlocks && i / 32 % 2 == 1) v = 0.0F;
    if (pattern == Pattern::kDenormal) v *= i % 3 == 0 ? 1e-4F : 1e4F;
    if (pattern == Pattern::kHuge) v *= 1e5F;
    if (i == nan_at) v = NAN;
    quantize(type, &v, 1, blocks.data() + i * block_bytes(type));
  }
}

}  // namespace

void fill_blocks(std::span<std::byte> blocks, BlockType type, Pattern pattern, Rng& rng) {
  if (!has_codes(type)) {
    fill_values(blocks, type, pattern, rng);
    return;
  }
  fill_random_bytes(blocks, rng);
  const ScaleFacts facts = scale_facts(type);
  const std::size_t bytes = block_bytes(type);
  const std::size_t n = blocks.size() / bytes;
  const std::size_t nan_at = pattern == Pattern::kNan ? rng.below(n) : n;
  for (std::size_t i = 0; i < n; ++i) {
    std::byte* b = blocks.data() + i * bytes;
    float d = uniform(rng, 0.02F, 0.08F) / facts.step;
    if (rng.below(2) == 0) d = -d;
    if (pattern == Pattern::kPositive || pattern == Pattern::kAllEqual) d = 0.05F / facts.step;
    if (pattern == Pattern::kZeroBlocks && i % 2 == 1) d = 0.0F;
    if (pattern == Pattern::kDenormal)
      d = i % 2 == 0 ? 0x1p-24F * (1.0F + static_cast<float>(rng.below(1000))) : 1e3F / facts.step;
    if (pattern == Pattern::kHuge) d *= 1e5F;
    float m = d * facts.mean_in_steps;
    if (pattern == Pattern::kPositive) m = 0.0F;
    if (i == nan_at) d = NAN;
    put_half(b + facts.d_at, d);
    if (facts.m_at >= 0) put_half(b + facts.m_at, m);
    if (pattern == Pattern::kAllEqual || pattern == Pattern::kPositive) {
      // Codes at the top of the range: one value everywhere, or (with some low bits left random) all positive.
      for (std::size_t j = 0; j < bytes; ++j) {
        const bool scale = (j >= facts.d_at && j < facts.d_at + 2) || (facts.m_at >= 0 && j < 4);
        if (scale) continue;
        if (pattern == Pattern::kAllEqual) {
          b[j] = type == BlockType::kQ8_0 || (type == BlockType::kQ6_K && j >= 192)
                     ? std::byte{100}
                     : std::byte{0xDD};
        } else {
          b[j] = type == BlockType::kQ8_0 || (type == BlockType::kQ6_K && j >= 192)
                     ? b[j] & std::byte{0x7F}
                     : b[j] | std::byte{0x88};
        }
      }
      if (pattern == Pattern::kPositive && type == BlockType::kQ5_0) std::memset(b + 2, 0xFF, 4);
      if (pattern == Pattern::kPositive && type == BlockType::kQ6_K) {
        for (int j = 128; j < 192; ++j) b[j] |= std::byte{0xAA};
      }
    }
  }
}

void fill_activations(std::span<float> x, Pattern pattern, Rng& rng) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    float v = static_cast<float>(rng.normal());
    switch (pattern) {
      case Pattern::kPlain:
      case Pattern::kNan:
        break;
      case Pattern::kPositive:
        v = std::fabs(v) + 0.1F;
        break;
      case Pattern::kAllEqual:
        v = 0.75F;
        break;
      case Pattern::kZeroBlocks:
        if (i / 32 % 3 == 1) v = i % 2 == 0 ? 0.0F : -0.0F;
        break;
      case Pattern::kDenormal:
        if (i / 32 % 2 == 1) v *= 1e-39F;
        break;
      case Pattern::kHuge:
        v *= 1e6F;
        break;
      case Pattern::kInfinity:
        if (i % 97 == 5) v = rng.below(2) == 0 ? INFINITY : -INFINITY;
        break;
    }
    x[i] = v;
  }
  if (pattern == Pattern::kNan && !x.empty()) x[x.size() > 7 ? 7 : 0] = NAN;
}

void fill_routing(std::span<std::int32_t> ids,
                  std::span<float> weights,
                  int top_k,
                  int experts,
                  Routing routing,
                  Rng& rng) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
  const auto k = static_cast<std::size_t>(top_k);
  const auto one = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(experts)));
  for (std::size_t t = 0; t * k < ids.size(); ++t) {
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = 0; i < order.size(); ++i) {
      // Skewed: the first half of the ranks keep their place in seven tokens of eight.
      if (routing == Routing::kSkewed && i < k / 2 + 1 && rng.below(8) != 0) continue;
      std::swap(order[i], order[i + rng.below(order.size() - i)]);
    }
    float left = 1.0F;
    for (std::size_t i = 0; i < k; ++i) {
      ids[t * k + i] = routing == Routing::kOneExpert ? one : order[i % order.size()];
      if (routing == Routing::kHoles && rng.below(3) == 0) ids[t * k + i] = -1;
      weights[t * k + i] = i + 1 < k ? left * uniform(rng, 0.3F, 0.5F) : left;
      left -= weights[t * k + i];
    }
  }
}

}  // namespace assay
