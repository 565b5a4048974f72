// The whole pipeline on a device whose truth is known: coverage, false wins, power. Fixed seeds, two-sided alpha 0.05.
#include "bench/synthetic.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/ab.h"
#include "bench/analysis.h"
#include "bench/calibration.h"
#include "bench/stats.h"
#include "bench/verify.h"
#include "kernels/base/error.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;

class NoiseScenario : public testing::TestWithParam<int> {
 protected:
  NoiseModel noise() const { return noise_scenarios(0.01)[static_cast<std::size_t>(GetParam())]; }
};

// Reduced: the nightly table has 4,000 repetitions of every cell.
TEST_P(NoiseScenario, IsCoveredAsTheLevelSays) {
  for (const int pairs : {8, 12}) {
    const CalibrationCell cell = run_calibration_cell(noise(), pairs, 0.015, 1000, 1);
    EXPECT_GE(cell.coverage(), 0.93) << pairs;
    EXPECT_LE(cell.coverage(), 0.977) << pairs;
  }
}

TEST_P(NoiseScenario, CallsEqualArmsDifferentAsOftenAsTheLevelSays) {
  const CalibrationCell cell = run_calibration_cell(noise(), 8, 0.0, 1000, 2);
  EXPECT_GE(cell.different, 28);
  EXPECT_LE(cell.different, 61);
  EXPECT_LE(cell.wins, 33);
}

INSTANTIATE_TEST_SUITE_P(Pipeline, NoiseScenario, testing::Range(0, 8), [](const auto& chosen) {
  return noise_scenarios(0.01)[static_cast<std::size_t>(chosen.param)].name;
});

TEST(Pipeline, FindsOneAndAHalfPercentInEightPairs) {
  const CalibrationCell cell =
      run_calibration_cell({.name = "normal", .pair_sd = 0.01}, 8, std::log(1.015), 500, 3);
  EXPECT_GE(cell.power(), 0.80);
}

TEST(Pipeline, FindsOneAndAHalfPercentAmongSpikesInTwelvePairs) {
  const CalibrationCell cell =
      run_calibration_cell({.name = "spikes", .pair_sd = 0.0075, .tail = 0.1, .spike_mean = 0.04},
                           12,
                           std::log(1.015),
                           500,
                           4);
  EXPECT_GE(cell.power(), 0.80);
}

TEST(Pipeline, TwelveNoOpsSeldomYieldAMember) {
  // Screen twelve, confirm the best three with fresh data: a campaign in which any is claimed is a false one.
  const CampaignCell cell = run_null_campaigns(12, 200, 5);
  EXPECT_LE(cell.with_claim, 17);  // 5 % of 200 plus two standard errors
}

Plan small_plan() {
  Plan p;
  p.op = "synthetic";
  p.b = "trial";
  p.family = "synthetic";
  p.pairs = 8;
  p.blocks = 2;
  p.tiers = {{"short", "micro", 0.5, true}, {"long", "micro", 0.5, true}};
  return p;
}

json small_record(double effect = 0.05) {
  const Plan plan = small_plan();
  const auto device = make_synthetic_device(plan, {.name = "normal", .pair_sd = 0.01}, effect, 9);
  json record = run_ab(plan, *device, synthetic_inputs());
  seal_record(record);
  return record;
}

TEST(Pipeline, FindsInjectedSlowdownsOfKnownSize) {
  int contained = 0;
  for (const double share : {0.005, 0.01, 0.02, 0.05}) {
    for (std::uint64_t seed = 0; seed < 25; ++seed) {
      Plan plan = small_plan();
      plan.a = plan.b = "trial_" + std::to_string(seed);
      plan.injected = share;
      const auto device =
          make_synthetic_device(plan, {.name = "normal", .pair_sd = 0.003}, 0.0, seed);
      const json record = run_ab(plan, *device, synthetic_inputs());
      contained += record.at("analysis").at("injected").at("contained").get<bool>() ? 1 : 0;
      if (share >= 0.02) {
        EXPECT_EQ(record.at("verdict").at("word"), "REJECT") << share;
      }
    }
  }
  EXPECT_GE(contained, 93);  // of 100
}

TEST(Record, Abg4IsFourAlternatingPairsWithTheSmallestAndLargestAsItsInterval) {
  Plan plan = small_plan();
  plan.protocol = "abg4";
  plan.pairs = 4;
  plan.stage = "smoke";
  const auto device = make_synthetic_device(plan, {.name = "normal", .pair_sd = 0.01}, 0.05, 9);
  json record = run_ab(plan, *device, synthetic_inputs());
  seal_record(record);
  EXPECT_TRUE(record_faults(record).empty());
  const json& analysis = record.at("analysis");
  EXPECT_EQ(analysis.at("o"), (json{1, -1, 1, -1}));
  EXPECT_EQ(analysis.at("pairs"),
            (json{1, 2, 3, 4}));  // adjacent: only the burn-in lies before them
  auto ratios = analysis.at("abg4").at("ratios").get<std::vector<double>>();
  std::sort(ratios.begin(), ratios.end());
  EXPECT_EQ(analysis["abg4"].at("interval"), (json{ratios.front(), ratios.back()}));
  EXPECT_EQ(record.at("verdict").at("word"), "INCONCLUSIVE");
  record["analysis"]["abg4"]["meets_bar"] = false;
  seal_record(record);
  const auto faults = record_faults(record);
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(faults.front().find("analysis/abg4/meets_bar"), std::string::npos) << faults.front();
}

TEST(Record, VerifiesAsWritten) {
  const json record = small_record();
  EXPECT_TRUE(record_faults(record).empty()) << record_faults(record).front();
  EXPECT_EQ(record.at("verdict").at("word"), "STACK-MEMBER");
  const auto text = canonical_json(record) + "\n";
  EXPECT_EQ(verify_records(text, "memory").size(), 1U);
}

// Changes one value and reseals as a careful forger would; the verifier must name the place.
void expect_named(json record,
                  const std::string& pointer,
                  const json& value,
                  const std::string& named) {
  record[json::json_pointer(pointer)] = value;
  seal_record(record);
  const auto faults = record_faults(record);
  ASSERT_FALSE(faults.empty()) << pointer;
  bool found = false;
  for (const auto& f : faults) found = found || f.find(named) != std::string::npos;
  EXPECT_TRUE(found) << pointer << " gave: " << faults.front();
}

TEST(Record, WrittenBeforeTheHarnessMeasuredItselfStillVerifies) {
  json record = small_record();
  record.erase("harness");
  seal_record(record);
  EXPECT_TRUE(record_faults(record).empty());
}

TEST(Record, AColdClaimOfTheHostRestsOnACanaryForEveryTier) {
  json record = small_record();
  Plan plan = plan_from_json(record.at("plan").at("body"), "plan");
  plan.regime = "cold-rotate";
  AbInputs inputs = synthetic_inputs();
  for (const PlanTier& t : plan.tiers)
    inputs.cold[t.id] = {{"cache_bytes", 1e6},
                         {"sets", 3},
                         {"set_bytes", 1e6},
                         {"memory_bytes_per_s", 8.0},
                         {"canary_bytes_per_s", 8.0},
                         {"ratio", 1.0}};
  const auto device = make_synthetic_device(plan, {.name = "normal", .pair_sd = 0.005}, 0.05, 9);
  record = run_ab(plan, *device, inputs);
  seal_record(record);
  EXPECT_TRUE(record_faults(record).empty()) << record_faults(record).front();
  expect_named(record, "/cold/long/ratio", 0.5, "cold/long/ratio");
  expect_named(record, "/cold/long/memory_bytes_per_s", 4.0, "cold/long: not cold");
  expect_named(record, "/cold", json::object(), "cold/long: no canary");
}

TEST(Record, NamesTheFieldThatWasEdited) {
  const json record = small_record();
  const std::string tier = "/runs/4/samples/long";
  expect_named(record,
               tier + "/wall/1",
               record.at(json::json_pointer(tier + "/wall/1")).get<double>() * 0.99,
               "runs/4/samples/long");
  expect_named(record, "/analysis/d/3", 0.5, "analysis/d/3");
  expect_named(record, "/analysis/interval/0", 0.049, "analysis/interval/0");
  expect_named(record, "/verdict/word", "ADOPT", "verdict/word");
  expect_named(record, "/aa/sd", 0.001, "aa/sd");
  expect_named(record, "/harness/orchestration_share", 0.001, "harness/orchestration_share");
  expect_named(record, "/harness/work_s", 1e9, "harness: the parts are more than the whole");
  expect_named(record, "/harness/clock_us_a_block", 0.1, "harness/clock_us_a_block");
  expect_named(record, "/plan/body/pairs", 10, "plan/sha256");
  expect_named(record, "/plan/order_seed", "7", "plan/order_seed");
  expect_named(
      record, "/runs/4/first", !record.at("runs")[4].at("first").get<bool>(), "runs/4/first");
  expect_named(record, "/arms/0/variant", "other", "arms: variant");
}

TEST(Record, AnEditWithARecomputedSampleDigestStillFails) {
  json record = small_record();
  std::size_t at = 0;
  while (record["runs"][at]["kind"] != "ab") ++at;
  json& samples = record["runs"][at]["samples"]["long"];
  for (json& w : samples["wall"]) w = w.get<double>() * 0.9;
  samples["sha256"] = samples_digest(samples);
  seal_record(record);
  const auto faults = record_faults(record);
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(faults.front().find("analysis/"), std::string::npos) << faults.front();
}

TEST(Record, UnsealedEditIsSeenByTheSealAlone) {
  json record = small_record();
  record["machine"]["governor"] = "performance";
  const auto faults = record_faults(record);
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_NE(faults[0].find("record_sha256"), std::string::npos);
}

TEST(Record, NeedsThePeerOrTheReasonForNone) {
  const json record = small_record();
  expect_named(record, "/peer/reason", "", "peer: name is null without a reason");
  const json whole{{"name", "other"}, {"version", "1.0"}, {"tier", "long"}, {"time_s", 0.5}};
  expect_named(record, "/peer", {{"name", nullptr}}, "without a reason");
  for (const char* key : {"version", "tier", "time_s"}) {
    json peer = whole;
    peer.erase(key);
    expect_named(record, "/peer", peer, std::string("peer/") + key);
  }
  json elsewhere = whole;
  elsewhere["tier"] = "longest";
  expect_named(record, "/peer", elsewhere, "no tier of the plan");
  json with = record;
  with["peer"] = whole;
  seal_record(with);
  EXPECT_TRUE(record_faults(with).empty()) << record_faults(with).front();
}

std::string refusal(const std::string& text) {
  try {
    verify_records(text, "f.jsonl");
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Record, RefusesWhatItCannotJudgeAndSaysWhere) {
  const json record = small_record();
  const std::string line = canonical_json(record) + "\n";
  EXPECT_NE(refusal(line.substr(0, line.size() / 2)).find("cut short"), std::string::npos);
  EXPECT_NE(
      refusal(line + "{]\n").find("line 2, byte " + std::to_string(line.size() + 1) + ": not JSON"),
      std::string::npos)
      << refusal(line + "{]\n");
  EXPECT_NE(refusal("[1]\n").find("schema"), std::string::npos);
  EXPECT_NE(refusal("{\"schema\":\"other\"}\n").find("unknown schema"), std::string::npos);
  json future = record;
  future["schema_version"] = "2.0.0";
  future["novelty"] = 1;
  EXPECT_NE(refusal(canonical_json(future) + "\n").find("schema_version \"2.0.0\""),
            std::string::npos);
  json extra = record;
  extra["runs"][3]["novelty"] = 1;
  EXPECT_NE(refusal(canonical_json(extra) + "\n").find("/runs/3/novelty: unknown key"),
            std::string::npos);
  json missing = record;
  missing["runs"][0].erase("pair");
  EXPECT_NE(refusal(canonical_json(missing) + "\n").find("pair"), std::string::npos);
}

TEST(Record, EveryTruncationAndByteFlipIsNoticed) {
  const std::string line = canonical_json(small_record()) + "\n";
  const auto accepted = [](const std::string& text) {
    try {
      for (const auto& r : verify_records(text, "fuzz")) {
        if (!r.faults.empty()) return false;
      }
      return true;
    } catch (const InputError&) {
      return false;
    }
  };
  ASSERT_TRUE(accepted(line));
  for (std::size_t cut = 1; cut < line.size(); cut += line.size() / 40)
    EXPECT_FALSE(accepted(line.substr(0, cut))) << cut;
  for (std::size_t at = 0; at + 1 < line.size(); at += line.size() / 60) {
    std::string bad = line;
    bad[at] = static_cast<char>(bad[at] ^ 0x01);
    EXPECT_FALSE(accepted(bad)) << "byte " << at;
  }
}

// --- rules that no process can show reliably: the record says it, the analysis must act on it ---
json analysed(json record) {
  for (json& run : record["runs"]) {
    for (auto& [tier, samples] : run["samples"].items())
      samples["sha256"] = samples_digest(samples);
  }
  return analyse(record).at("verdict");
}

TEST(Verdict, HelpersOnOtherCoresAreInvalid) {
  json record = small_record();
  for (json& run : record["runs"]) {
    for (json& c : run["samples"]["long"]["cpu"]) c = c.get<double>() * 2.0;
  }
  const json v = analysed(record);
  EXPECT_EQ(v.at("word"), "INVALID");
  EXPECT_NE(v.at("reasons").dump().find("more processors"), std::string::npos);
}

TEST(Verdict, FailedParityIsARejectionWhateverTheSpeed) {
  json record = small_record();
  record["parity"]["outcome"] = "fail";
  EXPECT_EQ(analysed(record).at("word"), "REJECT");
}

TEST(Verdict, ALateDiscardCodeIsInvalid) {
  json record = small_record();
  record["runs"].push_back(record["runs"].back());
  record["runs"].back()["status"] = "discarded";
  record["runs"].back()["code"] = "LOOKED_SLOW";
  const json v = analysed(record);
  EXPECT_EQ(v.at("word"), "INVALID");
  EXPECT_NE(v.at("reasons").dump().find("LOOKED_SLOW"), std::string::npos);
}

TEST(Verdict, AnArmThatFailsMidwayIsHeldAgainstThatArmAlone) {
  json record = small_record();
  json& runs = record["runs"];
  const std::string b = record.at("plan").at("body").at("b");
  json& last = runs[runs.size() - 1];
  json& before = runs[runs.size() - 2];
  const bool last_is_b = last.at("switch_proof").at("seen_in_process") == b;
  json& failed = last_is_b ? last : before;
  json& partner = last_is_b ? before : last;
  ASSERT_EQ(failed.at("switch_proof").at("seen_in_process"), b);
  failed["status"] = "failed";
  failed["code"] = "GARBAGE";
  partner["status"] = "discarded";
  partner["code"] = kPartnerFailed;
  for (json* run : {&failed, &partner}) (*run)["samples"] = json::object();
  const json v = analysed(record);
  EXPECT_EQ(v.at("word"), "REJECT") << v;
  EXPECT_EQ(v.at("reasons").dump().find(kPartnerFailed), std::string::npos) << v;
  // The same words without a failed partner are an excuse.
  failed["status"] = "discarded";
  failed["code"] = "HOST_SUSPENDED";
  EXPECT_EQ(analysed(record).at("word"), "INVALID");
}

TEST(Verdict, MissingPairsAreInvalid) {
  json record = small_record();
  const int last = record["runs"].back()["pair"];
  json kept = json::array();
  for (const json& run : record["runs"]) {
    if (run["pair"] != last) kept.push_back(run);
  }
  record["runs"] = kept;
  EXPECT_EQ(analysed(record).at("word"), "INVALID");
}

TEST(Verdict, UncheckedOutputsAreInvalid) {
  json record = small_record();
  record["runs"][5]["samples"]["short"]["outputs_checked"] = 0;
  EXPECT_EQ(analysed(record).at("word"), "INVALID");
}

TEST(Verdict, CountersMustShowTheVariantSelectedInBAndNotInA) {
  json record = small_record();
  record["arms"][1]["counters"]["selected"] = 0;
  EXPECT_EQ(analysed(record).at("word"), "INVALID");
  record = small_record();
  record["arms"][0]["counters"]["selected"] = 2;
  EXPECT_EQ(analysed(record).at("word"), "INVALID");
}

TEST(Verdict, ASlowerVariantIsRejectedAndAnEqualOneShownEqual) {
  EXPECT_EQ(small_record(-0.05).at("verdict").at("word"), "REJECT");
  Plan plan = small_plan();
  const auto device = make_synthetic_device(plan, {.name = "still", .pair_sd = 0.001}, 0.0, 3);
  const json record = run_ab(plan, *device, synthetic_inputs());
  EXPECT_EQ(record.at("verdict").at("word"), "NO-EFFECT") << record.at("verdict").dump();
}

TEST(Verdict, UnderpoweredAndScreeningPlansClaimNothing) {
  Plan plan = small_plan();
  plan.stage = "screen";
  auto device = make_synthetic_device(plan, {.name = "normal", .pair_sd = 0.01}, 0.2, 3);
  EXPECT_EQ(run_ab(plan, *device, synthetic_inputs()).at("verdict").at("word"), "INCONCLUSIVE");
  plan = small_plan();
  plan.underpowered = true;
  device = make_synthetic_device(plan, {.name = "normal", .pair_sd = 0.01}, 0.2, 3);
  EXPECT_EQ(run_ab(plan, *device, synthetic_inputs()).at("verdict").at("word"), "INCONCLUSIVE");
}

TEST(Verdict, AMemberOfAFamilyMustHoldAtItsShareOfAlpha) {
  Plan plan = small_plan();
  plan.family_size = 12;  // the smallest two-sided p at 8 pairs is 2/256, above 0.05/12
  const auto device = make_synthetic_device(plan, {.name = "normal", .pair_sd = 0.001}, 0.1, 3);
  EXPECT_EQ(run_ab(plan, *device, synthetic_inputs()).at("verdict").at("word"), "INCONCLUSIVE");
}

TEST(Extension, AddsBalancedPairsUntilTheEProcessCrosses) {
  Plan plan = small_plan();
  plan.extension = PlanExtension{0.01, 24};
  const auto device = make_synthetic_device(plan, {.name = "normal", .pair_sd = 0.01}, 0.008, 21);
  json record = run_ab(plan, *device, synthetic_inputs());
  const auto o = record.at("analysis").at("o").get<std::vector<int>>();
  EXPECT_GT(o.size(), 8U);
  EXPECT_LE(o.size(), 24U);
  int sum = 0;
  for (const int sign : o) sum += sign;
  EXPECT_EQ(sum, 0);
  seal_record(record);
  EXPECT_TRUE(record_faults(record).empty()) << record_faults(record).front();
}

TEST(Schedule, FollowsFromThePlanAloneAndIsBalanced) {
  Plan plan = small_plan();
  plan.pairs = 12;
  const Schedule s = make_schedule(plan);
  int balance = 0;
  int aa = 0;
  for (const ScheduledPair& p : s.pairs) {
    if (p.kind == PairKind::kAb) balance += p.a_first ? 1 : -1;
    aa += p.kind == PairKind::kAa ? 1 : 0;
  }
  EXPECT_EQ(balance, 0);
  EXPECT_EQ(aa, 3);
  EXPECT_EQ(s.pairs.front().kind, PairKind::kBurnIn);
  Plan other = plan;
  other.bar = 1.02;
  EXPECT_NE(plan_sha256(plan), plan_sha256(other));
  EXPECT_EQ(plan_from_json(plan_json(plan), "p").tiers.size(), 2U);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    int arms = 0;
    for (const bool a : block_order(30, true, seed)) arms += a ? 1 : -1;
    EXPECT_EQ(arms, 0);
    EXPECT_TRUE(block_order(30, true, seed)[0]);
  }
}

TEST(PlanFile, RefusesImpossiblePlansByName) {
  const auto refused = [](const char* key, const json& value) {
    json document = plan_json(small_plan());
    document[json::json_pointer(key)] = value;
    try {
      plan_from_json(document, "p.json");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refused("/pairs", 7).find("pairs 7"), std::string::npos);
  EXPECT_NE(refused("/pairs", 62).find("pairs 62"), std::string::npos);
  EXPECT_NE(refused("/lane", "warp").find("/lane"), std::string::npos);
  EXPECT_NE(refused("/novelty", 1).find("/novelty: unknown key"), std::string::npos);
  EXPECT_NE(refused("/tiers/0/weight", 0.9).find("weights sum"), std::string::npos);
  EXPECT_NE(refused("/tiers/1/id", "short").find("named twice"), std::string::npos);
  EXPECT_NE(refused("/alpha", 0.5).find("alpha"), std::string::npos);
}

}  // namespace
}  // namespace assay
