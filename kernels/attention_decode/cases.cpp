#include <limits>

#include "kernels/attention_decode/op.h"
#include "kernels/base/blocks.h"
#include "kernels/base/op_impl.h"

namespace assay {

std::vector<AttentionDecode::Case> AttentionDecode::cases() {
  constexpr KvType kF32 = KvType::kF32;
  constexpr KvType kF16 = KvType::kF16;
  const auto local = [](std::string name, int position, KvType kv) {
    constexpr int kWindow = 64;
    const int keys = position + 1 < kWindow ? position + 1 : kWindow;
    return Case{.name = std::move(name), .shape = {4, 2, 64, position, keys, kWindow, kv}};
  };
  const auto full = [](std::string name, int heads, int kv_heads, int hd, int keys, KvType kv) {
    return Case{.name = std::move(name), .shape = {heads, kv_heads, hd, keys - 1, keys, keys, kv}};
  };
  std::vector<Case> cases = {
      // key counts around the vector width and the block
      full("one_key", 4, 2, 64, 1, kF32),
      full("keys_15", 2, 1, 64, 15, kF32),
      full("keys_16", 2, 1, 64, 16, kF16),
      full("keys_31", 4, 2, 64, 31, kF32),
      full("keys_32", 4, 2, 64, 32, kF32),
      full("keys_33", 4, 2, 64, 33, kF16),
      full("keys_255", 2, 1, 64, 255, kF32),
      full("keys_256", 2, 1, 64, 256, kF32),
      full("keys_257", 2, 1, 64, 257, kF16),
      full("keys_1000", 4, 1, 128, 1000, kF32),
      // a ring before, at and after its first wrap
      local("window_less_one", 62, kF32),
      local("window", 63, kF32),
      local("window_plus_one", 64, kF32),
      local("window_f16", 64, kF16),
      local("ring_wrapped_far", 1000, kF32),
      local("ring_block_edge", 255, kF32),
      local("ring_after_block_edge", 256, kF16),
      // geometries: head sizes, groups
      full("head_32", 4, 2, 32, 40, kF32),
      full("head_128_group_4", 4, 1, 128, 70, kF16),
      full("head_256_group_2", 16, 8, 256, 48, kF16),
      full("head_512_group_8", 16, 2, 512, 48, kF16),
      full("head_512_f32", 8, 1, 512, 300, kF32),
      full("head_18_odd_width", 3, 3, 18, 21, kF32),
      full("group_1", 3, 3, 64, 21, kF32),
      full("group_3", 6, 2, 64, 21, kF32),
  };
  // the position read at the launch: first token, inside, the largest; a ring before, at and after its wrap
  const auto live = [&](std::string name, int position, Shape most) {
    most.live = true;
    cases.push_back({.name = std::move(name), .shape = most, .live_position = position});
  };
  live("live_first", 0, {4, 2, 64, 255, 256, 512, kF32});
  live("live_inside", 70, {16, 2, 512, 255, 256, 512, kF16});
  live("live_most", 255, {4, 2, 64, 255, 256, 512, kF32});
  live("live_ring_not_full", 62, {4, 2, 64, 255, 64, 64, kF32});
  live("live_ring_wrapped", 200, {4, 2, 64, 255, 64, 64, kF16});
  live("live_deep", 1100, {4, 1, 128, 2047, 2048, 3000, kF32});
  // keys outnumber the visible ones: a cache deeper than the window, positions beyond 2^15
  cases.push_back({.name = "deep_position", .shape = {4, 2, 64, 100000, 128, 131, kF32}});
  cases.push_back({.name = "slots_above_keys", .shape = {4, 2, 64, 39, 33, 50, kF32}});
  cases.push_back(
      {.name = "ties", .shape = {4, 2, 64, 99, 100, 100, kF32}, .values = Values::kEqual});
  cases.push_back(
      {.name = "sharp", .shape = {4, 2, 64, 299, 300, 300, kF32}, .values = Values::kSharp});
  cases.push_back(
      {.name = "huge", .shape = {4, 2, 64, 99, 100, 100, kF32}, .values = Values::kHuge});
  cases.push_back({.name = "nan",
                   .shape = {4, 2, 64, 99, 100, 100, kF32},
                   .mostly_nonfinite = true,
                   .values = Values::kNan});
  return cases;
}

void AttentionDecode::fill(const Case& c, const Filler& f) {
  Rng rng(f.seed());
  if (c.shape.live) f.get<std::int32_t>("position")[0] = c.live_position;
  const double spread = c.values == Values::kSharp ? 2.0 : 1.0;
  const auto hd = static_cast<double>(c.shape.head_dim);
  // As after the model's norms: |k| about 1 a component; q scaled so that scores are of order `4 spread`.
  for (auto& x : f.get<float>("q"))
    x = static_cast<float>(rng.normal() * 4.0 * spread / std::sqrt(hd));
  const auto value = [&](bool key) {
    if (c.values == Values::kEqual && key) return 1.0;
    return rng.normal();
  };
  const auto rows = [&](const char* name, bool key) {
    if (c.shape.kv == KvType::kF32) {
      for (auto& x : f.get<float>(name)) x = static_cast<float>(value(key));
    } else {
      for (auto& x : f.get<std::uint16_t>(name)) x = float_to_half(static_cast<float>(value(key)));
    }
  };
  rows("k", true);
  rows("v", false);
  if (c.values == Values::kHuge) {
    // One key takes all the weight with a score near 1e30; the others underflow to +0.
    const auto q = f.get<float>("q");
    const auto k = f.get<float>("k");
    const auto row = static_cast<std::size_t>(c.shape.kv_heads * c.shape.head_dim);
    for (auto& x : q) x = std::fabs(x) * 1e15F;
    for (std::size_t i = 0; i < row; ++i) k[7 * row + i] = 1e15F;
  }
  if (c.values == Values::kNan) {
    // The first group's newest key: only that group's heads become NaN... and one value of the second group.
    const auto row = static_cast<std::size_t>(c.shape.kv_heads * c.shape.head_dim);
    const auto newest = static_cast<std::size_t>(c.shape.position % c.shape.slots) * row;
    f.get<float>("k")[newest] = std::numeric_limits<float>::quiet_NaN();
    f.get<float>("v")[newest + row - 1] = std::numeric_limits<float>::infinity();
  }
}

}  // namespace assay
