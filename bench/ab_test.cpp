// The driver against real child processes: every cheat of bench.md 1.7 is caught, honest arms are not.
#include "bench/ab.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/cold.h"
#include "bench/process.h"
#include "bench/testdata/cheat_op.h"
#include "bench/verify.h"
#include "kernels/base/error.h"
#include "kernels/base/json_schema.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;

Plan short_plan(const std::string& b, const std::vector<std::string>& tiers) {
  Plan p;
  p.op = "cheat";
  p.b = b;
  p.family = "cheat";
  p.pairs = 8;
  p.blocks = 4;
  p.block_us = 200;
  for (const auto& t : tiers)
    p.tiers.push_back({t, "micro", 1.0 / static_cast<double>(tiers.size()), true});
  return p;
}

json sitting(const Plan& plan, std::vector<std::string> child_args = {}, double timeout_s = 20.0) {
  ProcessOptions options;
  options.executable = CHEAT_CHILD;
  options.child_args = std::move(child_args);
  options.timeout_s = timeout_s;
  const auto device = make_process_device(cheat_op(), plan, options);
  AbInputs inputs;
  inputs.parity = {{"record_sha256", ""},
                   {"outcome", "pass"},
                   {"class", "bitwise"},
                   {"worst_rel_l2", 0.0},
                   {"max_ulp", 0},
                   {"cases", 1},
                   {"exe_sha256", ""}};
  inputs.peer = {{"name", nullptr}, {"reason", "test"}};
  inputs.machine = machine_record();
  inputs.scratch = true;
  json record = run_ab(plan, *device, inputs);
  seal_record(record);
  const auto faults = schema_faults(*schema_named("abg-result"), record);
  EXPECT_TRUE(faults.empty()) << faults.front();
  const auto verified = record_faults(record);
  EXPECT_TRUE(verified.empty()) << verified.front();
  return record;
}

std::string reasons(const json& record) { return record.at("verdict").at("reasons").dump(); }

// A cheat on the tier where its defence must work.
struct Caught {
  const char* arm;
  const char* tier;
  const char* word;
  const char* reason;
};
class CheatingArm : public testing::TestWithParam<Caught> {};

TEST_P(CheatingArm, IsCaught) {
  const Caught& c = GetParam();
  // Two of the defences compare clocks, and these sittings are four blocks long: other work on the machine can drown
  // the difference, so a sitting that misses is held again. A defence that does not work misses every time.
  json record = sitting(short_plan(c.arm, {c.tier}), {}, 3.0);
  for (int again = 0; again < 2 && record.at("verdict").at("word") != c.word; ++again) {
    record = sitting(short_plan(c.arm, {c.tier}), {}, 3.0);
  }
  EXPECT_EQ(record.at("verdict").at("word"), c.word) << reasons(record);
  EXPECT_NE(reasons(record).find(c.reason), std::string::npos) << reasons(record);
}

INSTANTIATE_TEST_SUITE_P(
    Ab,
    CheatingArm,
    testing::Values(
        Caught{"memoise", "short_calls", "INVALID", "only while its input repeats"},
        Caught{"replay_pointer", "long_calls", "REJECT", "wrong answer"},
        Caught{"stale_output", "long_calls", "REJECT", "wrong answer"},
        Caught{"nan_output", "long_calls", "REJECT", "wrong answer"},
        Caught{"late_thread", "long_calls", "REJECT", "wrong answer"},
        Caught{"skip_calls", "long_calls", "REJECT", "wrong answer"},
        Caught{"poison_detector", "short_calls", "INVALID", "only while its input repeats"},
        Caught{"lazy", "long_calls", "REJECT", "wrong answer"},
        Caught{"mutate_input", "long_calls", "REJECT", "changed its inputs"},
        Caught{"detect_warmup", "long_calls", "REJECT", "wrong answer"},
        Caught{"low_precision", "long_calls", "REJECT", "wrong answer"},
        Caught{"overrun", "long_calls", "REJECT", "wrote outside"},
        Caught{"crash", "long_calls", "REJECT", "CRASH"},
        Caught{"hang", "long_calls", "REJECT", "HANG"},
        Caught{"garbage", "long_calls", "REJECT", "GARBAGE"},
        Caught{"patched_clock", "long_calls", "INVALID", "disagrees with the parent"},
        Caught{"ineligible", "long_calls", "INVALID", "does not exist"}),
    [](const auto& chosen) { return std::string(chosen.param.arm); });

TEST(CheatingArms, WinningOneShapeAndLosingAnotherIsRejectedByTheTierGuard) {
  const json record = sitting(short_plan("one_shape", {"short_calls", "long_calls"}));
  EXPECT_EQ(record.at("verdict").at("word"), "REJECT") << reasons(record);
  EXPECT_NE(reasons(record).find("tier long_calls"), std::string::npos) << reasons(record);
  EXPECT_GT(record.at("analysis").at("estimate").get<double>(),
            0.0);  // the mean alone would have praised it
}

TEST(CheatingArms, HelperThreadsGainNothingOnTheCoresOfThePlan) {
  const json record = sitting(short_plan("helper_threads", {"long_calls"}));
  EXPECT_NE(record.at("verdict").at("word"), "STACK-MEMBER") << reasons(record);
}

TEST(HonestArm, WithLessWorkIsAStackMember) {
  const json record = sitting(short_plan("honest_fast", {"short_calls", "long_calls"}));
  EXPECT_EQ(record.at("verdict").at("word"), "STACK-MEMBER") << reasons(record);
  EXPECT_GT(record.at("analysis").at("speedup").get<double>(), 2.0);
  EXPECT_EQ(record.at("analysis").at("d").size(), 8U);
  EXPECT_EQ(record.at("aa").at("pairs"), 2);
}

TEST(HonestArm, WithTheSameWorkIsNeverCalledACheat) {
  const json record = sitting(short_plan("honest_same", {"short_calls", "long_calls"}));
  EXPECT_NE(record.at("verdict").at("word"), "INVALID") << reasons(record);
  EXPECT_EQ(reasons(record).find("wrong answer"), std::string::npos) << reasons(record);
}

TEST(Driver, ReadsTheSwitchFromTheProcessAndNotFromItsWord) {
  // The child runs stock whatever its environment says, and says so.
  const json record = sitting(short_plan("honest_fast", {"long_calls"}), {"--deaf"});
  EXPECT_EQ(record.at("verdict").at("word"), "INVALID");
  EXPECT_NE(reasons(record).find("resolved 'stock', not 'honest_fast'"), std::string::npos)
      << reasons(record);
}

TEST(Driver, GivesBothArmsAnEnvironmentOfOneLength) {
  const json record = sitting(short_plan("honest_fast", {"long_calls"}));
  EXPECT_EQ(record.at("arms")[0].at("env_bytes"), record.at("arms")[1].at("env_bytes"));
  EXPECT_GT(record.at("arms")[0].at("env_bytes").get<int>(), 0);
  EXPECT_EQ(record.at("arms")[0].at("argv"), record.at("arms")[1].at("argv"));
  EXPECT_EQ(record.at("arms")[1].at("exe_sha256").get<std::string>().size(), 64U);
}

TEST(Driver, ComparesStockWithItselfAsANullExperiment) {
  const json record = sitting(short_plan("stock", {"long_calls"}));
  EXPECT_NE(record.at("verdict").at("word"), "STACK-MEMBER");
  EXPECT_NE(reasons(record).find("no code difference"), std::string::npos) << reasons(record);
}

TEST(Driver, RepeatsTheInjectedShareOfCalls) {
  // Real work, so the clock sees it: twice the calls take twice the time of those that count.
  Plan plan = short_plan("stock", {"short_calls"});
  plan.injected = 1.0;
  const json record = sitting(plan);
  EXPECT_EQ(record.at("verdict").at("word"), "REJECT") << reasons(record);
  EXPECT_NEAR(record.at("analysis").at("speedup").get<double>(), 0.5, 0.05);
}

TEST(Driver, FourPairsMakeNoClaim) {
  Plan plan = short_plan("honest_fast", {"long_calls"});
  plan.pairs = 4;
  plan.stage = "smoke";
  plan.protocol = "abg4";
  const json record = sitting(plan);
  EXPECT_EQ(record.at("verdict").at("word"), "INCONCLUSIVE");
  EXPECT_TRUE(record.at("analysis").at("interval").is_null());
  EXPECT_NEAR(record.at("analysis").at("bootstrap_legacy").at("coverage_percentile").get<double>(),
              0.875,
              0.01);
  EXPECT_NE(reasons(record).find("B won 4 of 4"), std::string::npos) << reasons(record);
}

TEST(Cold, TheCanarySeesThatRepeatedReadsOfOneSetAreWarm) {
  if (!host_device().avx2) GTEST_SKIP() << "the probe needs AVX2";
  const OpInfo& op = find_op("gemv_quant");
  const std::size_t tier = find_case(op, "26b_down_22_blocks_fast");
  const json hot = measure_coldness(op, tier, "hot");
  EXPECT_EQ(hot.at("sets"), 1);
  EXPECT_GT(hot.at("ratio").get<double>(), kCanaryLimit) << hot;
}

TEST(Cold, SetsOfATurnAreThreeCaches) {
  EXPECT_EQ(sets_for_turn(32.0, 3.0), 32);
  EXPECT_EQ(sets_for_turn(32.0, 100.0), 1);
  const OpInfo& op = find_op("gemv_quant");
  const std::size_t tier = find_case(op, "26b_gate_up_fast");
  HostSets sets(op, tier, "cold-rotate");
  EXPECT_GE(static_cast<double>(sets.size()) * sets.set_bytes(),
            kCachesToTurn * host_cache_bytes());
  EXPECT_EQ(&sets.at(1), &sets.at(sets.size() + 1)) << "turns begin again";
  EXPECT_NE(&sets.at(0), &sets.at(1));
}

TEST(Driver, RefusesToStartWhenThePlanCannotSeeItsOwnBar) {
  const Plan plan = short_plan("honest_fast", {"long_calls"});
  const auto device = make_process_device(cheat_op(), plan, {CHEAT_CHILD, {}, 10.0});
  AbInputs inputs;
  inputs.aa_pool = {0.1, -0.1, 0.05, -0.07};
  EXPECT_THROW(run_ab(plan, *device, inputs), UserError);
}

}  // namespace
}  // namespace assay
