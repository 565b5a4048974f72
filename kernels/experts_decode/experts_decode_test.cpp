#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/host_pool.h"
#include "kernels/base/op_info.h"
#include "kernels/experts_decode/op.h"

namespace assay {
namespace {

std::vector<std::byte> output_bytes(Problem& p) {
  std::vector<std::byte> bytes;
  for (const Field& f : p.fields()) {
    if (f.dir == Dir::kOut) bytes.insert(bytes.end(), f.data, f.data + f.bytes());
  }
  return bytes;
}

std::vector<std::byte> run_stock(Problem& p, HostPool& pool) {
  p.prepare(0);
  p.reset();
  p.run(0, Stream{.pool = &pool});
  EXPECT_EQ(p.broken_guard(), "") << p.case_name();
  return output_bytes(p);
}

// The device's int8 variants are held to experts_host, so both ops must mean the same.
TEST(ExpertsDecode, HostStockGivesTheBytesOfExpertsHostInEveryCase) {
  const OpInfo& op = find_op(ExpertsDecode::kName);
  const OpInfo& host = find_op("experts_host");
  ASSERT_EQ(op.case_names, host.case_names);
  HostPool pool(2);
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    const auto ours = op.make_problem(i, 0);
    const auto theirs = host.make_problem(i, 0);
    for (const Field& f : ours->fields()) {
      if (f.dir == Dir::kIn) {
        ASSERT_TRUE(theirs->set_input(f)) << f.name;
      }
    }
    const auto got = run_stock(*ours, pool);
    ASSERT_FALSE(got.empty());
    EXPECT_EQ(got, run_stock(*theirs, pool)) << op.case_names[i];
  }
}

// The reason of a variant's own rule, whatever this build has.
Why reason(const char* name, Numerics lane) {
  DeviceInfo device;
  device.backend = Backend::kCuda;
  for (const auto& [variant_name, variant] : variants<ExpertsDecode>()) {
    if (std::string(variant_name) != name) continue;
    return variant->ineligible == nullptr
               ? nullptr
               : variant->ineligible(ExpertsDecode::Shape{.numerics = lane}, device);
  }
  return "no such variant";
}

TEST(ExpertsDecode, Int8VariantsRefuseTheExactLane) {
  for (const char* name : {"chain_dp4a", "grouped_dp4a"}) {
    EXPECT_STREQ(reason(name, Numerics::kExact),
                 "multiplies int8 activations: the exact lane has none");
    EXPECT_EQ(reason(name, Numerics::kFast), nullptr);
  }
  EXPECT_EQ(reason("grouped", Numerics::kExact), nullptr);
  EXPECT_EQ(reason("stock", Numerics::kExact), nullptr);
}

}  // namespace
}  // namespace assay
