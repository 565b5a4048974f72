#include "parity/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "kernels/base/measure.h"

namespace assay {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_float(DType type) { return type == DType::kF32 || type == DType::kF16; }

std::string number(double v) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", v);
  return text;
}

// Same finite value class: both finite, both NaN, or the same infinity.
bool same_kind(double a, double b) {
  if (std::isfinite(a) && std::isfinite(b)) return true;
  return (std::isnan(a) && std::isnan(b)) || (std::isinf(a) && a == b);
}

std::string shape_fault(const Output& got, const Output& want, const std::string& than) {
  if (got.field == want.field && got.dtype == want.dtype && got.count == want.count) return {};
  return "outputs do not correspond: " + got.field + " " + to_string(got.dtype) + "[" +
         std::to_string(got.count) + "] here, " + want.field + " " + to_string(want.dtype) + "[" +
         std::to_string(want.count) + "] in " + than;
}

}  // namespace

Outputs take_outputs(Problem& problem) {
  Outputs outputs;
  for (const Field& f : problem.fields()) {
    if (f.dir == Dir::kIn) continue;
    outputs.push_back({f.name, f.dtype, f.count, {f.data, f.data + f.bytes()}});
  }
  return outputs;
}

std::size_t total_bytes(const Outputs& outputs) {
  std::size_t sum = 0;
  for (const auto& o : outputs) sum += o.bytes.size();
  return sum;
}

std::size_t total_values(const Outputs& outputs) {
  std::size_t sum = 0;
  for (const auto& o : outputs) sum += o.count;
  return sum;
}

std::string coordinate(const Output& output, std::size_t index, int rows) {
  std::string text = output.field + "[" + std::to_string(index) + "]";
  const auto n = static_cast<std::size_t>(std::max(rows, 0));
  if (n > 1 && output.count % n == 0) {
    const std::size_t columns = output.count / n;
    text += " (row " + std::to_string(index / columns) + " of " + std::to_string(n) + ", column " +
            std::to_string(index % columns) + ")";
  }
  return text;
}

ByteComparison compare_bytes(const Outputs& got,
                             const Outputs& want,
                             int rows,
                             const std::string& than) {
  ByteComparison result;
  if (got.size() != want.size()) {
    result.fault = "outputs do not correspond: " + std::to_string(got.size()) + " fields here, " +
                   std::to_string(want.size()) + " in " + than;
    return result;
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    const Output& g = got[i];
    const Output& w = want[i];
    if (std::string fault = shape_fault(g, w, than); !fault.empty()) {
      result.fault = std::move(fault);
      return result;
    }
    const Difference d = measure_bytes(g.dtype, g.bytes.data(), w.bytes.data(), g.bytes.size());
    result.mismatched_bytes += d.mismatched_bytes;
    result.max_ulp = std::max(result.max_ulp, d.max_ulp);
    if (d.mismatched_bytes == 0 || !result.fault.empty()) continue;
    const std::size_t width = dtype_bytes(g.dtype);
    std::size_t first = g.count;
    std::size_t differing = 0;
    for (std::size_t e = 0; e < g.count; ++e) {
      if (std::memcmp(&g.bytes[e * width], &w.bytes[e * width], width) == 0) continue;
      first = std::min(first, e);
      ++differing;
    }
    result.fault = coordinate(g, first, rows) + ": got " +
                   element_text(g.dtype, g.bytes.data(), first) + ", " + than + " has " +
                   element_text(w.dtype, w.bytes.data(), first) + "; " + std::to_string(differing) +
                   " of " + std::to_string(g.count) + " values differ";
  }
  return result;
}

ReferenceComparison compare_reference(const Outputs& got,
                                      const std::vector<std::vector<double>>& reference,
                                      const std::vector<double>& bounds,
                                      int rows) {
  ReferenceComparison result;
  if (reference.size() != got.size()) {
    result.fault = "the reference has " + std::to_string(reference.size()) +
                   " fields, the outputs " + std::to_string(got.size());
    result.worst = kInfinity;
    return result;
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    const Output& g = got[i];
    const auto& want = reference[i];
    if (want.size() != g.count) {
      result.fault = "the reference gives " + std::to_string(want.size()) + " values for " +
                     g.field + " of " + std::to_string(g.count);
      result.worst = kInfinity;
      return result;
    }
    double error = 0.0;
    double norm = 0.0;
    double worst_distance = -1.0;
    std::size_t worst_at = 0;
    std::size_t unlike = 0;  // discrete: unequal; float: non-finite of another kind
    for (std::size_t e = 0; e < g.count; ++e) {
      const double v = element_value(g.dtype, g.bytes.data(), e);
      const bool alike = is_float(g.dtype) ? same_kind(v, want[e]) : v == want[e];
      double distance = 0.0;
      if (!alike) {
        ++unlike;
        distance = kInfinity;
      } else if (std::isfinite(v)) {
        distance = std::fabs(v - want[e]);
        error += distance * distance;
        norm += want[e] * want[e];
      }
      if (distance > worst_distance) {
        worst_distance = distance;
        worst_at = e;
      }
    }
    double rel = 0.0;
    if (unlike > 0) {
      rel = kInfinity;
    } else if (error > 0.0) {
      rel = norm > 0.0 ? std::sqrt(error / norm) : kInfinity;
    }
    result.rel_l2.push_back(rel);
    result.worst = worse(result.worst, rel);
    if (rel <= bounds.at(i) || !result.fault.empty()) continue;
    result.fault = coordinate(g, worst_at, rows) + ": got " +
                   element_text(g.dtype, g.bytes.data(), worst_at) + ", the reference has " +
                   number(want[worst_at]);
    if (unlike > 0) {
      result.fault +=
          "; " + std::to_string(unlike) + " of " + std::to_string(g.count) +
          (is_float(g.dtype) ? " values are finite on one side only" : " discrete values differ");
    } else {
      result.fault += "; relative L2 " + number(rel) + " is above the bound " + number(bounds[i]);
    }
  }
  return result;
}

std::string find_unwritten(const Outputs& on_first,
                           std::byte first,
                           const Outputs& on_second,
                           std::byte second,
                           int rows) {
  for (std::size_t i = 0; i < on_first.size(); ++i) {
    const Output& a = on_first[i];
    const Output& b = on_second.at(i);
    const std::size_t width = dtype_bytes(a.dtype);
    std::size_t at = a.count;
    std::size_t missing = 0;
    for (std::size_t e = 0; e < a.count; ++e) {
      const auto untouched = [&](const Output& o, std::byte poison) {
        for (std::size_t k = e * width; k < (e + 1) * width; ++k) {
          if (o.bytes[k] != poison) return false;
        }
        return true;
      };
      if (!untouched(a, first) || !untouched(b, second)) continue;
      at = std::min(at, e);
      ++missing;
    }
    if (missing > 0) {
      return coordinate(a, at, rows) + " was never written; " + std::to_string(missing) + " of " +
             std::to_string(a.count) + " values are missing";
    }
  }
  return {};
}

double nonfinite_share(const Outputs& fields, const std::vector<std::vector<double>>& reference) {
  std::size_t all = 0;
  std::size_t bad = 0;
  for (std::size_t i = 0; i < std::min(fields.size(), reference.size()); ++i) {
    if (!is_float(fields[i].dtype)) continue;
    all += reference[i].size();
    for (const double v : reference[i]) bad += std::isfinite(v) ? 0 : 1;
  }
  return all == 0 ? 0.0 : static_cast<double>(bad) / static_cast<double>(all);
}

}  // namespace assay
