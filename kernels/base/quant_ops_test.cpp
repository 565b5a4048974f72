// The four ops over quantised matrices, through the registry: stock against the double reference, every variant against
// stock byte for byte, for several thread counts.
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/host_pool.h"
#include "kernels/base/measure.h"
#include "kernels/base/op_info.h"

namespace assay {
namespace {

class QuantOps : public ::testing::TestWithParam<const char*> {};

std::vector<std::byte> output_bytes(Problem& p) {
  std::vector<std::byte> bytes;
  for (const Field& f : p.fields()) {
    if (f.dir != Dir::kIn) bytes.insert(bytes.end(), f.data, f.data + f.bytes());
  }
  return bytes;
}

TEST_P(QuantOps, StockStaysWithinTheErrorBoundOfTheReferenceOnEveryCase) {
  const OpInfo& op = find_op(GetParam());
  HostPool pool(2);
  double worst_ratio = 0.0;
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    auto p = op.make_problem(i, 0);
    p->prepare(0);
    p->reset();
    p->run(0, Stream{.pool = &pool});
    const auto want = p->reference();
    ASSERT_EQ(want.size(), 1U);
    for (const Field& f : p->fields()) {
      if (f.dir != Dir::kOut) continue;
      const double error = rel_l2({reinterpret_cast<const float*>(f.data), f.count}, want[0]);
      EXPECT_TRUE(error <= p->error_bound()) << p->case_name() << ' ' << p->shape_text()
                                             << " error " << error << " bound " << p->error_bound();
      worst_ratio = std::max(worst_ratio, error / p->error_bound());
    }
    EXPECT_EQ(p->broken_guard(), "") << p->case_name();
  }
  RecordProperty("worst_error_over_bound", std::to_string(worst_ratio));
}

TEST_P(QuantOps, EveryVariantEqualsStockInEveryByteForAnyThreadCount) {
  const OpInfo& op = find_op(GetParam());
  HostPool one(1);
  HostPool two(2);
  HostPool four(4);
  std::vector<std::size_t> compared(op.variants.size(), 0);
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    auto p = op.make_problem(i, 0);
    p->prepare(0);
    p->reset();
    p->run(0, Stream{.pool = &one});
    const auto want = output_bytes(*p);
    for (int v = 0; v < static_cast<int>(op.variants.size()); ++v) {
      if (p->ineligible(v, host_device()) != nullptr) continue;
      p->prepare(v);
      for (HostPool* pool : {&one, &two, &four}) {
        p->reset();
        p->run(v, Stream{.pool = pool});
        const auto got = output_bytes(*p);
        ASSERT_EQ(got.size(), want.size());
        EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size()), 0)
            << op.variants[static_cast<std::size_t>(v)].name << ' ' << p->case_name() << ' '
            << p->shape_text() << " threads " << pool->threads();
        EXPECT_EQ(p->broken_guard(), "") << p->case_name();
        compared[static_cast<std::size_t>(v)] += want.size();
      }
    }
  }
  for (std::size_t v = 0; v < op.variants.size(); ++v) {
    const bool here = op.variants[v].name == "avx2"          ? host_device().avx2
                      : op.variants[v].name == "avx512_vnni" ? host_device().avx512_vnni
                                                             : op.variants[v].name == "stock";
    if (here) {
      EXPECT_GT(compared[v], 0U) << op.variants[v].name;
    }
  }
}

// A variant that falls back hands stock the weights it had prepared.
TEST_P(QuantOps, StockReadsWeightsInAVariantsLayout) {
  const OpInfo& op = find_op(GetParam());
  const int layout_of = op.find("avx2");
  ASSERT_GE(layout_of, 0);
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    if (op.case_names[i].find("26b") != std::string::npos)
      continue;  // as the small ones, only longer
    auto p = op.make_problem(i, 0);
    p->prepare(0);
    p->reset();
    p->run(0, Stream{});
    const auto want = output_bytes(*p);
    p->prepare(layout_of);
    p->reset();
    p->run_on_layout_of(layout_of, 0, Stream{});
    EXPECT_EQ(output_bytes(*p), want) << p->case_name();
  }
}

// And the variants take weights that nobody prepared.
TEST_P(QuantOps, VariantsReadWeightsInTheFilesLayout) {
  const OpInfo& op = find_op(GetParam());
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    if (op.case_names[i].find("26b") != std::string::npos) continue;
    auto p = op.make_problem(i, 0);
    p->prepare(0);
    p->reset();
    p->run(0, Stream{});
    const auto want = output_bytes(*p);
    for (const char* name : {"avx2", "avx512_vnni"}) {
      const int v = op.find(name);
      if (p->ineligible(v, host_device()) != nullptr) continue;
      p->reset();
      p->run_on_layout_of(0, v, Stream{});
      EXPECT_EQ(output_bytes(*p), want) << name << ' ' << p->case_name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    QuantOps,
    ::testing::Values("gemv_quant", "gemm_quant", "experts_host", "experts_prefill"),
    [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace assay
