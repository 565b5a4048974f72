#include <vector>

#include "gtest/gtest.h"

#include "kernels/attention_prefill/op.h"
#include "kernels/base/host_pool.h"
#include "kernels/base/op_testing.h"

namespace assay {
namespace {

TEST(AttentionPrefill, StockStaysWithinTheBoundOfTheDoubleReferenceInEveryCase) {
  ASSERT_NO_FATAL_FAILURE(expect_stock_within_the_bound(find_op(AttentionPrefill::kName)));
}

TEST(AttentionPrefill, ThreadsDoNotChangeABit) {
  const OpInfo& op = find_op(AttentionPrefill::kName);
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    const auto p = op.make_problem(i, 0);
    p->prepare(0);
    p->reset();
    p->run(0, {});
    const auto alone = outputs(*p);
    for (const int threads : {2, 3}) {
      HostPool pool(threads);
      p->reset();
      p->run(0, {.pool = &pool});
      ASSERT_EQ(outputs(*p), alone) << op.case_names[i] << " with " << threads << " threads";
    }
  }
}

TEST(AttentionPrefill, HostVariantsGiveTheBytesOfStock) {
  const OpInfo& op = find_op(AttentionPrefill::kName);
  HostPool pool(2);
  std::size_t compared = 0;
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    const auto p = op.make_problem(i, 0);
    p->prepare(0);
    p->reset();
    p->run(0, {});
    const auto stock = outputs(*p);
    for (std::size_t v = 1; v < op.variants.size(); ++v) {
      const int variant = static_cast<int>(v);
      if (!op.variants[v].host_declared || p->ineligible(variant, host_device()) != nullptr)
        continue;
      p->prepare(variant);
      p->reset();
      p->run(variant, {.pool = &pool});
      ASSERT_EQ(p->broken_guard(), "") << op.variants[v].name << " " << op.case_names[i];
      ASSERT_EQ(outputs(*p), stock) << op.variants[v].name << " " << op.case_names[i];
      ++compared;
    }
  }
  EXPECT_GE(compared, host_device().avx2 ? op.case_names.size() / 2 : 0U);
}

}  // namespace
}  // namespace assay
