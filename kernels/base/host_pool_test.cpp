#include "kernels/base/host_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/error.h"

namespace assay {
namespace {

using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;

Ranges ranges_of(HostPool& pool, std::size_t count, std::size_t grain) {
  std::mutex mutex;
  Ranges ranges;
  pool.parallel(count, grain, [&](std::size_t b, std::size_t e) {
    const std::scoped_lock lock(mutex);
    ranges.emplace_back(b, e);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

TEST(HostPool, RangesAreDisjointCoverEverythingAndRespectTheGrain) {
  for (const int threads : {1, 2, 3, 4, 7}) {
    HostPool pool(threads);
    for (const std::size_t count : {1U, 2U, 7U, 8U, 9U, 64U, 1000U, 1001U}) {
      for (const std::size_t grain : {1U, 8U, 32U, 2000U}) {
        const Ranges ranges = ranges_of(pool, count, grain);
        ASSERT_FALSE(ranges.empty());
        EXPECT_LE(ranges.size(), static_cast<std::size_t>(threads * HostPool::kPieces));
        std::size_t next = 0;
        for (std::size_t i = 0; i < ranges.size(); ++i) {
          EXPECT_EQ(ranges[i].first, next);
          EXPECT_LT(ranges[i].first, ranges[i].second);
          if (i + 1 < ranges.size()) {
            EXPECT_EQ((ranges[i].second - ranges[i].first) % grain, 0U);
          }
          next = ranges[i].second;
        }
        EXPECT_EQ(next, count) << threads << " threads, grain " << grain;
      }
    }
  }
}

TEST(HostPool, TheCutDependsOnTheCountAndNotOnTheRun) {
  HostPool pool(4);
  const Ranges first = ranges_of(pool, 1000, 8);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(ranges_of(pool, 1000, 8), first);
}

TEST(HostPool, NothingToDoCallsNobody) {
  HostPool pool(3);
  EXPECT_TRUE(ranges_of(pool, 0, 1).empty());
  parallel_for(&pool, 0, 1, [](std::size_t, std::size_t) { FAIL(); });
}

TEST(HostPool, WritesOfEveryThreadAreSeenAfterTheCall) {
  HostPool pool(4);
  std::vector<int> hits(4096, 0);
  for (int round = 1; round <= 200; ++round) {
    pool.parallel(hits.size(), 16, [&](std::size_t b, std::size_t e) {
      for (std::size_t i = b; i < e; ++i) ++hits[i];
    });
    ASSERT_EQ(std::count(hits.begin(), hits.end(), round), 4096) << round;
  }
}

TEST(HostPool, AnExceptionOfAnyThreadComesBackAndThePoolStaysUsable) {
  HostPool pool(4);
  for (std::size_t thrower = 0; thrower < 4; ++thrower) {
    std::atomic<int> ran{0};
    const auto body = [&](std::size_t b, std::size_t) {
      ++ran;
      if (b / 25 == thrower) throw std::runtime_error("thread " + std::to_string(thrower));
    };
    try {
      pool.parallel(100, 25, body);
      FAIL() << "no exception from thread " << thrower;
    } catch (const std::runtime_error& e) {
      EXPECT_EQ(e.what(), "thread " + std::to_string(thrower));
    }
    EXPECT_EQ(ran, 4);
    EXPECT_EQ(ranges_of(pool, 100, 25).size(), 4U);
  }
}

TEST(HostPool, OfManyExceptionsOneComesBack) {
  HostPool pool(4);
  for (int i = 0; i < 50; ++i) {
    EXPECT_THROW(
        pool.parallel(100, 1, [](std::size_t, std::size_t) { throw std::runtime_error("x"); }),
        std::runtime_error);
  }
  EXPECT_EQ(ranges_of(pool, 4, 1).size(), 4U);
}

TEST(HostPool, WakesAfterItsThreadsHaveGoneToSleep) {
  HostPool pool(3);
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(ranges_of(pool, 30, 10).size(), 3U);
  }
}

// The first piece ends only after the other three, so whoever does not hold it has to take all of them.
TEST(HostPool, WhoeverIsFreeTakesTheNextPiece) {
  HostPool pool(2);
  std::atomic<int> quick{0};
  pool.parallel(4, 1, [&](std::size_t b, std::size_t) {
    if (b == 0) {
      while (quick.load() < 3) std::this_thread::yield();
    } else {
      ++quick;
    }
  });
  EXPECT_EQ(quick, 3);
}

TEST(HostPool, ManyPoolsComeAndGo) {
  for (int i = 0; i < 100; ++i) {
    HostPool pool(1 + i % 5);
    if (i % 3 == 0) {
      EXPECT_FALSE(ranges_of(pool, 10, 1).empty());
    }
  }
}

TEST(HostPool, RefusesAnImpossibleThreadCount) {
  EXPECT_THROW(HostPool(0), UserError);
  EXPECT_THROW(HostPool(-1), UserError);
  EXPECT_THROW(HostPool(257), UserError);
}

TEST(ParallelFor, WithoutAPoolOrForLittleWorkRunsInOnePieceHere) {
  const auto pieces = [](HostPool* pool, std::size_t count, std::size_t grain) {
    std::atomic<int> n{0};
    parallel_for(pool, count, grain, [&](std::size_t, std::size_t) { ++n; });
    return n.load();
  };
  HostPool pool(4);
  EXPECT_EQ(pieces(nullptr, 100, 1), 1);
  EXPECT_EQ(pieces(&pool, 8, 8), 1);
  EXPECT_EQ(pieces(&pool, 100, 8), 13);
  EXPECT_EQ(pieces(&pool, 1600, 8), 4 * HostPool::kPieces);
}

}  // namespace
}  // namespace assay
