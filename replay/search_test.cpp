#include "replay/search.h"

#include <cmath>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/record.h"
#include "kernels/expert_policy/successor.h"
#include "replay/testing.h"
#include "traces/edit.h"

namespace assay::replay {
namespace {

const std::string kCapture = std::string(ASSAY_SOURCE_DIR "/traces/tiny-capture.mrt");
const SearchOptions kSmall{.slots = {192, 384}, .candidates = 24, .screen_steps = 300, .seed = 3};

// The rules of the policy `successor` as the name that the search gives them.
std::string shipped_successor() {
  const auto& r = expert_policy::kSuccessorRules;
  return fmt::format("successor:{:.3g}:{:.3g}:{:.3g}:{:.3g}:{:.3g}:{:.3g}:{:.3g}:{:.3g}",
                     r.discount,
                     r.carry,
                     r.rate,
                     r.rank_step,
                     r.share[0],
                     r.share[1],
                     r.share[2],
                     r.share[3]);
}

TEST(Search, IsSeededAndPublishesEveryCandidateOnce) {
  const SearchResult a = search_policies({kCapture}, kSmall);
  const SearchResult b = search_policies({kCapture}, kSmall);
  ASSERT_EQ(a.screened.size(), 24U);
  ASSERT_EQ(a.finalists.size(), static_cast<std::size_t>(kFinalists));
  std::set<std::string> names;
  for (std::size_t i = 0; i < a.screened.size(); ++i) {
    EXPECT_EQ(a.screened[i].policy, b.screened[i].policy);
    EXPECT_EQ(a.screened[i].score, b.screened[i].score);
    names.insert(a.screened[i].policy);
  }
  EXPECT_EQ(names.size(), 24U);
  SearchOptions other = kSmall;
  other.seed = 4;
  EXPECT_NE(search_policies({kCapture}, other).screened[0].policy, a.screened[0].policy);
}

TEST(Search, TheWinnersScoreIsWhatItsNameReplaysTo) {
  const SearchResult r = search_policies({kCapture}, kSmall);
  for (const auto& c : r.finalists) EXPECT_LE(c.score, r.winner().score);
  Sequence train({kCapture}, {.split = Split::kTrain});
  double mean = 0.0;
  for (std::size_t s = 0; s < 2; ++s) {
    std::vector<double> misses;
    for (const std::string& policy :
         {std::string("lru"), r.winner().policy, std::string("belady")}) {
      misses.push_back(static_cast<double>(
          run_policies(train,
                       nullptr,
                       {{parse_policy(policy), Mode::kGroup, Partition::kGlobal, kSmall.slots[s]}},
                       0)[0]
              .misses));
    }
    const double closed = (misses[0] - misses[1]) / (misses[0] - misses[2]);
    EXPECT_DOUBLE_EQ(closed, r.winner().closed[s]);
    mean += closed / 2;
  }
  EXPECT_NEAR(mean, r.winner().score, 1e-12);
}

// Two traces that differ in their held-out conversations only must lead to the same search.
TEST(Search, HeldOutConversationsChangeNothing) {
  const TemporaryFile one(".mrt");
  const TemporaryFile two(".mrt");
  RandomTraceOptions options;
  options.padding = 0.0;
  write_random_trace(one.path(), options);
  cut_trace(one.path(), two.path(), {.split = Split::kTrain});
  const SearchOptions o{.slots = {10}, .candidates = 12, .screen_steps = 100, .seed = 1};
  const SearchResult a = search_policies({one.path()}, o);
  const SearchResult b = search_policies({two.path()}, o);
  for (std::size_t i = 0; i < a.finalists.size(); ++i) {
    EXPECT_EQ(a.finalists[i].policy, b.finalists[i].policy);
    EXPECT_EQ(a.finalists[i].score, b.finalists[i].score);
  }
}

TEST(Search, RefusesWhatItCannotSearch) {
  SearchOptions few = kSmall;
  few.candidates = kFinalists - 1;
  EXPECT_THROW(search_policies({kCapture}, few), UserError);
  SearchOptions none = kSmall;
  none.slots = {};
  EXPECT_THROW(search_policies({kCapture}, none), UserError);
  SearchOptions all = kSmall;
  all.slots = {768};  // everything fits: no gap
  EXPECT_THROW(search_policies({kCapture}, all), UserError);
}

// Whatever lies in results/ must hold together, and the newest record on the longest trace is the policy `successor`.
TEST(Search, StoredRecordsFitTheirSchemaAndNameTheShippedPolicy) {
  int seen = 0;
  for (const auto& path : record_files(std::string(ASSAY_SOURCE_DIR "/results"))) {
    for (const auto& r :
         read_records(path)) {  // throws for a record that its schema or its hash refuses
      if (r.at("schema") != "assay-search") continue;
      ++seen;
      EXPECT_FALSE(r.at("scratch")) << path;
      EXPECT_EQ(r.at("winner"), r.at("finalists")[0].at("policy")) << path;
      std::set<std::string> names;
      for (const auto& c : r.at("screened")) names.insert(c.at("policy"));
      EXPECT_EQ(names.size(), r.at("candidates")) << path;
      for (const auto& f : r.at("finalists")) EXPECT_TRUE(names.contains(f.at("policy"))) << path;
      const std::string winner = r.at("winner");
      EXPECT_EQ(parse_policy(winner).name, winner);
      EXPECT_EQ(shipped_successor(), winner) << path << ": kSuccessorRules are not its winner";
    }
  }
  EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace assay::replay
