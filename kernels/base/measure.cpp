#include "kernels/base/measure.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

namespace assay {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Accumulates a relative L2 in which non-finite positions must agree in kind.
class RelL2 {
 public:
  void add(double got, double want) {
    if (std::isfinite(want) && std::isfinite(got)) {
      error_ += (got - want) * (got - want);
      norm_ += want * want;
    } else if (!(std::isnan(got) && std::isnan(want)) && !(std::isinf(got) && got == want)) {
      broken_ = true;
    }
  }
  double value() const {
    if (broken_) return kInfinity;
    if (error_ == 0.0) return 0.0;
    return norm_ > 0.0 ? std::sqrt(error_ / norm_) : kInfinity;
  }

 private:
  double error_ = 0.0;
  double norm_ = 0.0;
  bool broken_ = false;
};

// Steps between two finite or infinite values of a float format whose bits, sign cleared, count upwards.
std::uint64_t ordered_distance(std::int64_t a, std::int64_t b, std::int64_t sign) {
  const auto ordered = [sign](std::int64_t bits) { return bits < sign ? bits : sign - bits; };
  const std::int64_t d = ordered(a) - ordered(b);
  return static_cast<std::uint64_t>(d < 0 ? -d : d);
}

std::uint64_t half_ulp_distance(std::uint16_t a, std::uint16_t b) {
  if (std::isnan(half_to_float(a)) || std::isnan(half_to_float(b))) {
    return a == b ? 0 : std::numeric_limits<std::uint64_t>::max();
  }
  return ordered_distance(a, b, 0x8000);
}

template <class T>
T load(const std::byte* p, std::size_t i) {
  T v;
  std::memcpy(&v, p + sizeof(T) * i, sizeof(T));
  return v;
}

}  // namespace

double element_value(DType dtype, const std::byte* p, std::size_t i) {
  switch (dtype) {
    case DType::kF32:
      return load<float>(p, i);
    case DType::kF16:
      return half_to_float(load<std::uint16_t>(p, i));
    case DType::kI32:
      return load<std::int32_t>(p, i);
    case DType::kI8:
      return load<std::int8_t>(p, i);
    case DType::kU8:
      return load<std::uint8_t>(p, i);
  }
  return 0.0;
}

std::string element_text(DType dtype, const std::byte* p, std::size_t i) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, p + dtype_bytes(dtype) * i, dtype_bytes(dtype));
  char text[64];
  std::snprintf(text,
                sizeof text,
                "%.9g (0x%0*x)",
                element_value(dtype, p, i),
                static_cast<int>(2 * dtype_bytes(dtype)),
                bits);
  return text;
}

double rel_l2(std::span<const float> got, std::span<const double> want) {
  if (got.size() != want.size()) return kInfinity;
  RelL2 sum;
  for (std::size_t i = 0; i < got.size(); ++i) sum.add(got[i], want[i]);
  return sum.value();
}

std::uint64_t ulp_distance(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b)
               ? 0
               : std::numeric_limits<std::uint64_t>::max();
  }
  return ordered_distance(
      std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b), 0x80000000);
}

Difference measure_bytes(DType dtype,
                         const std::byte* got,
                         const std::byte* want,
                         std::size_t bytes) {
  Difference out;
  out.compared = bytes / dtype_bytes(dtype);
  for (std::size_t i = 0; i < bytes; ++i) out.mismatched_bytes += got[i] != want[i] ? 1 : 0;
  RelL2 sum;
  double worst = -1.0;
  for (std::size_t i = 0; i < out.compared; ++i) {
    const double g = element_value(dtype, got, i);
    const double w = element_value(dtype, want, i);
    sum.add(g, w);
    double distance = g == w ? 0.0 : std::fabs(g - w);
    if (std::isnan(distance)) distance = std::isnan(g) && std::isnan(w) ? 0.0 : kInfinity;
    if (distance > worst) {
      worst = distance;
      out.worst_index = i;
    }
    if (dtype == DType::kF32) {
      out.max_ulp = std::max(out.max_ulp, ulp_distance(load<float>(got, i), load<float>(want, i)));
    } else if (dtype == DType::kF16) {
      out.max_ulp =
          std::max(out.max_ulp,
                   half_ulp_distance(load<std::uint16_t>(got, i), load<std::uint16_t>(want, i)));
    }
  }
  out.rel_l2 = sum.value();
  return out;
}

double worse(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return kInfinity;
  return a > b ? a : b;
}

}  // namespace assay
