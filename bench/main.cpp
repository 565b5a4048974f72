// bench_<op>: single-arm sweeps with Google Benchmark, built once per op with its name in ASSAY_BENCH_OP. It answers "how
// does this scale"; "is it faster" is answered by `assay ab` alone.
#include <memory>
#include <string>

#include <benchmark/benchmark.h>

#include "bench/child.h"
#include "kernels/base/build_id.h"
#include "kernels/base/error.h"
#include "kernels/base/host_pool.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

void time_case(
    benchmark::State& state, const OpInfo& op, std::size_t case_index, int variant, int threads) {
  FreshProblem fresh(op, case_index);
  Problem& problem = fresh.problem();
  if (const Why why = problem.ineligible(variant, host_device())) {
    state.SkipWithError((std::string("not eligible: ") + why).c_str());
    return;
  }
  std::unique_ptr<HostPool> pool;
  if (threads > 1) pool = std::make_unique<HostPool>(threads);
  const Stream stream{nullptr, pool.get()};
  problem.prepare(variant);
  fresh.freshen(1);
  for (auto _ : state) {
    problem.run(variant, stream);
    benchmark::ClobberMemory();
  }
  const auto calls = static_cast<double>(state.iterations());
  state.counters["moved"] = benchmark::Counter(
      problem.bytes_moved() * calls, benchmark::Counter::kIsRate, benchmark::Counter::kIs1024);
  state.counters["flop"] = benchmark::Counter(problem.flops() * calls, benchmark::Counter::kIsRate);
  state.SetLabel(problem.shape_text());
}

int run(int argc, char** argv) {
  const OpInfo& op = find_op(ASSAY_BENCH_OP);
  for (std::size_t v = 0; v < op.variants.size(); ++v) {
    if (!op.variants[v].host_declared) continue;
    for (std::size_t c = 0; c < op.case_names.size(); ++c) {
      for (const int threads : {1, 2}) {
        const std::string name = op.name + "/" + op.variants[v].name + "/" + op.case_names[c] +
                                 "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(name.c_str(), [&op, c, v, threads](benchmark::State& state) {
          time_case(state, op, c, static_cast<int>(v), threads);
        })->UseRealTime();
      }
    }
  }
  benchmark::AddCustomContext("build", build_line());
  benchmark::Initialize(&argc, argv);
  if (argc > 1)
    throw UserError(std::string("unknown argument ") + argv[1] + " (--help lists what is valid)");
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  return assay::run_program("bench_" ASSAY_BENCH_OP, argc, argv, assay::run);
}
