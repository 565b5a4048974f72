// What stands between a program and a card that does not answer, or a machine that cannot tell how it is.
#include <chrono>
#include <thread>

#include "gtest/gtest.h"

#include "kernels/base/nvml.h"
#include "kernels/base/wait_limit.h"

namespace assay {
namespace {

using namespace std::chrono_literals;

TEST(WaitLimitDeathTest, AWaitPastItsDeadlineEndsTheProcessAndSaysForWhat) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const WaitLimit outer("nothing in particular", 1h);
        const WaitLimit limit("an answer that never comes", 100ms);
        std::this_thread::sleep_for(20s);
      },
      ::testing::ExitedWithCode(1),
      "within 0.1 s while waiting for an answer that never comes");
}

TEST(WaitLimitDeathTest, AWaitThatEndedCountsNoLonger) {
  { const WaitLimit limit("something short", 1ms); }
  std::this_thread::sleep_for(150ms);
  SUCCEED();
}

TEST(CardMonitor, AMachineWithoutTheLibraryIsSaidToHaveNone) {
  const CardMonitor monitor("libno-such-library.so.1");
  EXPECT_NE(monitor.absent().find("libno-such-library.so.1"), std::string::npos);
  EXPECT_EQ(monitor.read().sm_mhz, 0U);
  EXPECT_EQ(monitor.driver(), "");
}

// A library of another kind has none of the functions.
TEST(CardMonitor, ALibraryWithoutTheFunctionsIsNamed) {
  const CardMonitor monitor("libm.so.6");
  EXPECT_NE(monitor.absent().find("lacks nvmlInit_v2"), std::string::npos) << monitor.absent();
}

}  // namespace
}  // namespace assay
