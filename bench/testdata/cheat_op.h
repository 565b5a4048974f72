// An op whose variants cheat, each in one way of bench.md 1.7, and some that are honest. The tests require that the driver
// catches every cheat and no honest arm.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "kernels/base/op_info.h"
#include "kernels/base/registry.h"

namespace assay {

class Filler;

// y[i] = x[i] iterated through a logistic-like map; stock does the work kRedundancy times and keeps the last.
struct Cheat {
  static constexpr const char* kName = "cheat";
  static constexpr const char* kSwitch = "ASSAY_CHEAT";
  static constexpr const char* kSummary = "target of cheating arms";
  static constexpr OpKind kKind = OpKind::kKernel;
  static constexpr int kRedundancy = 8;

  struct Shape {
    int count = 64;      // elements
    int iterations = 8;  // of the map
    std::string describe() const;
  };
  struct Args {
    const float* x = nullptr;  // [count]
    float* y = nullptr;        // [count], written whole
  };
  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    v("x", a.x, static_cast<std::size_t>(s.count), Dir::kIn);
    v("y", a.y, static_cast<std::size_t>(s.count), Dir::kOut);
  }
  struct Case {
    std::string name;
    Shape shape;
    bool mostly_nonfinite = false;
  };
  static std::vector<Case> cases();  // "short_calls", "long_calls"
  static void fill(const Case&, const Filler&);
  static std::vector<std::vector<double>> reference(const Shape&, const Args&);
  static std::size_t workspace_bytes(const Shape&) { return 0; }
  static double error_bound(const Shape&) { return 1e-5; }
  static double bytes_moved(const Shape& s) { return 8.0 * s.count; }
  static double flops(const Shape& s) { return 3.0 * s.count * s.iterations; }
};

const OpInfo& cheat_op();

}  // namespace assay
