// Comparators: what a run left in its outputs against what it should have left. All are written as "fail unless shown
// to be within", so that NaN never passes. Each returns a fault in words (field, coordinate, both values and bits, how
// much differs) or an empty string.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/op_info.h"

namespace assay {

// The outputs of one run: one entry per kOut or kInOut field, in field order.
struct Output {
  std::string field;
  DType dtype = DType::kF32;
  std::size_t count = 0;
  std::vector<std::byte> bytes;
};
using Outputs = std::vector<Output>;
Outputs take_outputs(Problem& problem);
std::size_t total_bytes(const Outputs& outputs);
std::size_t total_values(const Outputs& outputs);

// Where an element is, in words: "y[137] (row 4 of 8, column 5)" when rows divides the field, else "y[137]".
std::string coordinate(const Output& output, std::size_t index, int rows);

struct ByteComparison {
  std::string fault;                   // empty: every byte is equal
  std::uint64_t mismatched_bytes = 0;  // over all fields
  std::uint64_t max_ulp = 0;  // over float fields; the maximum value for NaN against a number
};
// Every byte of every field; both must have the same fields. `than` names what `want` is ("stock", "the first run").
ByteComparison compare_bytes(const Outputs& got,
                             const Outputs& want,
                             int rows,
                             const std::string& than);

struct ReferenceComparison {
  std::string fault;  // empty: within the bound, and discrete fields exact
  std::vector<double>
      rel_l2;  // a field; infinity when non-finite positions differ; 0 for an exact discrete field
  double worst = 0.0;  // the largest of them
};
// Against the lane's double reference. Float fields: relative L2 at most bounds[field], and non-finite positions of the
// same kind. Integer and byte fields: equal. The reference must cover every field whole, else that is the fault.
ReferenceComparison compare_reference(const Outputs& got,
                                      const std::vector<std::vector<double>>& reference,
                                      const std::vector<double>& bounds,
                                      int rows);

// Elements that held the first poison after a run on it and the second after a run on that: nobody wrote them.
std::string find_unwritten(
    const Outputs& on_first, std::byte first, const Outputs& on_second, std::byte second, int rows);

// Share of non-finite values in the reference's float fields, 0..1.
double nonfinite_share(const Outputs& fields, const std::vector<std::vector<double>>& reference);

}  // namespace assay
