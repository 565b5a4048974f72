#include "bench/peer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace assay {
namespace {

using nlohmann::json;

json test_of(int prompt, int gen, int depth, double rate) {
  return {{"build_commit", "b1234abc"},
          {"build_number", 5678},
          {"cpu_info", "a CPU"},
          {"gpu_info", ""},
          {"n_threads", 2},
          {"n_gpu_layers", 99},
          {"model_size", 1000},
          {"n_prompt", prompt},
          {"n_gen", gen},
          {"n_depth", depth},
          {"avg_ts", rate},
          {"samples_ts", {rate - 1.0, rate + 1.0}},
          {"a_key_of_next_year", true}};
}

TEST(Peer, FindsATestByItsShape) {
  const json tests = {test_of(512, 0, 0, 300.0),
                      test_of(0, 128, 0, 80.0),
                      test_of(0, 128, 1024, 70.0),
                      test_of(512, 128, 0, 99.0)};
  const PeerRun run = parse_llama_bench(tests.dump(), "peer.json");
  EXPECT_EQ(run.version, "b1234abc (5678)");
  EXPECT_EQ(run.device, "a CPU");
  EXPECT_EQ(run.model_bytes, 1000u);
  ASSERT_EQ(run.rates.size(), 3u);  // a mixed test has no counterpart
  ASSERT_NE(run.find(true, 512, 0), nullptr);
  EXPECT_EQ(run.find(true, 512, 0)->tokens_per_s, 300.0);
  EXPECT_EQ(run.find(false, 128, 1024)->samples, (std::vector<double>{69.0, 71.0}));
  EXPECT_EQ(run.find(false, 512, 0), nullptr);
  EXPECT_EQ(run.find(true, 512, 1), nullptr);
}

TEST(Peer, AFaultIsNamedByFileTestAndKey) {
  const auto message = [](const json& tests) -> std::string {
    try {
      parse_llama_bench(tests.dump(), "peer.json");
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  const auto altered = [](const char* key, json value) {
    json second = test_of(0, 128, 0, 80.0);
    if (value.is_discarded()) {
      second.erase(key);
    } else {
      second[key] = std::move(value);
    }
    return json::array({test_of(512, 0, 0, 300.0), second});
  };
  EXPECT_EQ(message(json::array({test_of(512, 0, 0, 300.0)})), "");
  const json missing(json::value_t::discarded);
  const struct {
    const char* key;
    json value;
    const char* why;
  } cases[] = {{"avg_ts", missing, "missing"},
               {"avg_ts", 0.0, "not a rate above 0"},
               {"avg_ts", "fast", "not a rate above 0"},
               {"n_gen", -1, "not a whole number"},
               {"n_gen", 0, "neither a prompt nor"},
               {"n_depth", 1.5, "not a whole number"},
               {"build_commit", 7, "not a text"},
               {"build_commit", "other", "another build"},
               {"model_size", 1001, "another model"},
               {"n_threads", 4, "another thread count"},
               {"cpu_info", "another CPU", "another device"},
               {"samples_ts", {1.0, -1.0}, "not a rate above 0"}};
  for (const auto& c : cases) {
    const std::string m = message(altered(c.key, c.value));
    EXPECT_NE(m.find("peer.json: test 1: "), std::string::npos) << c.key << ": " << m;
    EXPECT_NE(m.find(c.why), std::string::npos) << c.key << ": " << m;
  }
  EXPECT_THROW(parse_llama_bench("[{]", "peer.json"), InputError);
  EXPECT_THROW(parse_llama_bench("{}", "peer.json"), InputError);
  EXPECT_THROW(parse_llama_bench("[]", "peer.json"), InputError);
  EXPECT_THROW(parse_llama_bench("[7]", "peer.json"), InputError);
}

}  // namespace
}  // namespace assay
