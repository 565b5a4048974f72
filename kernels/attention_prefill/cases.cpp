#include <limits>

#include "kernels/attention_prefill/op.h"
#include "kernels/base/blocks.h"
#include "kernels/base/op_impl.h"

namespace assay {

std::vector<AttentionPrefill::Case> AttentionPrefill::cases() {
  constexpr KvType kF32 = KvType::kF32;
  constexpr KvType kF16 = KvType::kF16;
  const auto local = [](std::string name, int tokens, int past, KvType kv) {
    return Case{.name = std::move(name), .shape = {tokens, 4, 2, 64, past, 64, 64, kv}};
  };
  const auto full =
      [](std::string name, int tokens, int heads, int kv_heads, int hd, int past, KvType kv) {
        const int slots = past > 0 ? past : 1;
        return Case{.name = std::move(name),
                    .shape = {tokens, heads, kv_heads, hd, past, slots, 0, kv}};
      };
  std::vector<Case> cases = {
      full("one_token", 1, 4, 2, 64, 0, kF32),
      full("tokens_31", 31, 4, 2, 64, 0, kF32),
      full("tokens_32", 32, 4, 2, 64, 0, kF16),
      full("tokens_33", 33, 4, 2, 64, 0, kF32),
      full("tokens_after_past", 20, 4, 2, 64, 37, kF32),
      full("over_a_block_edge", 40, 2, 1, 64, 240, kF32),
      full("three_blocks", 24, 2, 1, 32, 600, kF16),
      // the ring: filling, full, wrapped; chunks shorter and longer than the window
      local("window_less_one", 1, 62, kF32),
      local("window", 1, 63, kF32),
      local("window_plus_one", 1, 64, kF32),
      local("chunk_fills_ring", 64, 0, kF32),
      local("chunk_of_three_windows", 192, 0, kF32),
      local("chunk_over_wrapped_ring", 50, 101, kF16),
      local("long_chunk_over_wrapped_ring", 130, 1000, kF32),
      local("ring_block_edge", 20, 250, kF32),
      // geometries
      full("head_32", 9, 4, 2, 32, 3, kF32),
      full("head_128_group_4", 17, 4, 1, 128, 11, kF16),
      full("head_256_group_2", 8, 16, 8, 256, 5, kF16),
      full("head_512_group_8", 8, 16, 2, 512, 5, kF32),
      full("head_18_odd_width", 7, 3, 3, 18, 4, kF32),
      full("group_3", 19, 6, 2, 64, 2, kF32),
      full("head_512_f16", 20, 8, 1, 512, 30, kF16),
  };
  cases.push_back({.name = "head_256_ring_f16", .shape = {40, 4, 2, 256, 150, 64, 64, kF16}});
  cases.push_back({.name = "window_of_one", .shape = {9, 4, 2, 64, 7, 1, 1, kF32}});
  cases.push_back({.name = "window_not_a_multiple", .shape = {30, 4, 2, 64, 90, 37, 37, kF32}});
  cases.push_back({.name = "slots_above_window", .shape = {30, 4, 2, 64, 90, 41, 37, kF16}});
  cases.push_back({.name = "deep_position", .shape = {3, 4, 2, 64, 100000, 128, 128, kF32}});
  cases.push_back(
      {.name = "ties", .shape = {33, 4, 2, 64, 10, 10, 0, kF32}, .values = Values::kEqual});
  cases.push_back(
      {.name = "huge", .shape = {33, 4, 2, 64, 10, 10, 0, kF32}, .values = Values::kHuge});
  cases.push_back({.name = "nan",
                   .shape = {33, 4, 2, 64, 10, 10, 0, kF32},
                   .mostly_nonfinite = true,
                   .values = Values::kNan});
  return cases;
}

void AttentionPrefill::fill(const Case& c, const Filler& f) {
  Rng rng(f.seed());
  const auto hd = static_cast<double>(c.shape.head_dim);
  // As after the model's norms: |k| about 1 a component; q scaled so that scores are of order 4.
  for (auto& x : f.get<float>("q")) x = static_cast<float>(rng.normal() * 4.0 / std::sqrt(hd));
  for (const char* name : {"k_past", "v_past", "k_fresh", "v_fresh"}) {
    const auto value = [&] {
      return c.values == Values::kEqual && name[0] == 'k' ? 1.0 : rng.normal();
    };
    if (c.shape.kv == KvType::kF32) {
      for (auto& x : f.get<float>(name)) x = static_cast<float>(value());
    } else {
      for (auto& x : f.get<std::uint16_t>(name)) x = float_to_half(static_cast<float>(value()));
    }
  }
  const auto row = static_cast<std::size_t>(c.shape.kv_heads * c.shape.head_dim);
  if (c.values == Values::kHuge) {
    // From fresh token 7 on one key takes all the weight with a score near 1e30; the others underflow to +0.
    for (auto& x : f.get<float>("q")) x = std::fabs(x) * 1e15F;
    const auto k = f.get<float>("k_fresh");
    for (std::size_t i = 0; i < row; ++i) k[7 * row + i] = 1e15F;
  }
  if (c.values == Values::kNan) {
    // Everything that sees fresh token 2 becomes NaN in group 0; one infinite value in the last group.
    f.get<float>("k_fresh")[2 * row] = std::numeric_limits<float>::quiet_NaN();
    f.get<float>("v_fresh")[3 * row - 1] = std::numeric_limits<float>::infinity();
  }
}

}  // namespace assay
