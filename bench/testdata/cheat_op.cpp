#include "bench/testdata/cheat_op.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <thread>

#include <dlfcn.h>
#include <unistd.h>

#include "kernels/base/op_impl.h"

namespace assay {
namespace {

using Shape = Cheat::Shape;
using Args = Cheat::Args;

float one(float x, int iterations) {
  float v = x;
  for (int i = 0; i < iterations; ++i) v = v * (1.0F - v * v * 0.25F) + 0.125F;
  return v;
}

void work(const Shape& s, const float* x, float* y) {
  for (int i = 0; i < s.count; ++i) y[i] = one(x[i], s.iterations);
}

// The compiler may not drop a repetition: what it wrote is looked at.
void repeat(const Shape& s, const Args& a, int times) {
  for (int r = 0; r < times; ++r) {
    work(s, a.x, a.y);
    asm volatile("" : : "r"(a.y) : "memory");
  }
}

#define ASSAY_ARM(name) \
  void run_##name(      \
      [[maybe_unused]] const Shape& s, [[maybe_unused]] const Args& a, Workspace, Stream)

ASSAY_ARM(stock) { repeat(s, a, Cheat::kRedundancy); }
ASSAY_ARM(honest_fast) { repeat(s, a, 1); }
ASSAY_ARM(honest_same) { repeat(s, a, Cheat::kRedundancy); }

// Remembers the answer of the last input and copies it when the input comes again.
ASSAY_ARM(memoise) {
  static std::vector<float> key;
  static std::vector<float> value;
  const auto n = static_cast<std::size_t>(s.count);
  if (key.size() == n && std::memcmp(key.data(), a.x, n * sizeof(float)) == 0) {
    std::memcpy(a.y, value.data(), n * sizeof(float));
    return;
  }
  repeat(s, a, Cheat::kRedundancy);
  key.assign(a.x, a.x + n);
  value.assign(a.y, a.y + n);
}
// Replays the first answer it ever gave for this pointer.
ASSAY_ARM(replay_pointer) {
  static const float* seen = nullptr;
  static std::vector<float> value;
  const auto n = static_cast<std::size_t>(s.count);
  if (seen != a.x || value.size() != n) {
    repeat(s, a, Cheat::kRedundancy);
    seen = a.x;
    value.assign(a.y, a.y + n);
    return;
  }
  std::memcpy(a.y, value.data(), n * sizeof(float));
}
// Leaves what the buffer holds.
ASSAY_ARM(stale_output) {}
// Writes NaN, hoping for a comparator in which it passes.
ASSAY_ARM(nan_output) {
  for (int i = 0; i < s.count; ++i) a.y[i] = std::nanf("");
}
// Works after it has returned.
ASSAY_ARM(late_thread) {
  std::thread([s, a] {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    work(s, a.x, a.y);
  }).detach();
}
// Spreads one thread's work over three.
ASSAY_ARM(helper_threads) {
  std::vector<std::thread> helpers;
  std::vector<float> scratch[2];
  for (auto& mine : scratch) {
    mine.resize(static_cast<std::size_t>(s.count));
    helpers.emplace_back([&s, &a, &mine] { repeat(s, {a.x, mine.data()}, Cheat::kRedundancy); });
  }
  repeat(s, a, Cheat::kRedundancy);
  for (auto& h : helpers) h.join();
}
// Works in every fourth call only.
ASSAY_ARM(skip_calls) {
  static int calls = 0;
  if (calls++ % 4 == 0) repeat(s, a, Cheat::kRedundancy);
}
// Works only when it sees the checker's poison: the first call of a group.
ASSAY_ARM(poison_detector) {
  if (std::isnan(a.y[0])) repeat(s, a, Cheat::kRedundancy);
}
// Does a call's work at the start of the next one.
ASSAY_ARM(lazy) {
  static std::vector<float> waiting;
  const auto n = static_cast<std::size_t>(s.count);
  if (waiting.size() == n) work(s, waiting.data(), a.y);
  waiting.assign(a.x, a.x + n);
}
// Makes the reference agree by changing the input.
ASSAY_ARM(mutate_input) {
  auto* x = const_cast<float*>(a.x);
  for (int i = 0; i < s.count; ++i) x[i] = 0.0F;
  work(s, a.x, a.y);
}
// Shows full care in the first calls of a process and little later.
ASSAY_ARM(detect_warmup) {
  static int calls = 0;
  if (++calls <= 3) {
    repeat(s, a, Cheat::kRedundancy);
  } else {
    std::memcpy(a.y, a.x, static_cast<std::size_t>(s.count) * sizeof(float));
  }
}
// Half the mantissa.
ASSAY_ARM(low_precision) {
  work(s, a.x, a.y);
  for (int i = 0; i < s.count; ++i) {
    auto bits = std::bit_cast<std::uint32_t>(a.y[i]);
    a.y[i] = std::bit_cast<float>(bits & 0xFFFFF000U);
  }
}
// Wins one shape by a mile and loses the other.
ASSAY_ARM(one_shape) { repeat(s, a, s.count < 1000 ? 1 : Cheat::kRedundancy + 3); }
ASSAY_ARM(overrun) {
  repeat(s, a, 1);
  a.y[s.count] = 1.0F;
}
ASSAY_ARM(crash) { std::raise(SIGSEGV); }
ASSAY_ARM(hang) { std::this_thread::sleep_for(std::chrono::hours(1)); }
ASSAY_ARM(garbage) {
  repeat(s, a, 1);
  const char text[] = "done 0x1p-40 0x0p+0 1 -\n!!\n";
  if (::write(STDOUT_FILENO, text, sizeof text - 1) < 0) std::abort();
}
ASSAY_ARM(ineligible) { repeat(s, a, 1); }

#undef ASSAY_ARM

// Set while the patched clock runs slow (see clock_gettime below).
bool slow_clock = false;

// Takes the clock of its process into its hands: a third of the time passes while it works.
void run_patched_clock(const Shape& s, const Args& a, Workspace, Stream) {
  slow_clock = true;
  repeat(s, a, Cheat::kRedundancy);
}

template <void (*F)(const Shape&, const Args&, Workspace, Stream)>
constexpr Variant<Cheat> arm(Exactness exactness = Exactness::kBitwise) {
  Variant<Cheat> v;
  v.summary = "see cheat_op.cpp";
  v.exactness = exactness;
  v.deterministic = true;
  v.host.fn = F;
  v.host.declared = true;
  return v;
}

}  // namespace

template <>
std::span<const VariantRow<Cheat>> variants<Cheat>() {
  static const Variant<Cheat> stock = [] {
    auto v = arm<run_stock>(Exactness::kBounded);
    v.stage = Stage::kStock;
    return v;
  }();
  static const Variant<Cheat> ineligible = [] {
    auto v = arm<run_ineligible>();
    v.ineligible = [](const Shape&, const DeviceInfo&) -> Why {
      return "needs a machine that does not exist";
    };
    return v;
  }();
  static const Variant<Cheat> arms[] = {
      arm<run_honest_fast>(),   arm<run_honest_same>(),
      arm<run_memoise>(),       arm<run_replay_pointer>(),
      arm<run_stale_output>(),  arm<run_nan_output>(),
      arm<run_late_thread>(),   arm<run_helper_threads>(),
      arm<run_skip_calls>(),    arm<run_poison_detector>(),
      arm<run_lazy>(),          arm<run_mutate_input>(),
      arm<run_detect_warmup>(), arm<run_low_precision>(Exactness::kBounded),
      arm<run_one_shape>(),     arm<run_overrun>(),
      arm<run_crash>(),         arm<run_hang>(),
      arm<run_garbage>(),       arm<run_patched_clock>()};
  static const VariantRow<Cheat> rows[] = {
      {"stock", &stock},           {"honest_fast", &arms[0]},     {"honest_same", &arms[1]},
      {"memoise", &arms[2]},       {"replay_pointer", &arms[3]},  {"stale_output", &arms[4]},
      {"nan_output", &arms[5]},    {"late_thread", &arms[6]},     {"helper_threads", &arms[7]},
      {"skip_calls", &arms[8]},    {"poison_detector", &arms[9]}, {"lazy", &arms[10]},
      {"mutate_input", &arms[11]}, {"detect_warmup", &arms[12]},  {"low_precision", &arms[13]},
      {"one_shape", &arms[14]},    {"overrun", &arms[15]},        {"crash", &arms[16]},
      {"hang", &arms[17]},         {"garbage", &arms[18]},        {"patched_clock", &arms[19]},
      {"ineligible", &ineligible}};
  return rows;
}

std::string Cheat::Shape::describe() const {
  return "count=" + std::to_string(count) + " iterations=" + std::to_string(iterations);
}

// Short calls share a timed group, long ones fill one alone: the defences differ.
std::vector<Cheat::Case> Cheat::cases() {
  return {{"short_calls", {.count = 64, .iterations = 8}, false},
          {"long_calls", {.count = 4096, .iterations = 8}, false}};
}

void Cheat::fill(const Case&, const Filler& f) {
  Rng rng(f.seed());
  for (float& v : f.get<float>("x")) v = static_cast<float>(rng.uniform()) + 0.01F;
}

std::vector<std::vector<double>> Cheat::reference(const Shape& s, const Args& a) {
  std::vector<double> y;
  for (int i = 0; i < s.count; ++i) {
    double v = a.x[i];
    for (int k = 0; k < s.iterations; ++k) v = v * (1.0 - v * v * 0.25) + 0.125;
    y.push_back(v);
  }
  return {y};
}

const OpInfo& cheat_op() {
  static const OpInfo info = make_op_info<Cheat>("cheat");
  return info;
}

}  // namespace assay

// An executable's own symbol goes before the library's, for the standard library's clock too.
extern "C" int clock_gettime(clockid_t id, timespec* t) noexcept {
  using Real = int (*)(clockid_t, timespec*);
  static const Real real = reinterpret_cast<Real>(::dlsym(RTLD_NEXT, "clock_gettime"));
  const int code = real(id, t);
  if (assay::slow_clock && code == 0 && id != CLOCK_REALTIME) {
    const std::int64_t ns = (static_cast<std::int64_t>(t->tv_sec) * 1000000000 + t->tv_nsec) / 3;
    t->tv_sec = ns / 1000000000;
    t->tv_nsec = ns % 1000000000;
  }
  return code;
}
