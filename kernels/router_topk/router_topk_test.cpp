#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/host_pool.h"
#include "kernels/base/op_testing.h"
#include "kernels/router_topk/op.h"

namespace assay {
namespace {

TEST(RouterTopk, StockStaysWithinTheBoundOfTheDoubleReferenceInEveryCase) {
  ASSERT_NO_FATAL_FAILURE(expect_stock_within_the_bound(find_op(RouterTopk::kName)));
}

TEST(RouterTopk, ThreadsDoNotChangeABit) {
  const OpInfo& op = find_op(RouterTopk::kName);
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

}  // namespace
}  // namespace assay
