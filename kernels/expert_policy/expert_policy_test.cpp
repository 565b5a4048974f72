#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "kernels/base/rng.h"
#include "kernels/expert_policy/decay.h"
#include "kernels/expert_policy/lru.h"
#include "kernels/expert_policy/op.h"
#include "kernels/expert_policy/successor.h"

namespace assay {
namespace {

using expert_policy::Group;
using expert_policy::kNone;
using Fn = Column<ExpertPolicy>::Fn;

struct Answer {
  std::vector<std::int32_t> resident, slot, evicted;
};

// One cache behind the op's launch function.
class Cache {
 public:
  Cache(Fn fn, const ExpertPolicy::Shape& shape) : fn_(fn), shape_(shape) {}
  Answer call(int layer, std::int64_t step, const std::vector<std::int32_t>& ids) {
    const auto k = static_cast<std::size_t>(shape_.top_k);
    Answer a{std::vector<std::int32_t>(k, 99),
             std::vector<std::int32_t>(k, 99),
             std::vector<std::int32_t>(k, 99)};
    ExpertPolicy::Args args;
    args.state = &state_;
    args.ids = ids.data();
    args.layer = layer;
    args.step = step;
    args.resident = a.resident.data();
    args.slot = a.slot.data();
    args.evicted = a.evicted.data();
    fn_(shape_, args, {}, {});
    return a;
  }
  std::unique_ptr<expert_policy::State> state_;

 private:
  Fn fn_;
  ExpertPolicy::Shape shape_;
};

Fn function_of(const char* name) {
  for (const auto& row : variants<ExpertPolicy>()) {
    if (std::string_view(row.name) == name) return row.variant->host.fn;
  }
  return nullptr;
}

TEST(ExpertPolicy, StockEvictsTheLeastRecentlyUsedAndReusesItsSlot) {
  Cache c(function_of("stock"), {.layers = 2, .experts = 4, .top_k = 2, .slots = 3});
  Answer a = c.call(0, 0, {1, 2});
  EXPECT_EQ(a.resident, (std::vector<std::int32_t>{0, 0}));
  EXPECT_EQ(a.slot, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(a.evicted, (std::vector<std::int32_t>{-1, -1}));
  a = c.call(1, 0, {3, -1});  // object 7 takes the free slot; the second member does not exist
  EXPECT_EQ(a.slot, (std::vector<std::int32_t>{2, -1}));
  a = c.call(0, 1, {2, 0});  // 2 hits; 0 displaces 1, the oldest
  EXPECT_EQ(a.resident, (std::vector<std::int32_t>{1, 0}));
  EXPECT_EQ(a.slot, (std::vector<std::int32_t>{1, 0}));
  EXPECT_EQ(a.evicted, (std::vector<std::int32_t>{-1, 1}));
  a = c.call(1, 1, {0, 3});  // 3 (object 7) is the oldest, but a member: 2 goes
  EXPECT_EQ(a.resident, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(a.evicted, (std::vector<std::int32_t>{2, -1}));
}

TEST(ExpertPolicy, EveryVariantKeepsItsPromisesOnRandomRouting) {
  for (const auto& row : variants<ExpertPolicy>()) {
    for (const bool per_layer : {false, true}) {
      const ExpertPolicy::Shape shape{
          .layers = 3, .experts = 9, .top_k = 3, .slots = 12, .per_layer = per_layer};
      ASSERT_EQ(shape.illegal(), nullptr);
      Cache c(row.variant->host.fn, shape);
      Cache again(row.variant->host.fn, shape);
      Rng rng(seed_from_name(row.name));
      std::map<int, int> slot_of;  // object -> slot
      for (int step = 0; step < 400; ++step) {
        for (int layer = 0; layer < 3; ++layer) {
          std::vector<std::int32_t> ids(3, -1);
          for (std::size_t r = 0; r < 3; ++r) {
            if (rng.below(10) == 0) continue;
            do {
              ids[r] = static_cast<std::int32_t>(std::min(rng.below(9), rng.below(9)));
            } while (std::count(ids.begin(), ids.end(), ids[r]) > 1);
          }
          const Answer a = c.call(layer, step, ids);
          const Answer b = again.call(layer, step, ids);
          ASSERT_EQ(a.slot, b.slot);
          ASSERT_EQ(a.evicted, b.evicted);
          for (std::size_t r = 0; r < 3; ++r) {
            if (ids[r] < 0) {
              ASSERT_EQ(a.slot[r], -1);
              continue;
            }
            ASSERT_EQ(a.resident[r], slot_of.contains(layer * 9 + ids[r]) ? 1 : 0);
          }
          for (std::size_t r = 0; r < 3; ++r) {
            if (a.evicted[r] < 0) continue;
            ASSERT_EQ(slot_of.erase(a.evicted[r]), 1U)
                << row.name << " evicted what was not resident";
            ASSERT_TRUE(!per_layer || a.evicted[r] / 9 == layer);
            for (const auto id : ids)
              ASSERT_NE(a.evicted[r], id < 0 ? -2 : layer * 9 + id)
                  << "a member was evicted by its group";
          }
          for (std::size_t r = 0; r < 3; ++r) {
            if (a.slot[r] >= 0) slot_of[layer * 9 + ids[r]] = a.slot[r];
          }
          std::set<int> used;
          for (const auto& [object, slot] : slot_of) {
            ASSERT_TRUE(slot >= 0 && slot < 12);
            ASSERT_TRUE(used.insert(slot).second) << "two experts in one slot";
            ASSERT_TRUE(!per_layer || slot / 4 == object / 9);
          }
        }
      }
      EXPECT_EQ(slot_of.size(), 12U);
    }
  }
}

TEST(ExpertPolicy, RefusesAStateOfAnotherVariantOrShapeAndIdsOutOfRange) {
  const ExpertPolicy::Shape shape{.layers = 1, .experts = 4, .top_k = 1, .slots = 2};
  Cache c(function_of("stock"), shape);
  c.call(0, 0, {1});
  Cache other(function_of("decay32"), shape);
  other.state_ = std::move(c.state_);
  EXPECT_THROW(other.call(0, 1, {1}), std::logic_error);
  Cache fresh(function_of("stock"), shape);
  EXPECT_THROW(fresh.call(0, 0, {4}), std::logic_error);
  EXPECT_THROW(fresh.call(1, 0, {0}), std::logic_error);
}

TEST(ExpertPolicy, ShapesThatCannotServeAGroupAreIllegalWithTheReason) {
  const ExpertPolicy::Shape good{
      .layers = 2, .experts = 8, .top_k = 4, .slots = 8, .per_layer = true};
  EXPECT_EQ(good.illegal(), nullptr);
  const auto why = [&](auto change) {
    auto s = good;
    change(s);
    return std::string(s.illegal() != nullptr ? s.illegal() : "");
  };
  EXPECT_NE(why([](auto& s) { s.slots = 3; }).find("smaller than one group"), std::string::npos);
  EXPECT_NE(why([](auto& s) { s.slots = 17; }).find("more slots than experts"), std::string::npos);
  EXPECT_NE(why([](auto& s) { s.slots = 9; }).find("divisible"), std::string::npos);
  EXPECT_NE(why([](auto& s) { s.slots = 6; }).find("share is smaller"), std::string::npos);
  EXPECT_NE(why([](auto& s) { s.top_k = 9; }).find("top_k"), std::string::npos);
}

// Calls a policy with one object a group and returns the victim.
template <class Policy>
std::uint32_t use(Policy& p, std::uint32_t object, std::uint64_t step) {
  struct Victim {
    std::uint32_t value = kNone;
    void hit(std::uint32_t) {}
    void admit(std::uint32_t, std::uint32_t v) { value = v; }
    void refuse(std::uint32_t) {}
  } victim;
  Group g;
  g.objects = &object;
  g.size = 1;
  g.step = step;
  p.lookup_and_admit(g, victim);
  return victim.value;
}

TEST(Decay, AScoreHalvesAfterItsHalfLife) {
  // Object 0 is used three times at step 0, 1 and 2; by step 70 its score is below 1/2 of what one use at step 68 is worth.
  expert_policy::Decay p(4, 2, 32.0, 2);
  for (std::uint64_t t = 0; t < 3; ++t) use(p, 0, t);
  use(p, 1, 3);
  // At step 40 object 0 still holds about 3 * 2^(-39/32) = 1.3, object 1 2^(-37/32) = 0.45: object 1 goes.
  EXPECT_EQ(use(p, 2, 40), 1U);
  // At step 110 object 0 holds about 0.28 and object 2 2^(-70/32) = 0.22.
  EXPECT_EQ(use(p, 3, 110), 2U);
  // Object 3 was used at step 110 and is worth 1 / 2 at 142; object 0 about 0.14: it goes.
  EXPECT_EQ(use(p, 1, 142), 0U);
}

TEST(Decay, NothingUsedInTheLastGuardStepsGoesWhileAnotherCandidateExists) {
  expert_policy::Decay p(5, 3, 32.0, 2);
  for (std::uint64_t t = 0; t < 20; ++t) use(p, 0, t);  // a high score
  use(p, 1, 20);
  use(p, 2, 21);
  // At step 22 the objects 0 (last used at 19) and 1 (at 20) are not guarded; 1 has the lowest score.
  EXPECT_EQ(use(p, 3, 22), 1U);
  // Now 2 (at 21) and 3 (at 22) are: the much used object 0 must go.
  EXPECT_EQ(use(p, 4, 22), 0U);
  // All are guarded: the least recently used goes.
  EXPECT_EQ(use(p, 0, 22), 2U);
}

TEST(Decay, MovingTheOriginOfTimeChangesNoDecision) {
  // Half-life 1 moves the origin every 512 steps; half-life 1 with all steps shifted by far decides alike.
  for (const std::uint64_t shift : {0ULL, 511ULL, 100000ULL, 1ULL << 40}) {
    expert_policy::Decay near(12, 5, 1.0, 1);
    expert_policy::Decay far(12, 5, 1.0, 1);
    Rng rng(seed_from_name("origin"));
    for (std::uint64_t t = 0; t < 3000; ++t) {
      const auto o = static_cast<std::uint32_t>(std::min(rng.below(12), rng.below(12)));
      ASSERT_EQ(use(near, o, t), use(far, o, t + shift)) << "step " << t << ", shift " << shift;
    }
  }
}

// Rules by hand: frequency alone, so that the expected order can be seen.
TEST(ExpertPolicy, SuccessorEvictsTheLowestExpectedUseAndFavoursTheLayerWhoseTurnIsNear) {
  expert_policy::SuccessorRules rules;
  rules.discount = 0.5F;
  rules.share = {0.0F, 0.0F, 1.0F, 0.0F};
  expert_policy::Successor p(2, 1, 4, rules);
  EXPECT_EQ(use(p, 0, 0), kNone);
  EXPECT_EQ(use(p, 0, 1), kNone);
  EXPECT_EQ(use(p, 1, 2), kNone);
  EXPECT_EQ(use(p, 2, 3), 1U) << "one use against two";
  EXPECT_EQ(use(p, 3, 4), 2U);
  // Equal use in two layers: with carry above 1 the layer just served is the one that pays.
  rules.carry = 1.5F;
  expert_policy::Successor q(2, 2, 2, rules);
  EXPECT_EQ(use(q, 0, 0), kNone);
  EXPECT_EQ(use(q, 2, 0), kNone);
  EXPECT_EQ(use(q, 1, 1), 0U);
}

// 0, 1, 2, 3, 0, .. through two slots: the optimum hits every third access, which only who knows the order can do.
TEST(ExpertPolicy, SuccessorLearnsWhoFollowsWhom) {
  const auto misses = [](float rate) {
    expert_policy::SuccessorRules rules;
    rules.discount = 0.5F;
    rules.rate = rate;
    expert_policy::Successor p(2, 1, 4, rules);
    int count = 0;
    for (std::uint64_t step = 0; step < 700; ++step) {
      const bool missed = use(p, static_cast<std::uint32_t>(step % 4), step) != kNone;
      if (step >= 400 && missed) ++count;
    }
    return count;
  };
  EXPECT_EQ(misses(0.2F), 200);
  EXPECT_GT(misses(0.0F), 220);
}

TEST(ExpertPolicy, SuccessorStandsALayerThatIsNeverServedAgain) {
  expert_policy::SuccessorRules rules = expert_policy::kSuccessorRules;
  for (const float carry : {0.5F, 2.0F}) {
    rules.carry = carry;
    expert_policy::Successor p(3, 2, 4, rules);
    std::set<std::uint32_t> resident;
    for (std::uint64_t step = 0; step < 3000; ++step) {
      const std::uint32_t object = step < 2 ? 4 + static_cast<std::uint32_t>(step)
                                            : static_cast<std::uint32_t>(step * 7 % 5 % 4);
      const bool hit = resident.contains(object);
      const std::uint32_t victim = use(p, object, step);
      if (hit) continue;
      if (victim != kNone) {
        ASSERT_EQ(resident.erase(victim), 1U) << "step " << step;
      }
      resident.insert(object);
      ASSERT_LE(resident.size(), 3U);
    }
  }
}

}  // namespace
}  // namespace assay
