// Outside engines' figures, read from their own output so that they enter a record beside ours.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

// One test of an outside engine: a prompt of `tokens` after `depth` cached tokens, or `tokens` generated one by one there.
struct PeerRate {
  bool prefill = false;
  int tokens = 0;
  int depth = 0;
  double tokens_per_s = 0.0;    // the engine's own mean
  std::vector<double> samples;  // tokens/s of each repetition, may be empty
};

struct PeerRun {
  std::string name;     // "llama.cpp"
  std::string version;  // "b1234abc (5678)"
  std::string device;   // the engine's own words for CPU or GPU
  int threads = 0;
  std::uint64_t model_bytes = 0;  // of the tensors that it loaded
  std::vector<PeerRate> rates;

  // The test of this shape; null when it was not run.
  const PeerRate* find(bool prefill, int tokens, int depth) const;
};

// The output of `llama-bench -o json`: a list of tests, each with build_commit, build_number, cpu_info, gpu_info, backends,
// n_threads, n_gpu_layers, model_size (bytes), n_prompt, n_gen, n_depth (absent in old builds: 0), avg_ts and samples_ts. Mixed tests
// (prompt and generation in one) have no counterpart here and are left out. InputError naming `path`, the test and the key.
PeerRun parse_llama_bench(std::string_view text, const std::string& path);

}  // namespace assay
