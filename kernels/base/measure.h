// How far two outputs are apart. NaN where the reference is finite is infinitely far; it never passes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/base/op_info.h"

namespace assay {

struct Difference {
  double rel_l2 = 0.0;  // ||got - want|| / ||want||; infinity when a non-finite position differs
  std::uint64_t max_ulp = 0;  // steps between floats; the maximum value for NaN against a number
  std::uint64_t mismatched_bytes = 0;  // bytes that differ
  std::size_t compared = 0;            // elements
  std::size_t worst_index = 0;         // element with the largest difference
};

// Relative L2 of float outputs against a double reference. Both zero: 0. Infinity unless every non-finite position
// of `want` is met by the same kind (same-signed infinity, or NaN) and every finite one by a finite value.
double rel_l2(std::span<const float> got, std::span<const double> want);
// Distance in representable floats, sign-aware; 0 for equal bits and for +0 against -0.
std::uint64_t ulp_distance(float a, float b);
// The element as a number (quantised bytes: their unsigned value), and for messages: "0.1 (0x3dcccccd)".
double element_value(DType dtype, const std::byte* data, std::size_t index);
std::string element_text(DType dtype, const std::byte* data, std::size_t index);
// Byte and value difference of two buffers of one dtype (integers: rel_l2 counts values as numbers).
Difference measure_bytes(DType dtype,
                         const std::byte* got,
                         const std::byte* want,
                         std::size_t bytes);
// The larger of two distances; NaN counts as larger than everything (and comes back as infinity).
double worse(double a, double b);

}  // namespace assay
