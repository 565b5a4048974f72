#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/host_pool.h"
#include "kernels/base/measure.h"
#include "kernels/base/op_impl.h"
#include "kernels/router_topk/op.h"

namespace assay {
namespace {

std::vector<std::byte> outputs(Problem& p) {
  std::vector<std::byte> all;
  for (const auto& f : p.fields()) {
    if (f.dir == Dir::kOut) all.insert(all.end(), f.data, f.data + f.bytes());
  }
  return all;
}

TEST(RouterTopk, StockStaysWithinTheBoundOfTheDoubleReferenceInEveryCase) {
  const OpInfo& op = find_op(RouterTopk::kName);
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    const auto p = op.make_problem(i, 0);
    p->prepare(0);
    p->reset();
    p->run(0, {});
    ASSERT_EQ(p->broken_guard(), "") << op.case_names[i];
    const auto want = p->reference();
    std::size_t out = 0;
    for (const auto& f : p->fields()) {
      if (f.dir != Dir::kOut) continue;
      const auto& w = want.at(out++);
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
  }
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
