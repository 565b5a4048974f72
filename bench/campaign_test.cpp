// The rules of `assay prove` on the synthetic device: reuse, candidates, pairs, what may be armed.
#include "bench/campaign.h"

#include <cmath>
#include <functional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/ab.h"
#include "bench/calibration.h"
#include "bench/synthetic.h"
#include "kernels/base/build_id.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;

Plan plan_of(const std::string& b) {
  Plan p;
  p.op = "synthetic";
  p.b = b;
  p.family = "synthetic";
  p.pairs = 12;
  p.blocks = 2;
  p.tiers = {{"short", "micro", 0.5, true}, {"long", "micro", 0.5, true}};
  return p;
}

json record_of(const Plan& plan, double effect, const std::string& time = "2026-01-02T00:00:00Z") {
  const auto device = make_synthetic_device(plan, {.name = "normal", .pair_sd = 0.005}, effect, 9);
  json record = run_ab(plan, *device, synthetic_inputs());
  record["recorded_utc"] = time;
  for (json& arm : record["arms"]) {
    arm["exe_sha256"] = "binary";
    arm["source_digest"] = source_digest(plan.op, arm["variant"].get<std::string>());
  }
  seal_record(record);
  return record;
}

Standing here(const json& record) {
  return {record.at("machine").at("card"),
          record.at("build").at("commit"),
          record.at("build").at("tree_sha256"),
          "binary",
          record.at("scratch")};
}

TEST(Resume, UsesARecordOnlyOfThisPlanBuildCardAndSources) {
  const Plan plan = plan_of("trial");
  const json record = record_of(plan, 0.05);
  const Standing now = here(record);
  ASSERT_TRUE(stands_for(record, plan, now));
  Plan other = plan;
  other.pairs = 16;
  EXPECT_FALSE(stands_for(record, other, now));
  for (const auto& change :
       std::vector<std::function<void(Standing&)>>{[](Standing& s) { s.card = "another"; },
                                                   [](Standing& s) { s.commit = "another"; },
                                                   [](Standing& s) { s.tree_sha256 = "another"; },
                                                   [](Standing& s) { s.exe_sha256 = "another"; },
                                                   [](Standing& s) { s.scratch = !s.scratch; }}) {
    Standing changed = now;
    change(changed);
    EXPECT_FALSE(stands_for(record, plan, changed));
  }
  for (const int arm : {0, 1}) {
    json moved = record;
    moved["arms"][arm]["source_digest"] = std::string(64, '0');
    EXPECT_FALSE(stands_for(moved, plan, now)) << "arm " << arm;
  }
}

TEST(Resume, TheFirstAnswerStandsWhateverItSaid) {
  const Plan plan = plan_of("trial");
  const json lost = record_of(plan, -0.05, "2026-01-02T00:00:00Z");
  const json won = record_of(plan, 0.05, "2026-01-03T00:00:00Z");
  ASSERT_EQ(lost.at("verdict").at("word"), "REJECT");
  const std::vector<json> stored{won, lost};
  const json* first = first_standing(stored, plan, here(lost));
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->at("record_sha256"), lost.at("record_sha256"));
  EXPECT_EQ(first_standing({}, plan, here(lost)), nullptr);
}

TEST(Candidates, AreTheSoundOnesAheadOfStockBestFirst) {
  const std::vector<Screened> screened{{"slower", true, -0.1},
                                       {"third", true, 0.1},
                                       {"best", true, 0.9},
                                       {"refused", false, 2.0},
                                       {"second", true, 0.5},
                                       {"fourth", true, 0.05},
                                       {"nan", true, std::nan("")}};
  EXPECT_EQ(candidates(screened, 3), (std::vector<std::size_t>{2, 4, 1}));
  EXPECT_EQ(candidates(screened, 1), (std::vector<std::size_t>{2}));
  EXPECT_TRUE(candidates({{"slower", true, -0.1}, {"equal", true, 0.0}}, 3).empty());
}

TEST(ConfirmationPlan, TakesPairsAndThenTheBarFromTheNoise) {
  const auto planned = [](double sd, int asked = 0) {
    return confirmation_plan(plan_of("trial"), 2, {sd, -sd, sd, -sd}, asked);
  };
  const auto quiet = planned(0.005);
  ASSERT_TRUE(quiet);
  EXPECT_EQ(quiet->pairs, 12);
  EXPECT_EQ(quiet->family_size, 2);
  EXPECT_EQ(quiet->stage, "confirm");
  EXPECT_EQ(planned(0.015)->pairs, 16);
  EXPECT_EQ(planned(0.02)->pairs, 24);
  EXPECT_EQ(planned(0.02)->bar, 1.015);
  EXPECT_EQ(planned(0.04)->bar, 1.05);
  EXPECT_EQ(planned(0.005, 8)->pairs, 8);
  EXPECT_EQ(planned(0.1, 8)->bar, 1.2);
  EXPECT_FALSE(planned(1.0));
  EXPECT_EQ(confirmation_plan(plan_of("trial"), 1, {}, 0)->pairs, 12) << "nothing known";
}

TEST(Arming, NeedsAClaimEveryTierAndTheBar) {
  json record = record_of(plan_of("trial"), 0.05);
  EXPECT_EQ(not_armed_because(record), "");
  json under = record;
  under["plan"]["body"]["bars"]["effect"] = 1.2;
  EXPECT_NE(not_armed_because(under), "");
  json tier = record;
  tier["analysis"]["tiers"][1]["guard"] = "UNPROVEN";
  EXPECT_EQ(not_armed_because(tier), "tier long is UNPROVEN");
  for (const char* word : {"INCONCLUSIVE", "INVALID", "REJECT", "NO-EFFECT"}) {
    json other = record;
    other["verdict"]["word"] = word;
    EXPECT_EQ(not_armed_because(other).rfind(word, 0), 0U) << word;
  }
}

}  // namespace
}  // namespace assay
