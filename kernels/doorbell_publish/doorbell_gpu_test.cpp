// A host thread polls the mapped ring while the device publishes: no record early, torn, lost or stale.
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/gpu_memory.h"
#include "kernels/base/rng.h"
#include "kernels/base/route.h"
#include "kernels/doorbell_publish/op.h"

namespace assay {
namespace {

constexpr int kPatterns = 16;  // inputs that follow each other in a graph
constexpr int kSlots = 51;     // no multiple of them: a slot holds another pattern at every lap

// What pattern i publishes.
struct Expected {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::vector<float> x;
  bool miss = false;
};

class Bell {
 public:
  Bell(int tokens, bool residency)
      : shape_{tokens, 128, 8, 96, kSlots, residency},
        ids_bytes_(z(tokens) * 8 * 4),
        x_bytes_(z(tokens) * 96 * 4),
        inputs_(kPatterns * input_bytes()),
        ids_(ids_bytes_),
        weights_(ids_bytes_),
        published_(4),
        ring_(kSlots * (2 * ids_bytes_ + x_bytes_) + 64, gpu::Place::kMapped) {
    Rng rng(tokens);
    std::vector<std::byte> host(inputs_.bytes());
    for (int i = 0; i < kPatterns; ++i) fill(i, host.data() + z(i) * input_bytes(), rng);
    gpu::upload(inputs_.data(), host.data(), host.size(), queue_.stream());
    gpu::fill(published_.data(), std::byte{0}, 4, queue_.stream());
    queue_.wait();
    std::memset(ring_.data(), 0, ring_.bytes());
  }

  // Launches `rounds` times all patterns, as a graph, and checks every record while they run. Empty: all is well.
  std::string run(const Variant<DoorbellPublish>& variant, int rounds) {
    for (int i = 0; i < kPatterns; ++i) variant.cuda.fn(shape_, args(i), {}, queue_.stream());
    queue_.wait();
    const auto graph = gpu::Graph::capture(queue_.stream(), [&] {
      for (int i = 0; i < kPatterns; ++i) variant.cuda.fn(shape_, args(i), {}, queue_.stream());
    });
    seen_ = number();
    std::string fault;
    std::atomic<int> checked{seen_};
    int launched = seen_;
    const int last = seen_ + rounds * kPatterns;
    std::thread poller([&] {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
      while (seen_ < last && fault.empty()) {
        const int now = number();
        if (now < seen_) fault = "the number fell to " + std::to_string(now);
        for (; seen_ < now && fault.empty(); ++seen_) fault = check(seen_ + 1);
        checked.store(seen_, std::memory_order_release);
        if (std::chrono::steady_clock::now() > deadline) fault = "no record for 5 minutes";
      }
      checked.store(fault.empty() ? seen_ : -1, std::memory_order_release);
    });
    for (int r = 0; r < rounds; ++r) {
      graph.launch(queue_.stream());
      launched += kPatterns;
      // A record may be overwritten kSlots later: never further ahead than that.
      int done = 0;
      while ((done = checked.load(std::memory_order_acquire)) >= 0 &&
             launched + kPatterns - done > kSlots - 1) {
        std::this_thread::yield();
      }
      if (done < 0) break;
    }
    poller.join();
    queue_.wait();
    if (fault.empty() && number() != last) fault = "more records than launches";
    return fault;
  }

 private:
  static std::size_t z(int n) { return static_cast<std::size_t>(n); }
  std::size_t logits_bytes() const { return z(shape_.tokens) * 128 * 4; }
  std::size_t input_bytes() const { return logits_bytes() + 128 * 4 + x_bytes_ + 128 * 4; }

  void fill(int i, std::byte* at, Rng& rng) {
    auto* logits = reinterpret_cast<float*>(at);
    auto* scale = logits + logits_bytes() / 4;
    auto* x = scale + 128;
    auto* resident = reinterpret_cast<std::int32_t*>(x + x_bytes_ / 4);
    // Ties in every fourth pattern.
    for (std::size_t n = 0; n < logits_bytes() / 4; ++n)
      logits[n] = i % 4 == 3 ? 0.5F : static_cast<float>(rng.normal());
    for (int e = 0; e < 128; ++e) scale[e] = static_cast<float>(0.5 + rng.uniform());
    for (std::size_t n = 0; n < x_bytes_ / 4; ++n) x[n] = static_cast<float>(rng.normal());
    Expected& want = expected_[i];
    want.x.assign(x, x + x_bytes_ / 4);
    want.ids.resize(ids_bytes_ / 4);
    want.weights.resize(ids_bytes_ / 4);
    for (int t = 0; t < shape_.tokens; ++t) {
      route_row(logits + 128 * t, scale, 128, 8, &want.ids[z(8 * t)], &want.weights[z(8 * t)]);
    }
    // All hit, one miss (the last id), all miss, in turns.
    for (int e = 0; e < 128; ++e) resident[e] = i % 3 == 2 ? 0 : 1;
    if (i % 3 == 1) resident[want.ids.back()] = 0;
    want.miss = !shape_.residency || i % 3 != 0;
  }
  DoorbellPublish::Args args(int i) const {
    const std::byte* in = inputs_.data() + z(i) * input_bytes();
    DoorbellPublish::Args a;
    a.logits = reinterpret_cast<const float*>(in);
    a.scale = a.logits + logits_bytes() / 4;
    a.x = a.scale + 128;
    a.resident = reinterpret_cast<const std::int32_t*>(a.x + x_bytes_ / 4);
    a.ids = reinterpret_cast<std::int32_t*>(ids_.data());
    a.weights = reinterpret_cast<float*>(weights_.data());
    a.published = reinterpret_cast<std::int32_t*>(published_.data());
    std::byte* ring = ring_.device_data();
    a.sequence = reinterpret_cast<std::int32_t*>(ring);  // a cache line of its own
    a.ring_ids = reinterpret_cast<std::int32_t*>(ring + 64);
    a.ring_weights = reinterpret_cast<float*>(ring + 64 + kSlots * ids_bytes_);
    a.ring_x = reinterpret_cast<float*>(ring + 64 + 2 * kSlots * ids_bytes_);
    return a;
  }
  int number() const {
    return std::atomic_ref<std::int32_t>(*reinterpret_cast<std::int32_t*>(ring_.data()))
        .load(std::memory_order_acquire);
  }
  // Record n, which is pattern n - 1.
  std::string check(int n) const {
    const Expected& want = expected_[(n - 1) % kPatterns];
    const std::size_t slot = z(n % kSlots);
    const std::byte* ring = ring_.data() + 64;
    const auto differs = [&](const std::byte* got, const auto& values) {
      return std::memcmp(got, values.data(), values.size() * 4) != 0;
    };
    const std::string record = " of record " + std::to_string(n);
    if (differs(ring + slot * ids_bytes_, want.ids)) return "ids" + record;
    if (differs(ring + kSlots * ids_bytes_ + slot * ids_bytes_, want.weights))
      return "weights" + record;
    if (want.miss && differs(ring + 2 * kSlots * ids_bytes_ + slot * x_bytes_, want.x))
      return "activations" + record;
    return {};
  }

  DoorbellPublish::Shape shape_;
  std::size_t ids_bytes_;
  std::size_t x_bytes_;
  gpu::Queue queue_;
  gpu::Buffer inputs_;
  gpu::Buffer ids_;
  gpu::Buffer weights_;
  gpu::Buffer published_;
  gpu::Buffer ring_;
  Expected expected_[kPatterns];
  int seen_ = 0;
};

class DoorbellOnGpu : public ::testing::TestWithParam<const char*> {};

const Variant<DoorbellPublish>* variant_named(const std::string& name) {
  for (const auto& [variant_name, variant] : variants<DoorbellPublish>()) {
    if (variant_name == name) return variant;
  }
  return nullptr;
}

TEST_P(DoorbellOnGpu, APollingThreadSeesEveryRecordWholeAndInOrder) {
  if (const Why why = gpu::unavailable()) GTEST_SKIP() << why;
  const auto* variant = variant_named(GetParam());
  ASSERT_NE(variant, nullptr);
  // A million in all on a card: nine kinds of record.
  const int rounds = gpu::simulated() ? 8 : 1'000'000 / kPatterns / 9 + 1;
  for (int tokens = 1; tokens <= 8; ++tokens) {
    Bell bell(tokens, true);
    ASSERT_EQ(bell.run(*variant, rounds), "") << tokens << " tokens";
  }
  Bell no_residency(2, false);
  ASSERT_EQ(no_residency.run(*variant, rounds), "") << "no residency";
}

INSTANTIATE_TEST_SUITE_P(Variants,
                         DoorbellOnGpu,
                         ::testing::Values("stock", "threads256", "fused_topk"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace assay
