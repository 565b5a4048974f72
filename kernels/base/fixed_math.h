// exp, tanh and GELU whose every operation is written down, so that scalar and vector code on any CPU give the same
// bits (the C library promises neither its accuracy nor its bits). Each function is a fixed sequence of IEEE float
// operations, fma written out; a vector version repeats the sequence lane by lane.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace assay {
namespace fixed_math {

// Adding 1.5 * 2^23 rounds to an integer that then sits in the low mantissa bits.
inline constexpr float kRound = 12582912.0F;
inline constexpr std::uint32_t kRoundBits = 0x4B400000U;
inline constexpr float kLog2E = 1.44269504F;
// ln 2 in two parts; the first has few bits, so that n * kLn2High is exact.
inline constexpr float kLn2High = 0.693359375F;
inline constexpr float kLn2Low = -2.12194440e-4F;
// (e^r - 1 - r) / r^2 on |r| <= ln2 / 2 (Cephes expf).
inline constexpr float kExp[6] = {1.9875691500e-4F,
                                  1.3981999507e-3F,
                                  8.3334519073e-3F,
                                  4.1665795894e-2F,
                                  1.6666665459e-1F,
                                  5.0000001201e-1F};
inline constexpr float kExpLowest = -87.336544F;  // below: +0
inline constexpr float kExpHighest = 88.376262F;  // above: +infinity
inline constexpr float kTanhSaturates = 18.1F;    // of 2|x|: tanh rounds to 1 from here
inline constexpr float kGeluCubic = 0.044715F;
inline constexpr float kGeluOuter = -1.5957691F;  // -2 sqrt(2 / pi)

struct Reduced {
  float q;                // e^r - 1
  std::uint32_t rounded;  // kRoundBits + n
};
// x = n ln2 + r.
inline Reduced reduce(float x) {
  const float t = std::fma(x, kLog2E, kRound);
  const float n = t - kRound;
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, x));
  float p = kExp[0];
  for (int i = 1; i < 6; ++i) p = std::fma(p, r, kExp[i]);
  return {std::fma(p, r * r, r), std::bit_cast<std::uint32_t>(t)};
}
inline float power_of_two(std::uint32_t rounded) {
  return std::bit_cast<float>((rounded - kRoundBits + 127U) << 23);
}

}  // namespace fixed_math

// e^x within 2 ulp; +0 below -87.34, infinity above 88.37; NaN stays NaN.
inline float exp_fixed(float x) {
  const auto [q, rounded] = fixed_math::reduce(x);
  const float y = (q + 1.0F) * fixed_math::power_of_two(rounded);
  if (x < fixed_math::kExpLowest) return 0.0F;
  if (x > fixed_math::kExpHighest) return INFINITY;
  return y;
}

// tanh x within 3 ulp, also near 0; NaN stays NaN.
inline float tanh_fixed(float x) {
  const float twice = 2.0F * std::fabs(x);
  const auto [q, rounded] =
      fixed_math::reduce(twice > fixed_math::kTanhSaturates ? fixed_math::kTanhSaturates : twice);
  const float s = fixed_math::power_of_two(rounded);
  const float e = std::fma(q, s, s - 1.0F);  // e^(2|x|) - 1
  return std::copysign(e / (e + 2.0F), x);
}

// 0.5 z (1 + tanh(sqrt(2/pi) z (1 + 0.044715 z^2))), evaluated as z / (1 + e^-2u): no cancellation for negative z.
inline float gelu_fixed(float z) {
  const float t = std::fma(z * z, fixed_math::kGeluCubic, 1.0F);
  return z / (1.0F + exp_fixed((z * fixed_math::kGeluOuter) * t));
}

}  // namespace assay
