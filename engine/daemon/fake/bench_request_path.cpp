// What a request costs besides the model, on the host alone: decode JSON, render, tokenise, schedule, frames. The backend
// is scripted, so its own first token takes no time and all of `first_frame` is overhead; the goal is 2 ms.
//   bench_request_path [--benchmark_filter=first_frame]   from the repository's root; exit 1 above the goal
// A microbenchmark: of the path, and no claim about a server under load.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <nlohmann/json.hpp>

#include "engine/chat_template.h"
#include "engine/daemon/fake/fake_backend.h"
#include "engine/daemon/request_decoder.h"
#include "engine/daemon/service.h"
#include "engine/daemon/wire_frames.h"
#include "engine/gguf.h"
#include "engine/prompt_cache.h"
#include "engine/tokenizer.h"
#include "kernels/base/log.h"

namespace assay {
namespace {

using nlohmann::json;

constexpr const char* kModel = "engine/models/tiny-gemma4-moe-q4_0.gguf";
constexpr double kGoalMs = 2.0;
constexpr int kContext = 1 << 20;

const Tokenizer& tokenizer() {
  static const Tokenizer t = Tokenizer::load(GgufFile::open(kModel));
  return t;
}

ModelInfo model_info() {
  ModelInfo info;
  info.vocabulary = tokenizer().vocab_size();
  info.context = kContext;
  info.width = 8;
  return info;
}

// A conversation of `turns` questions with their answers, the last one open, as a client sends it.
std::string body(int turns) {
  json messages = json::array({{{"role", "system"}, {"content", "You answer in one sentence."}}});
  for (int i = 0; i < turns; ++i) {
    const std::string n = std::to_string(i);
    messages.push_back(
        {{"role", "user"},
         {"content", "Question " + n + ": how does SQLite's VACUUM rebuild a database file?"}});
    messages.push_back(
        {{"role", "assistant"},
         {"content", "Answer " + n + ": it copies every page into a new file and swaps the two."}});
  }
  messages.push_back({{"role", "user"}, {"content", "And what does it cost?"}});
  return json{{"messages", std::move(messages)}, {"max_tokens", 8}}.dump();
}

// Real rendering and tokens, scripted reply.
class Backend : public FakeBackend {
 public:
  Backend() : FakeBackend(kContext) {}
  std::unique_ptr<PreparedTurn> prepare(TurnRequest request, TurnError& error) override {
    if (!keep_turns) prompts_ = PromptCache(tokenizer());
    const auto ids = prompts_.encode(*request.chat);
    auto turn = FakeBackend::prepare(std::move(request), error);
    if (turn) turn->prompt_tokens = static_cast<int>(ids.size());
    return turn;
  }
  bool keep_turns = true;  // between requests, as the daemon does

 private:
  PromptCache prompts_{tokenizer()};
};

// Milliseconds from the whole body to the first delta's bytes.
double first_frame_ms(Service& service, const std::string& request) {
  std::mutex mutex;
  std::condition_variable changed;
  bool woken = false;
  const auto exchange = std::make_shared<Exchange>([&] {
    const std::lock_guard lock(mutex);
    woken = true;
    changed.notify_one();
  });
  const auto started = std::chrono::steady_clock::now();
  HttpCall call;
  call.method = "POST";
  call.path = "/v1/chat";
  call.body = request;
  service.handle(std::move(call), exchange);
  double found = -1.0;
  for (bool finished = false; !finished;) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return woken; });
      woken = false;
    }
    Exchange::Taken taken = exchange->take();
    finished = taken.finished;
    for (const SharedText& frame : taken.frames) {
      exchange->written(frame->size());
      if (found < 0.0 && frame->find("event: delta") != std::string::npos) {
        found =
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started)
                .count();
      }
    }
  }
  return found;
}

std::map<std::int64_t, double> median_ms;  // of the last run of every warm case, by turns

void first_frame(benchmark::State& state) {
  Backend backend;
  backend.keep_turns = state.range(1) != 0;
  Service service(backend, {});
  const std::string request = body(static_cast<int>(state.range(0)));
  first_frame_ms(service, request);
  std::vector<double> samples;
  for (auto _ : state) {
    const double ms = first_frame_ms(service, request);
    if (ms < 0.0) {
      state.SkipWithError("the stream had no delta");
      break;
    }
    state.SetIterationTime(ms / 1000.0);
    samples.push_back(ms);
  }
  if (backend.keep_turns && !samples.empty()) {
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    median_ms[state.range(0)] = *middle;
  }
  state.counters["body_bytes"] = static_cast<double>(request.size());
}
BENCHMARK(first_frame)
    ->ArgNames({"turns", "kept"})
    ->ArgsProduct({{0, 16, 64, 256}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

void decode(benchmark::State& state) {
  const std::string request = body(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    DecodedTurn out;
    if (decode_turn(request, TurnRoute::kChat, model_info(), out)) state.SkipWithError("refused");
    benchmark::DoNotOptimize(out);
  }
}
BENCHMARK(decode)->ArgName("turns")->Arg(0)->Arg(64)->Unit(benchmark::kMillisecond);

// The rendered-history cache: cold is linear in the history, kept is what the last turn costs.
void render_and_tokenise(benchmark::State& state) {
  DecodedTurn out;
  decode_turn(body(static_cast<int>(state.range(0))), TurnRoute::kChat, model_info(), out);
  const auto want = encode_chat(tokenizer(), *out.request.chat);
  PromptCache kept(tokenizer());
  for (auto _ : state) {
    if (state.range(1) == 0) kept = PromptCache(tokenizer());
    const auto ids = kept.encode(*out.request.chat);
    if (ids != want) state.SkipWithError("the prompt depends on the cache");
  }
  state.counters["tokens"] = static_cast<double>(want.size());
}
BENCHMARK(render_and_tokenise)
    ->ArgNames({"turns", "kept"})
    ->ArgsProduct({{0, 64, 256}, {0, 1}})
    ->Unit(benchmark::kMillisecond);

void frame(benchmark::State& state) {
  const auto encoder = make_encoder({.id = "turn", .model = "m"});
  const TurnDelta delta{.text = " token", .ids = {4711}};
  for (auto _ : state) benchmark::DoNotOptimize(encoder->delta(delta));
}
BENCHMARK(frame)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  assay::init_log("error");  // a line a turn would be half of what is measured
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  bool good = true;
  for (const auto& [turns, ms] : assay::median_ms) {
    good = good && ms <= assay::kGoalMs;
    std::printf("first frame after %d turns: median %.3f ms, the goal is %.0f ms\n",
                static_cast<int>(turns),
                ms,
                assay::kGoalMs);
  }
  return good ? 0 : 1;
}
