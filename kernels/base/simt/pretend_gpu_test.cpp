// Machines that cannot run a kernel, and a card that broke: each case in a process of its own, as a program would meet it.
#include <cstdio>

#include "gtest/gtest.h"

#include "kernels/base/error.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/simt/pretend.h"

namespace assay {
namespace {

// What a program does: asks for the card, uses it, ends with the error's code.
[[noreturn]] void use_card(const simt::Claim& claim, std::size_t bytes) {
  simt::claim = claim;
  try {
    (void)gpu::device();
    gpu::Queue queue;
    const gpu::Buffer buffer(bytes);
    gpu::fill(buffer.data(), std::byte{0}, buffer.bytes(), queue.stream());
    queue.wait();
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    std::_Exit(static_cast<int>(e.code()));
  }
  std::_Exit(0);
}

struct Broken {
  const char* name;
  simt::Claim claim;
  int exit;
  const char* says;
};
const Broken kBroken[] = {
    {"NoDriver", {.error = cudaErrorInsufficientDriver}, 77, "no NVIDIA driver, or one too old"},
    {"NoCard", {.cards = 0}, 77, "no NVIDIA GPU"},
    {"OldArchitecture", {.major = 7, .minor = 0}, 77, "compute capability 7.5 or newer is needed"},
    {"CardTooSmall", {.memory_bytes = std::size_t{48} << 20}, 1, "device memory full"},
    {"StickyError", {.wait = cudaErrorIllegalAddress}, 1, "the device context is lost"},
};

class BrokenMachine : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenMachine, EndsWithItsExitCodeAndSaysWhy) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Broken& b = GetParam();
  EXPECT_EXIT(use_card(b.claim, std::size_t{64} << 20), ::testing::ExitedWithCode(b.exit), b.says);
}

INSTANTIATE_TEST_SUITE_P(All, BrokenMachine, ::testing::ValuesIn(kBroken), [](const auto& param) {
  return std::string(param.param.name);
});

TEST(BrokenMachine, TheCardAsItIsServes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(use_card({}, std::size_t{64} << 20), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace assay
