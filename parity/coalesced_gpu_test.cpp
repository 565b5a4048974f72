// What an issue or a variant's note promises beside its class: the coalesced attention kernels against stock itself, where parity
// judges both against the double reference.
#include <string>

#include "gtest/gtest.h"

#include "kernels/base/gpu_memory.h"
#include "kernels/base/measure.h"
#include "kernels/base/op_info.h"

namespace assay {
namespace {

// The CPU executor takes the cases that it ends in a second.
constexpr double kExecutedWork = 3e6;

class CoalescedOnGpu : public ::testing::TestWithParam<const char*> {};

TEST_P(CoalescedOnGpu, IsWithin1e5OfStockOnEveryCase) {
  if (const Why why = gpu::unavailable()) GTEST_SKIP() << why;
  const OpInfo& op = find_op(GetParam());
  const int stock = op.find("stock");
  const int coalesced = op.find("coalesced");
  ASSERT_GE(coalesced, 0);
  int compared = 0;
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    const auto problem = op.make_problem(i, 0);
    if (problem->mostly_nonfinite() || problem->ineligible(coalesced, gpu::device()) != nullptr)
      continue;
    if (gpu::simulated() && problem->flops() > kExecutedWork) continue;
    problem->use_device(false);
    std::vector<std::byte> want;
    for (const int variant : {stock, coalesced}) {
      problem->prepare(variant);
      problem->reset();
      problem->run(variant, {});
      for (const Field& f : problem->fields()) {
        if (f.dir == Dir::kIn) continue;
        if (variant == stock) {
          want.assign(f.data, f.data + f.bytes());
        } else {
          const Difference d = measure_bytes(f.dtype, f.data, want.data(), f.bytes());
          EXPECT_LE(d.rel_l2, 1e-5) << op.name << " " << op.case_names[i];
          EXPECT_GT(d.compared, 0U);
          ++compared;
        }
      }
    }
  }
  EXPECT_GE(compared, gpu::simulated() ? 5 : 20);
}

INSTANTIATE_TEST_SUITE_P(Ops,
                         CoalescedOnGpu,
                         ::testing::Values("attention_prefill", "attention_decode"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace assay
