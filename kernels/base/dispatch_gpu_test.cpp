// parity:<variant> on the card: whatever the variant does to its buffers there, stock's output is what is served.
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/dispatch.h"
#include "kernels/base/gpu_memory.h"

namespace assay {
namespace card_dispatch_test {

// y = x, by copies and fills of the card.
struct Same {
  static constexpr const char* kName = "same";
  static constexpr const char* kSwitch = "ASSAY_SAME";
  static constexpr const char* kSummary = "an op for the test of dispatch on a card";
  static constexpr OpKind kKind = OpKind::kKernel;
  struct Shape {
    std::size_t n = 0;
  };
  struct Args {
    const float* x = nullptr;
    float* y = nullptr;
  };
  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    v("x", a.x, s.n, Dir::kIn);
    v("y", a.y, s.n, Dir::kOut);
  }
  static std::size_t workspace_bytes(const Shape&) { return 16; }
};

std::byte* bytes(const float* p) { return reinterpret_cast<std::byte*>(const_cast<float*>(p)); }

void honest(const Same::Shape& s, const Same::Args& a, Workspace, Stream stream) {
  gpu::copy(bytes(a.y), bytes(a.x), s.n * sizeof(float), stream);
}
void wrong_value(const Same::Shape& s, const Same::Args& a, Workspace w, Stream stream) {
  honest(s, a, w, stream);
  gpu::fill(bytes(a.y + 5), std::byte{0x11}, sizeof(float), stream);
}
void past_the_end(const Same::Shape& s, const Same::Args& a, Workspace w, Stream stream) {
  honest(s, a, w, stream);
  gpu::fill(bytes(a.y + s.n), std::byte{0x11}, sizeof(float), stream);
}
void changes_input(const Same::Shape& s, const Same::Args& a, Workspace w, Stream stream) {
  honest(s, a, w, stream);
  gpu::fill(bytes(a.x), std::byte{0x11}, sizeof(float), stream);
}

using V = Variant<Same>;
const V kStockVariant{.stage = Stage::kStock, .cuda = {.fn = honest, .declared = true}};
const V kWrong{.cuda = {.fn = wrong_value, .declared = true}};
const V kPast{.cuda = {.fn = past_the_end, .declared = true}};
const V kInput{.cuda = {.fn = changes_input, .declared = true}};

}  // namespace card_dispatch_test

template <>
std::span<const VariantRow<card_dispatch_test::Same>> variants() {
  using namespace card_dispatch_test;
  static const VariantRow<Same> rows[] = {{"stock", &kStockVariant},
                                          {"wrong_value", &kWrong},
                                          {"past_the_end", &kPast},
                                          {"changes_input", &kInput}};
  return rows;
}

namespace {

using card_dispatch_test::Same;

class BrokenOnCard : public ::testing::TestWithParam<const char*> {};

TEST_P(BrokenOnCard, UnderParityNeverReachesTheOutput) {
  if (const Why why = gpu::unavailable()) GTEST_SKIP() << why;
  constexpr std::size_t kCount = 64;
  gpu::Queue queue;
  // Room behind both, which must stay as it is.
  const gpu::DeviceBuffer<float> x(2 * kCount);
  const gpu::DeviceBuffer<float> y(2 * kCount);
  const gpu::Buffer scratch(16);
  std::vector<float> host(2 * kCount);
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i) + 0.5F;
  const std::size_t size = host.size() * sizeof(float);
  const auto* from = reinterpret_cast<const std::byte*>(host.data());
  gpu::upload(reinterpret_cast<std::byte*>(x.data()), from, size, queue.stream());
  gpu::fill(reinterpret_cast<std::byte*>(y.data()), std::byte{0x33}, size, queue.stream());
  Dispatch<Same> dispatch({GetParam(), true, "switch"}, gpu::device(), false);
  dispatch({kCount}, {x.data(), y.data()}, {scratch.data(), scratch.bytes()}, queue.stream());
  std::vector<float> x_after(host.size());
  std::vector<float> y_after(host.size());
  const auto fetch = [&](std::vector<float>& to, const gpu::DeviceBuffer<float>& of) {
    gpu::download(reinterpret_cast<std::byte*>(to.data()),
                  reinterpret_cast<const std::byte*>(of.data()),
                  size,
                  queue.stream());
  };
  fetch(x_after, x);
  fetch(y_after, y);
  queue.wait();
  EXPECT_EQ(x_after, host);
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(y_after[i], host[i]) << i;
  const std::vector<std::byte> untouched(kCount * sizeof(float), std::byte{0x33});
  EXPECT_EQ(std::memcmp(&y_after[kCount], untouched.data(), untouched.size()), 0);
  const DispatchReport& report = dispatch.report();
  EXPECT_EQ(report.compared, 1U);
  EXPECT_EQ(report.selected, 0U);
  EXPECT_TRUE(report.mismatched_bytes > 0 || report.broke_rules > 0);
}

INSTANTIATE_TEST_SUITE_P(Variants,
                         BrokenOnCard,
                         ::testing::Values("wrong_value", "past_the_end", "changes_input"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace assay
