#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/attention_decode/op.h"
#include "kernels/base/host_pool.h"
#include "kernels/base/measure.h"
#include "kernels/base/op_impl.h"

namespace assay {
namespace {

std::vector<std::byte> outputs(Problem& p) {
  std::vector<std::byte> all;
  for (const auto& f : p.fields()) {
    if (f.dir == Dir::kOut) all.insert(all.end(), f.data, f.data + f.bytes());
  }
  return all;
}

TEST(AttentionDecode, StockStaysWithinTheBoundOfTheDoubleReferenceInEveryCase) {
  const OpInfo& op = find_op(AttentionDecode::kName);
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

TEST(AttentionDecode, ThreadsDoNotChangeABit) {
  const OpInfo& op = find_op(AttentionDecode::kName);
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

TEST(AttentionDecode, HostVariantsGiveTheBytesOfStock) {
  const OpInfo& op = find_op(AttentionDecode::kName);
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
