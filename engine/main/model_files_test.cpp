// tokenize, detokenize, make-model and logits as a user runs them: output, exit codes, messages.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/measure.h"
#include "kernels/base/program.h"

namespace {

const std::string kModel = std::string(ASSAY_SOURCE_DIR "/engine/models/tiny-gemma4-moe-q4_0.gguf");

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

class ModelFiles : public testing::Test {
 protected:
  ModelFiles()
      : folder_(std::filesystem::path(testing::TempDir()) /
                ("assay_model_files_" + std::to_string(::getpid()) + "_" +
                 testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directory(folder_);
  }
  ~ModelFiles() override { std::filesystem::remove_all(folder_); }

  Outcome run(const std::string& arguments) const {
    const std::string errors = (folder_ / "stderr").string();
    Outcome o;
    FILE* pipe =
        ::popen((std::string(ASSAY_PROGRAM) + " " + arguments + " 2> " + errors).c_str(), "r");
    char buffer[4096];
    for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
      o.out.append(buffer, n);
    o.code = WEXITSTATUS(::pclose(pipe));
    std::ifstream in(errors);
    o.err.assign(std::istreambuf_iterator<char>(in), {});
    return o;
  }
  // Largest resident set of a run, in bytes.
  static std::size_t peak_bytes_of(const std::string& switches, const std::string& arguments) {
    const std::string command =
        "exec env " + switches + ASSAY_PROGRAM + " " + arguments + " > /dev/null 2>&1";
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    int status = -1;
    struct rusage used {};
    EXPECT_EQ(::wait4(child, &status, 0, &used), child);
    EXPECT_EQ(status, 0) << arguments;
    return static_cast<std::size_t>(used.ru_maxrss) * 1024;
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  std::filesystem::path folder_;
};

TEST_F(ModelFiles, TokenizeAndDetokenizeGiveTextBack) {
  const Outcome ids = run("tokenize --model " + kModel + " --text 'Hello, world!' --no-bos");
  EXPECT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(ids.out, "3493,536,295,508,3289,284\n");
  EXPECT_EQ(run("detokenize --model " + kModel + " --ids 3493,536,295,508,3289,284").out,
            "Hello, world!\n");
}

TEST_F(ModelFiles, JsonOnStdoutIsOneDocument) {
  const auto ids =
      nlohmann::json::parse(run("tokenize --model " + kModel + " --text '<|turn>' --json -").out);
  EXPECT_EQ(ids.at("schema"), "assay-tokenize");
  EXPECT_EQ(ids.at("ids"), nlohmann::json::parse("[2, 5]"));
  const auto text =
      nlohmann::json::parse(run("detokenize --model " + kModel + " --ids 268 --json -").out);
  EXPECT_EQ(text.at("text"), "\xEF\xBF\xBD") << "half a character";
}

TEST_F(ModelFiles, SpecialModesDiffer) {
  const std::string start =
      "tokenize --no-bos --model " + kModel + " --text '<|turn><|\"|>' --special ";
  EXPECT_EQ(run(start + "all").out, "5,16\n");
  EXPECT_NE(run(start + "user-defined").out, run(start + "all").out);
  EXPECT_NE(run(start + "none").out, run(start + "user-defined").out);
}

TEST_F(ModelFiles, BadUseEndsWithTwoAndSaysWhatIsValid) {
  for (const auto& [arguments, part] :
       {std::pair<std::string, std::string>{"tokenize --model " + kModel, "--text"},
        {"tokenize --model " + kModel + " --text x --special some", "user-defined"},
        {"tokenize --text x", "--model"},
        {"tokenize --model " + kModel + " --text x --nonsense", "nonsense"},
        {"detokenize --model " + kModel + " --ids 1,two", "--ids: 'two' is not a token id"},
        {"detokenize --model " + kModel + " --ids ,", "--ids: nothing given"},
        {"detokenize --model " + kModel + " --ids 99999999999", "'99999999999' is not"},
        {"make-model --preset huge --out " + file("x"), "26b-a4b"},
        {"make-model --preset spec --type q3_k --out " + file("x"), "q4_k_m"},
        {"make-model --preset spec --threads 0 --out " + file("x"), "--threads 0"}}) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, 2) << arguments << ": " << o.err;
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
    EXPECT_EQ(o.out, "");
  }
}

TEST_F(ModelFiles, BadFilesEndWithThreeAndNameFileAndByte) {
  const std::string whole = file("whole.gguf");
  ASSERT_EQ(run("make-model --preset spec --out " + whole).code, 0);
  std::filesystem::resize_file(whole, 5000);
  std::ofstream(file("text.gguf")) << "not a model";
  for (const std::string& path : {whole,
                                  file("text.gguf"),
                                  file("missing.gguf"),
                                  folder_.string(),
                                  std::string("/dev/null")}) {
    const Outcome o = run("tokenize --text x --model " + path);
    EXPECT_EQ(o.code, 3) << path;
    EXPECT_NE(o.err.find(path), std::string::npos) << o.err;
  }
  EXPECT_NE(run("tokenize --text x --model " + whole).err.find("at byte"), std::string::npos);
  EXPECT_EQ(run("detokenize --model " + kModel + " --ids 4096").code, 3);
}

TEST_F(ModelFiles, MakeModelWritesTheSameFileAgain) {
  const auto first = nlohmann::json::parse(
      run("make-model --preset spec --type q6_k --rng-seed 3 --threads 1 --json - --out " +
          file("a"))
          .out);
  EXPECT_EQ(first.at("bytes"), std::filesystem::file_size(file("a")));
  EXPECT_EQ(
      run("make-model --preset spec --type q6_k --rng-seed 3 --threads 3 --out " + file("b")).code,
      0);
  EXPECT_EQ(std::system(("cmp " + file("a") + " " + file("b")).c_str()), 0);
  EXPECT_EQ(run("tokenize --model " + file("a") + " --text 'the end'").code, 0);
  EXPECT_EQ(run("make-model --preset spec --out /nonexistent/x").code, 1);
}

TEST_F(ModelFiles, RouteFromExactBringsTheLanesTogether) {
  const auto logits = [&](const std::string& flags) {
    const std::string raw = file("raw");
    const Outcome o =
        run("logits --model " + kModel + " --ids-file " + file("ids") + " --raw " + raw + flags);
    EXPECT_EQ(o.code, 0) << o.err;
    const std::string bytes = assay::read_file(raw);
    std::vector<float> rows(bytes.size() / sizeof(float));
    std::memcpy(rows.data(), bytes.data(), rows.size() * sizeof(float));
    return rows;
  };
  // Long enough for some expert to be chosen otherwise.
  std::ofstream(file("ids")) << run("tokenize --model " + kModel + " --text \"$(head -c 300 " +
                                    ASSAY_SOURCE_DIR + "/engine/testdata/heldout.txt)\"")
                                    .out;
  const auto exact = logits(" --numerics exact");
  const std::vector<double> want(exact.begin(), exact.end());
  const double free = assay::rel_l2(logits(""), want);
  const double routed = assay::rel_l2(logits(" --route-from exact"), want);
  EXPECT_GT(routed, 1e-4) << "the fast lane is the default";
  EXPECT_LT(routed, 0.012);
  EXPECT_GT(free, 1.5 * routed);
  EXPECT_EQ(run("logits --model " + kModel + " --ids 2 --route-from fast").code, 2);
}

TEST_F(ModelFiles, GenerateNeedsTheFileTheCacheAndSixtyFourMebibytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow memory counts as resident";
#endif
  constexpr std::size_t kAllowance = std::size_t{64} << 20;
  // Floats make a file of 100 MB, so that a second copy of the weights would show.
  const std::string large = file("large.gguf");
  ASSERT_EQ(run("make-model --preset tiny --type f32 --out " + large).code, 0);
  ASSERT_GT(std::filesystem::file_size(large), kAllowance);
  for (const auto& [model, switches] :
       {std::pair{large, ""},
        {kModel, ""},
        {kModel, "ASSAY_GEMV_QUANT=avx2 ASSAY_EXPERTS_HOST=avx2 "}}) {
    const auto bench = nlohmann::json::parse(
        run("bench-model --ctx 4096 --prompt-tokens 0 --gen-tokens 1 --repeat 1 --json - --model " +
            model)
            .out);
    const auto cache = bench.at("cache_bytes").get<std::size_t>();
    EXPECT_LE(
        peak_bytes_of(switches, "generate --ctx 4096 --greedy --n 4 --prompt The --model " + model),
        std::filesystem::file_size(model) + cache + kAllowance)
        << model << " " << switches;
  }
}

}  // namespace
