#include "kernels/base/measure.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace assay {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double element(DType dtype, const std::byte* p, std::size_t i) {
  switch (dtype) {
    case DType::kF32: {
      float v = 0.0F;
      std::memcpy(&v, p + 4 * i, 4);
      return v;
    }
    case DType::kF16: {
      std::uint16_t v = 0;
      std::memcpy(&v, p + 2 * i, 2);
      return half_to_float(v);
    }
    case DType::kI32: {
      std::int32_t v = 0;
      std::memcpy(&v, p + 4 * i, 4);
      return v;
    }
    case DType::kI8:
      return static_cast<std::int8_t>(p[i]);
    case DType::kU8:
      return static_cast<std::uint8_t>(p[i]);
  }
  return 0.0;
}

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

}  // namespace

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
  const auto ordered = [](float f) -> std::int64_t {
    const auto bits = std::bit_cast<std::int32_t>(f);
    return bits >= 0 ? bits
                     : static_cast<std::int64_t>(std::numeric_limits<std::int32_t>::min()) - bits;
  };
  const std::int64_t d = ordered(a) - ordered(b);
  return static_cast<std::uint64_t>(d < 0 ? -d : d);
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
    const double g = element(dtype, got, i);
    const double w = element(dtype, want, i);
    sum.add(g, w);
    double distance = std::fabs(g - w);
    if (std::isnan(distance)) distance = std::isnan(g) && std::isnan(w) ? 0.0 : kInfinity;
    if (distance > worst) {
      worst = distance;
      out.worst_index = i;
    }
    if (dtype == DType::kF32) {
      out.max_ulp =
          std::max(out.max_ulp, ulp_distance(static_cast<float>(g), static_cast<float>(w)));
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
