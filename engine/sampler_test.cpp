#include "engine/sampler.h"

#include <cmath>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "kernels/base/error.h"

namespace assay {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Greedy, TakesTheLowestIdOnTies) {
  const float logits[] = {-1.0F, 3.0F, 2.0F, 3.0F};
  EXPECT_EQ(greedy_token(logits), 1);
  const float flat[] = {0.0F, 0.0F};
  EXPECT_EQ(greedy_token(flat), 0);
}

TEST(Greedy, NamesTheLogitThatIsNotANumber) {
  for (const float bad : {kNan, -kNan, kInf}) {
    const float logits[] = {1.0F, 2.0F, bad, 0.0F};
    try {
      (void)greedy_token(logits);
      FAIL() << bad;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("logit 2"), std::string::npos);
      EXPECT_EQ(e.code(), Exit::kCheckFailed);
    }
  }
}

TEST(Greedy, SkipsSuppressedLogitsAndRefusesWhenAllAre) {
  const float some[] = {-kInf, -5.0F};
  EXPECT_EQ(greedy_token(some), 1);
  const float none[] = {-kInf, -kInf};
  EXPECT_THROW((void)greedy_token(none), Error);
  EXPECT_THROW((void)greedy_token({}), Error);
}

std::map<TokenId, int> draw(SamplerSettings settings, std::span<const float> logits, int n) {
  Sampler s(settings);
  std::map<TokenId, int> seen;
  for (int i = 0; i < n; ++i) ++seen[s.sample(logits)];
  return seen;
}

TEST(Sampler, FollowsTheSoftmaxAtTheTemperature) {
  // Probabilities 1/10, 2/10, 3/10, 4/10 at temperature 1; squared and renormalised at 1/2.
  const float logits[] = {std::log(1.0F), std::log(2.0F), std::log(3.0F), std::log(4.0F)};
  constexpr int kDraws = 40000;
  auto seen = draw({.temperature = 1.0, .top_k = 0, .top_p = 1.0, .seed = 7}, logits, kDraws);
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(seen[i] / static_cast<double>(kDraws), (i + 1) / 10.0, 0.012) << i;
  seen = draw({.temperature = 0.5, .top_k = 0, .top_p = 1.0, .seed = 7}, logits, kDraws);
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(seen[i] / static_cast<double>(kDraws), (i + 1) * (i + 1) / 30.0, 0.012) << i;
}

TEST(Sampler, TopKKeepsTheLikeliestWithTiesByLowestId) {
  const float logits[] = {1.0F, 5.0F, 5.0F, 5.0F, 0.0F};
  const auto seen = draw({.temperature = 1.0, .top_k = 2, .top_p = 1.0, .seed = 1}, logits, 500);
  EXPECT_EQ(seen.size(), 2U);
  EXPECT_TRUE(seen.contains(1) && seen.contains(2));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  const float logits[] = {std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  EXPECT_EQ(draw({.temperature = 1.0, .top_k = 0, .top_p = 0.6, .seed = 1}, logits, 500).size(),
            2U);
  EXPECT_EQ(draw({.temperature = 1.0, .top_k = 0, .top_p = 0.9, .seed = 1}, logits, 500).size(),
            3U);
  EXPECT_EQ(draw({.temperature = 1.0, .top_k = 0, .top_p = 0.0, .seed = 1}, logits, 500).size(), 1U)
      << "never empty";
}

TEST(Sampler, TemperatureZeroAndTopKOneAreGreedy) {
  const float logits[] = {1.0F, 1.5F, 1.4F};
  EXPECT_EQ(draw({.temperature = 0.0, .seed = 3}, logits, 50), (std::map<TokenId, int>{{1, 50}}));
  EXPECT_EQ(draw({.temperature = 1.0, .top_k = 1, .seed = 3}, logits, 50),
            (std::map<TokenId, int>{{1, 50}}));
}

TEST(Sampler, RepeatsItselfFromTheSeed) {
  std::vector<float> logits(1000);
  Rng rng(11);
  for (float& l : logits) l = static_cast<float>(rng.normal());
  const auto run = [&](std::uint64_t seed) {
    Sampler s({.temperature = 1.0, .top_k = 64, .top_p = 0.95, .seed = seed});
    std::vector<TokenId> out;
    for (int i = 0; i < 50; ++i) out.push_back(s.sample(logits));
    return out;
  };
  EXPECT_EQ(run(5), run(5));
  EXPECT_NE(run(5), run(6));
}

TEST(Sampler, NeverPicksASuppressedToken) {
  const float logits[] = {0.0F, -kInf, 0.0F};
  EXPECT_FALSE(
      draw({.temperature = 10.0, .top_k = 0, .top_p = 1.0, .seed = 2}, logits, 500).contains(1));
}

TEST(Sampler, NamesTheSettingOutOfRange) {
  const auto refused = [](const SamplerSettings& s, const char* word) {
    try {
      const Sampler sampler(s);
      return false;
    } catch (const UserError& e) {
      return std::string(e.what()).find(word) != std::string::npos;
    }
  };
  EXPECT_TRUE(refused({.temperature = -0.1}, "temperature"));
  EXPECT_TRUE(refused({.temperature = std::nan("")}, "temperature"));
  EXPECT_TRUE(refused({.top_k = -1}, "top-k"));
  EXPECT_TRUE(refused({.top_p = 1.1}, "top-p"));
  EXPECT_TRUE(refused({.top_p = std::nan("")}, "top-p"));
}

}  // namespace
}  // namespace assay
