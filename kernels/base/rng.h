// The house's seeded generator: xoshiro256** seeded by splitmix64 (Blackman and Vigna, public domain algorithms).
// The same stream on every compiler, which std:: distributions do not promise.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace assay {

// GCC and clang extension, named once so that -Wpedantic builds stay quiet.
__extension__ using UInt128 = unsigned __int128;

class Rng {
 public:
  explicit Rng(std::uint64_t seed) {
    for (auto& s : s_) {
      seed += 0x9E3779B97F4A7C15ULL;
      std::uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
      s = z ^ (z >> 31);
    }
  }
  std::uint64_t next() {
    const std::uint64_t result = std::rotl(s_[1] * 5, 7) * 9;
    const std::uint64_t t = s_[1] << 17;
    s_[2] ^= s_[0];
    s_[3] ^= s_[1];
    s_[1] ^= s_[2];
    s_[0] ^= s_[3];
    s_[2] ^= t;
    s_[3] = std::rotl(s_[3], 45);
    return result;
  }
  // [0, 1) with 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // [0, n), n >= 1; unbiased (Lemire's multiply with rejection).
  std::uint64_t below(std::uint64_t n) {
    for (;;) {
      const UInt128 m = static_cast<UInt128>(next()) * n;
      const auto low = static_cast<std::uint64_t>(m);
      if (low >= (0 - n) % n) return static_cast<std::uint64_t>(m >> 64);
    }
  }
  // Standard normal, Box-Muller; two uniforms a value so that the stream position is predictable.
  double normal() {
    const double u = 1.0 - uniform();
    const double v = uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }

 private:
  std::uint64_t s_[4];
};

// FNV-1a: a seed from a test's or case's name, so that order and filters change nothing.
constexpr std::uint64_t seed_from_name(std::string_view name) {
  std::uint64_t h = 0xCBF29CE484222325ULL;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return h;
}

}  // namespace assay
