#include "bench/peer.h"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace assay {
namespace {

using nlohmann::json;

// One test's fields; every complaint names the file, the test's place in the list and the key.
class Test {
 public:
  Test(const json& test, std::size_t index, const std::string& path)
      : test_(test), where_(path + ": test " + std::to_string(index) + ": ") {
    if (!test.is_object()) throw InputError(where_ + "not an object");
  }
  std::string text(const char* key) const {
    const json& value = get(key);
    if (!value.is_string()) refuse(key, "not a text");
    return value;
  }
  std::uint64_t count(const char* key, std::uint64_t most) const {
    const json& value = get(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most)
      refuse(key, "not a whole number of 0 to " + std::to_string(most));
    return value;
  }
  bool has(const char* key) const { return test_.contains(key); }
  double rate(const char* key) const { return positive(get(key), key); }
  std::vector<double> rates(const char* key) const {
    const json& value = get(key);
    if (!value.is_array()) refuse(key, "not a list");
    std::vector<double> out;
    for (const json& v : value) out.push_back(positive(v, key));
    return out;
  }
  [[noreturn]] void refuse(const char* key, const std::string& why) const {
    throw InputError(where_ + key + ": " + why);
  }

 private:
  const json& get(const char* key) const {
    const auto it = test_.find(key);
    if (it == test_.end()) refuse(key, "missing");
    return *it;
  }
  double positive(const json& value, const char* key) const {
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0.0)
      refuse(key, "not a rate above 0");
    return value;
  }

  const json& test_;
  std::string where_;
};

}  // namespace

const PeerRate* PeerRun::find(bool prefill, int tokens, int depth) const {
  for (const auto& r : rates) {
    if (r.prefill == prefill && r.tokens == tokens && r.depth == depth) return &r;
  }
  return nullptr;
}

PeerRun parse_llama_bench(std::string_view text, const std::string& path) {
  constexpr std::uint64_t kMostTokens = std::numeric_limits<int>::max();
  json tests;
  try {
    tests = json::parse(text);
  } catch (const json::parse_error& e) {
    throw InputError(path + ": byte " + std::to_string(e.byte > 0 ? e.byte - 1 : 0) +
                     ": not JSON (llama-bench -o json writes it)");
  } catch (const json::out_of_range&) {
    throw InputError(path + ": a number is out of range");
  }
  if (!tests.is_array() || tests.empty())
    throw InputError(path + ": not the list of tests that llama-bench -o json writes");
  PeerRun run;
  run.name = "llama.cpp";
  for (std::size_t i = 0; i < tests.size(); ++i) {
    const Test t(tests[i], i, path);
    const std::string version =
        t.text("build_commit") + " (" + std::to_string(t.count("build_number", kMostTokens)) + ")";
    const std::uint64_t bytes =
        t.count("model_size", std::numeric_limits<std::uint64_t>::max() / 2);
    const int threads = static_cast<int>(t.count("n_threads", 65536));
    const bool on_gpu = t.has("gpu_info") && !t.text("gpu_info").empty() && t.has("n_gpu_layers") &&
                        tests[i]["n_gpu_layers"] != 0;
    const std::string device = t.text(on_gpu ? "gpu_info" : "cpu_info");
    if (i == 0) {
      run.version = version;
      run.model_bytes = bytes;
      run.threads = threads;
      run.device = device;
    }
    // One file, one build, one setting: else a row of the record would not say what it was measured against.
    if (version != run.version) t.refuse("build_commit", "another build than test 0");
    if (bytes != run.model_bytes) t.refuse("model_size", "another model than test 0");
    if (threads != run.threads) t.refuse("n_threads", "another thread count than test 0");
    if (device != run.device) t.refuse("gpu_info", "another device than test 0");
    PeerRate rate;
    const int prompt = static_cast<int>(t.count("n_prompt", kMostTokens));
    const int gen = static_cast<int>(t.count("n_gen", kMostTokens));
    if (prompt > 0 && gen > 0) continue;
    if (prompt == 0 && gen == 0) t.refuse("n_prompt", "neither a prompt nor generated tokens");
    rate.prefill = prompt > 0;
    rate.tokens = prompt + gen;
    rate.depth = t.has("n_depth") ? static_cast<int>(t.count("n_depth", kMostTokens)) : 0;
    rate.tokens_per_s = t.rate("avg_ts");
    if (t.has("samples_ts")) rate.samples = t.rates("samples_ts");
    run.rates.push_back(std::move(rate));
  }
  return run;
}

}  // namespace assay
