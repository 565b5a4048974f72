#include "replay/sequence.h"

#include <fstream>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "replay/next_use_queue.h"
#include "replay/spill.h"
#include "replay/testing.h"
#include "traces/convert.h"
#include "traces/flat.h"

namespace assay::replay {
namespace {

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Sequence, NextUseAgreesWithASearchForward) {
  const TemporaryFile file(".mrt");
  write_random_trace(file.path(), {.geometry = {3, 9, 3}, .steps = 120, .padding = 0.3, .seed = 3});
  Sequence s({file.path()}, {});
  Block all;
  s.decode(0, 120, false, all);
  const NextUse next(s);
  next.fill(all);
  std::vector<std::uint64_t> place(all.objects.size());
  for (std::size_t g = 0; g < all.groups(); ++g) {
    const std::uint32_t begin = g == 0 ? 0 : all.group_end[g - 1];
    for (std::uint32_t i = begin; i < all.group_end[g]; ++i) place[i] = g * 3 + (i - begin);
  }
  std::size_t again = 0;
  for (std::size_t i = 0; i < all.objects.size(); ++i) {
    std::uint32_t want = kNeverAgain;
    for (std::size_t j = i + 1; j < all.objects.size() && want == kNeverAgain; ++j) {
      if (all.objects[j] == all.objects[i]) want = static_cast<std::uint32_t>(place[j] - place[i]);
    }
    ASSERT_EQ(all.next[i], want) << "access " << i;
    again += want != kNeverAgain ? 1 : 0;
  }
  EXPECT_GT(again, 500U);
}

TEST(Sequence, BlocksOfAnySizeHoldTheSameAccesses) {
  const TemporaryFile file(".mrt");
  write_random_trace(file.path(),
                     {.steps = 100, .conversations = 4, .weights = WeightKind::kF16, .seed = 8});
  Sequence s({file.path()}, {});
  Block all;
  s.decode(0, 1000, true, all);
  EXPECT_EQ(all.steps, 100U);
  EXPECT_EQ(all.weights.size(), all.objects.size());
  for (const std::size_t size : {1, 3, 64}) {
    std::vector<std::uint32_t> objects;
    std::vector<float> weights;
    std::vector<std::uint32_t> conversation;
    Block b;
    for (std::uint64_t at = 0; at < s.steps(); at += b.steps) {
      s.decode(at, size, true, b);
      objects.insert(objects.end(), b.objects.begin(), b.objects.end());
      weights.insert(weights.end(), b.weights.begin(), b.weights.end());
      conversation.insert(conversation.end(), b.conversation.begin(), b.conversation.end());
    }
    EXPECT_EQ(objects, all.objects);
    EXPECT_EQ(weights, all.weights);
    EXPECT_EQ(conversation, all.conversation);
  }
}

TEST(Sequence, SplitsStepsAndSeveralInputsAreOneRun) {
  const TemporaryFile a(".mrt");
  const TemporaryFile b(".mrt");
  write_random_trace(a.path(), {.steps = 90, .conversations = 3, .seed = 1});
  write_random_trace(b.path(), {.steps = 40, .conversations = 1, .seed = 2, .seal = false});
  Sequence both({a.path(), b.path()}, {});
  EXPECT_EQ(both.steps(), 130U);
  EXPECT_EQ(both.conversations().size(), 4U);
  EXPECT_FALSE(both.sealed());
  Sequence held({a.path(), b.path()}, {.split = Split::kHeldOut});
  EXPECT_EQ(held.steps(), 30U);
  Sequence cut({a.path(), b.path()}, {.max_steps = 95});
  EXPECT_EQ(cut.steps(), 95U);
  Block whole;
  Block part;
  both.decode(60, 30, false, whole);
  held.decode(0, 30, false, part);
  EXPECT_EQ(whole.objects, part.objects);
  EXPECT_NE(message_of([&] {
              Sequence({b.path()}, {.split = Split::kHeldOut});
            }).find("no steps in the split held-out"),
            std::string::npos);
}

TEST(Sequence, RefusesMixedGeometriesAndMixedKindsNamingBothFiles) {
  const TemporaryFile a(".mrt");
  const TemporaryFile b(".mrt");
  const TemporaryFile ids(".ids");
  write_random_trace(a.path(), {});
  write_random_trace(b.path(), {.geometry = {3, 11, 3}});
  write_text(ids.path(), "1\n2\n");
  const std::string mixed = message_of([&] { Sequence({a.path(), b.path()}, {}); });
  EXPECT_NE(
      mixed.find("mixed geometries: 3 layers x 11 experts, top-3 here, 3 layers x 10 experts"),
      std::string::npos)
      << mixed;
  EXPECT_THROW(Sequence({a.path(), ids.path()}, {}), InputError);
  EXPECT_THROW(Sequence({}, {}), UserError);
}

TEST(Sequence, ReadsFlatLogsByNameAndGivesLayersOnRequest) {
  const TemporaryFile ids(".ids");
  const TemporaryFile oracle(".oracleGeneral");
  write_text(ids.path(), "7\n0\r\n\n12\n7");
  FlatWriter w(oracle.path(), FlatKind::kOracleGeneral);
  for (const std::uint32_t o : {7U, 0U, 12U, 7U}) w.append(o, 0, -1);
  w.close();
  for (const auto* file : {&ids, &oracle}) {
    Sequence s({file->path()}, {.experts = 5});
    EXPECT_TRUE(s.flat());
    EXPECT_EQ(s.geometry(), (TraceGeometry{3, 5, 1}));
    EXPECT_EQ(s.layer_of(12), 2U);
    Block b;
    s.decode(0, 10, false, b);
    EXPECT_EQ(b.objects, (std::vector<std::uint32_t>{7, 0, 12, 7}));
    EXPECT_EQ(b.groups(), 4U);
  }
  Sequence plain({ids.path()}, {});
  EXPECT_EQ(plain.objects(), 13U);
}

TEST(FlatLogs, RefuseWhatIsNotAnAccessNamingTheByte) {
  const TemporaryFile ids(".ids");
  const auto refused = [&](const std::string& text) {
    write_text(ids.path(), text);
    return message_of([&] { Sequence({ids.path()}, {}); });
  };
  EXPECT_NE(refused("").find("no accesses"), std::string::npos);
  EXPECT_NE(refused("\n\n").find("no accesses"), std::string::npos);
  EXPECT_NE(refused("1\nx2\n").find("byte 2: 'x2'"), std::string::npos) << refused("1\nx2\n");
  EXPECT_NE(refused("1\n-2\n").find("byte 2"), std::string::npos);
  EXPECT_NE(refused("4294967295\n").find("byte 0"), std::string::npos);
  EXPECT_NE(refused("4000000000\n").find("above 2^28"), std::string::npos);
  EXPECT_NE(refused(std::string(3000000, '1')).find("more than a megabyte"), std::string::npos);
  const TemporaryFile oracle(".oracleGeneral.bin");
  write_text(oracle.path(), std::string(30, '\1'));
  EXPECT_NE(message_of([&] { Sequence({oracle.path()}, {}); }).find("byte 4: object id"),
            std::string::npos);
  std::string torn(24 + 5, '\0');
  torn[4] = 1;
  write_text(oracle.path(), torn);
  EXPECT_NE(
      message_of([&] { Sequence({oracle.path()}, {}); }).find("byte 24: record cut short: 5 of 24"),
      std::string::npos);
}

TEST(Spill, HoldsTheSameNumbersInMemoryAndOnFile) {
  Rng rng(seed_from_name("spill"));
  for (const std::uint64_t memory : {1000000, 100, 0}) {
    Spill s(0, memory);
    std::vector<std::uint32_t> want;
    for (int i = 0; i < 40; ++i) {
      std::vector<std::uint32_t> chunk(rng.below(20));
      for (auto& v : chunk) v = static_cast<std::uint32_t>(rng.next());
      s.append(chunk);
      want.insert(want.end(), chunk.begin(), chunk.end());
    }
    ASSERT_EQ(s.size(), want.size());
    std::vector<std::uint32_t> got(want.size());
    s.read(0, got);
    EXPECT_EQ(got, want);
    s.write(3, std::vector<std::uint32_t>{9, 8, 7});
    s.read(2, {got.data(), 5});
    EXPECT_EQ(got[1], 9U);
    EXPECT_EQ(got[3], 7U);
    EXPECT_EQ(got[4], want[6]);
    EXPECT_THROW(s.read(want.size() - 1, {got.data(), 2}), std::out_of_range);
  }
}

TEST(NextUseQueue, AgreesWithAnOrderedSetWhenUsesLieFarBeyondItsWindow) {
  // A window of 4,096 and next uses up to 40,000 ahead: ring, wrap-around, far heap and its cleaning all take part.
  constexpr std::uint32_t kObjects = 300;
  NextUseQueue queue(kObjects, 4096);
  std::set<std::pair<std::uint64_t, std::uint32_t>> want;
  std::map<std::uint64_t, std::uint32_t> at;  // place -> object
  Rng rng(seed_from_name("queue"));
  std::uint64_t taken = 0;
  for (std::uint64_t now = 1; now < 300000; ++now) {
    const auto due = at.find(now);
    if (due != at.end()) {
      ASSERT_TRUE(queue.contains(due->second));
      queue.erase(due->second);
      want.erase({now, due->second});
      at.erase(due);
    }
    const auto o = static_cast<std::uint32_t>(rng.below(kObjects));
    if (!queue.contains(o) && rng.below(3) != 0) {
      const std::uint64_t ahead = 1 + (rng.below(4) == 0 ? rng.below(40000) : rng.below(600));
      if (!at.contains(now + ahead)) {
        queue.insert(o, now + ahead, now);
        want.insert({now + ahead, o});
        at[now + ahead] = o;
      }
    }
    if (rng.below(20) == 0 && !want.empty()) {
      const auto last = *want.rbegin();
      ASSERT_EQ(queue.farthest(now), last.second) << "at " << now;
      ASSERT_EQ(queue.take_farthest(now), last.second);
      want.erase(last);
      at.erase(last.first);
      ++taken;
    }
  }
  EXPECT_GT(taken, 5000U);
}

}  // namespace
}  // namespace assay::replay
