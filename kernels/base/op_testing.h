// What the tests of the ops share. Included by tests only.
#pragma once
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/measure.h"
#include "kernels/base/op_impl.h"

namespace assay {

// All pure outputs of a problem that has run, one after the other.
inline std::vector<std::byte> outputs(Problem& p) {
  std::vector<std::byte> all;
  for (const auto& f : p.fields()) {
    if (f.dir == Dir::kOut) all.insert(all.end(), f.data, f.data + f.bytes());
  }
  return all;
}

// Runs host stock on every case: whole numbers equal the double reference's, floats lie within the op's bound, and nothing
// outside the outputs was written. Wrap in ASSERT_NO_FATAL_FAILURE.
inline void expect_stock_within_the_bound(const OpInfo& op) {
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    const auto p = op.make_problem(i, 0);
    p->prepare(0);
    p->reset();
    p->run(0, {});
    ASSERT_EQ(p->broken_guard(), "") << op.case_names[i];
    const auto want = p->reference();
    std::size_t out = 0;
    for (const auto& f : p->fields()) {
      if (f.dir == Dir::kIn) continue;
      const auto& w = want.at(out++);
      ASSERT_EQ(w.size(), f.count) << f.name;
      if (f.dtype == DType::kI32) {
        for (std::size_t j = 0; j < f.count; ++j) {
          std::int32_t got = 0;
          std::memcpy(&got, f.data + 4 * j, 4);
          ASSERT_EQ(got, w[j]) << op.case_names[i] << " " << f.name << "[" << j << "]";
        }
      } else {
        const double d = rel_l2({reinterpret_cast<const float*>(f.data), f.count}, w);
        ASSERT_LE(d, p->error_bound()) << op.case_names[i] << " " << f.name;
      }
    }
    ASSERT_EQ(out, want.size());
  }
}

}  // namespace assay
