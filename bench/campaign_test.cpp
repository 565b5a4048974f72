// The rules of `assay prove` on the synthetic device: reuse, candidates, pairs, what may be armed.
#include "bench/campaign.h"

#include <cmath>
#include <functional>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/ab.h"
#include "bench/calibration.h"
#include "bench/ledger.h"
#include "bench/needles.h"
#include "bench/stack.h"
#include "bench/synthetic.h"
#include "kernels/base/build_id.h"
#include "kernels/base/record.h"
#include "kernels/base/rng.h"

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

// A record of whole rounds in which each member's absence costs what `worth` says, and nothing else happens but noise.
json stack_record(const StackPlan& plan, const std::map<std::string, double>& worth) {
  json record{{"plan", {{"sha256", stack_plan_sha256(plan)}, {"body", stack_plan_json(plan)}}},
              {"runs", json::array()}};
  Rng rng(3);
  const auto arms = stack_arms(plan);
  int round = 0;
  for (const auto& order : stack_schedule(plan)) {
    for (const int which : order) {
      const StackArm& arm = arms[static_cast<std::size_t>(which)];
      double log_speed = 0.001 * rng.normal();
      for (const auto& [op, variant] : arm.switches) log_speed += worth.at(op);
      json armed = json::array();
      for (const auto& [op, variant] : arm.switches)
        armed.push_back({{"op", op}, {"variant", variant}, {"selected", 1}});
      record["runs"].push_back({{"run", record["runs"].size()},
                                {"round", round},
                                {"code", std::string(1, arm.code)},
                                {"status", "ok"},
                                {"reason", ""},
                                {"switches_seen", arm.switches},
                                {"switches_echo", arm.switches},
                                {"armed", armed},
                                {"samples", {{"natural", {std::exp(-log_speed)}}}},
                                {"written", {{"natural", {1, 2, 3}}}}});
    }
    ++round;
  }
  return record;
}

StackPlan stack_plan() {
  StackPlan plan;
  plan.members = {{"gives_ten", "v"}, {"gives_two", "v"}, {"gives_none", "v"}};
  plan.question = "drop_one";
  plan.model = {{"file_bytes", 1}, {"head_sha256", std::string(64, '0')}};
  plan.tiers = {{"natural", "D_real", 1.0, true}};
  plan.rounds = rounds_for(5, 12);
  return plan;
}

TEST(Stack, KeepsWhatWouldBeMissedAndDropsTheRest) {
  const StackPlan plan = stack_plan();
  EXPECT_EQ(plan.rounds, 20);  // five arms have ten orders
  const json found = analyse_stack(
      stack_record(plan, {{"gives_ten", 0.1}, {"gives_two", 0.02}, {"gives_none", 0.0}}));
  EXPECT_EQ(found.at("verdict").at("kept"), (json{"gives_ten", "gives_two"}));
  EXPECT_EQ(found.at("verdict").at("dropped"), json::array({"gives_none"}));
  EXPECT_EQ(found.at("verdict").at("word"), "STACK-MEMBER") << found.at("verdict");
  EXPECT_NEAR(found.at("analysis").at("estimate").get<double>(), 0.12, 0.002);
}

TEST(Ledger, RoundsOfAnEngineCountEveryMember) {
  const StackPlan plan = stack_plan();
  const auto started = ledger_lines(plan, "card", "started");
  ASSERT_EQ(started.size(), 3U);
  EXPECT_EQ(started[0].op, "gives_none");
  EXPECT_EQ(started[0].a, "stock");
  EXPECT_EQ(started[0].b, "v");
  EXPECT_EQ(started[0].lane, "engine");
  EXPECT_EQ(started[0].plan_sha256, stack_plan_sha256(plan));
  json record = stack_record(plan, {{"gives_ten", 0.1}, {"gives_two", 0.02}, {"gives_none", 0.0}});
  record.update(analyse_stack(record));
  record["record_sha256"] = std::string(64, '1');
  const auto finished = finished_lines(plan, "card", record);
  ASSERT_EQ(finished.size(), 3U);
  EXPECT_EQ(finished[0].verdict, "dropped");
  EXPECT_EQ(finished[1].verdict, "STACK-MEMBER");
  EXPECT_EQ(finished[1].record, std::string(64, '1'));
  EXPECT_EQ(finished[1].event, "finished");
}

TEST(Stack, ASlowerStackIsRejectedAndAWrongSwitchVoidsTheRounds) {
  const StackPlan plan = stack_plan();
  const std::map<std::string, double> worse{
      {"gives_ten", -0.1}, {"gives_two", 0.0}, {"gives_none", 0.0}};
  json record = stack_record(plan, worse);
  EXPECT_EQ(analyse_stack(record).at("verdict").at("word"), "REJECT");
  record["runs"][7]["switches_seen"] = {{"gives_ten", "other"}};
  const json found = analyse_stack(record);
  EXPECT_EQ(found.at("verdict").at("word"), "INVALID");
  EXPECT_TRUE(found.at("verdict").at("dropped").empty());
}

json answers(double logprob, bool found) {
  const json one{
      {"logprobs", {-0.5, logprob}}, {"found", found}, {"margin", 1.0}, {"without", {-9.0, -9.0}}};
  return {{"needle_512", json::array({one, one, one, one, one, one, one, one, one})}};
}

// A record whose stack and stock gave these answers to the needle checks.
json needle_record(const json& stack, const json& stock) {
  StackPlan plan = stack_plan();
  plan.question = "whole";
  plan.rounds = 12;
  plan.needles = {"needle_512"};
  json record = stack_record(plan, {{"gives_ten", 0.1}, {"gives_two", 0.1}, {"gives_none", 0.1}});
  const auto arms = stack_arms(plan);
  for (const auto& [arm, checks] : {std::pair{&arms[0], stack}, std::pair{&arms[1], stock}})
    record["needles"].push_back({{"code", std::string(1, arm->code)},
                                 {"switches_seen", arm->switches},
                                 {"switches_echo", arm->switches},
                                 {"checks", checks},
                                 {"reason", ""}});
  return record;
}

TEST(Needles, FoundByBothArmsAFasterEngineIsAdopted) {
  const json found = analyse_stack(needle_record(answers(-0.1, true), answers(-0.1, true)));
  EXPECT_EQ(found.at("verdict").at("word"), "ADOPT") << found.at("verdict");
  EXPECT_EQ(found.at("analysis").at("needles").at("agree"), 9);
  EXPECT_EQ(found.at("analysis").at("needles").at("seen"), 9);
  const json missed = analyse_stack(needle_record(answers(-0.1, false), answers(-0.1, false)));
  EXPECT_EQ(missed.at("verdict").at("word"), "STACK-MEMBER");
  EXPECT_NE(missed.at("verdict").at("reasons").dump().find("finds 0 of 9 needles"),
            std::string::npos);
}

TEST(Needles, AFastStackThatAnswersOtherwiseIsRejected) {
  const auto word = [](const json& stack, const json& stock) {
    return analyse_stack(needle_record(stack, stock)).at("verdict").at("word");
  };
  EXPECT_EQ(word(answers(-0.109, true), answers(-0.1, true)), "ADOPT");
  EXPECT_EQ(word(answers(-0.12, true), answers(-0.1, true)), "REJECT");
  EXPECT_EQ(word(answers(std::nan(""), true), answers(std::nan(""), true)), "REJECT");
  json cut = answers(-0.1, true);
  cut["needle_512"].erase(8);
  EXPECT_EQ(word(cut, answers(-0.1, true)), "REJECT");
  cut["needle_512"][7]["found"] = false;
  cut["needle_512"].push_back(cut["needle_512"][0]);
  EXPECT_EQ(word(cut, answers(-0.1, true)), "REJECT") << "stock finds one more";
  json none = needle_record(answers(-0.1, true), answers(-0.1, true));
  none["needles"].erase(0);
  EXPECT_EQ(analyse_stack(none).at("verdict").at("word"), "INVALID");
  json failed = needle_record(answers(-0.1, true), answers(-0.1, true));
  failed["needles"][0]["reason"] = "ended by signal 11";
  EXPECT_EQ(analyse_stack(failed).at("verdict").at("word"), "INVALID");
}

TEST(Needles, OnACardTheFastLaneMayMoveNearTies) {
  EXPECT_EQ(needle_bound("exact", "cuda"), 0.01);
  EXPECT_EQ(needle_bound("fast", "host"), 0.01);
  EXPECT_EQ(needle_bound("fast", "cuda"), 2.0);
  const auto& all = needles();
  ASSERT_EQ(all.size(), 9U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].ask.front(), '\n');
    EXPECT_EQ(all[i].answer.front(), ' ') << i;
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(all[i].answer, all[j].answer);
  }
}

TEST(Stack, EveryOrderIsUsedEquallyOften) {
  const StackPlan plan = stack_plan();
  std::map<std::vector<int>, int> used;
  const auto schedule = stack_schedule(plan);
  ASSERT_EQ(schedule.size(), 21U);
  for (std::size_t i = 1; i < schedule.size(); ++i) ++used[schedule[i]];
  EXPECT_EQ(used.size(), 10U);
  for (const auto& [order, times] : used) EXPECT_EQ(times, 2);
}

}  // namespace
}  // namespace assay
