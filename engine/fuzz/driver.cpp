// Runs a fuzz target (LLVMFuzzerTestOneInput) without libFuzzer: seeded mutations of the seed files, no coverage
// feedback, any compiler. Execution i depends on the seeds, --rng-seed and i only, so a finding is repeated by
// --first i --runs 1. The input of a crash is written to the folder of --artifacts before the process dies.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "kernels/base/rng.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern const char* const fuzz_seeds;  // the target's folder of seeds (cmake/AssayOp.cmake)

namespace assay {
namespace {

constexpr std::size_t kMaxInput = std::size_t{1} << 16;
constexpr int kHangSeconds = 10;  // wall clock, so generous: the machine may be busy

// State for the signal handler.
std::string current;
std::uint64_t current_index = 0;
std::string artifact_path;

// Async-signal-safe: open, write, re-raise.
void on_signal(int signal) {
  const int fd = ::open(artifact_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0) {
    [[maybe_unused]] const ssize_t n = ::write(fd, current.data(), current.size());
    ::close(fd);
  }
  static char text[] = "finding at execution                     \n";
  std::uint64_t v = current_index;
  for (std::size_t at = 40; at >= 21; --at, v /= 10) {
    text[at] = static_cast<char>('0' + v % 10);
    if (v < 10) break;
  }
  [[maybe_unused]] const ssize_t n = ::write(2, text, sizeof text - 1);
  if (signal == SIGALRM) {
    static const char hang[] = "a hang\n";
    [[maybe_unused]] const ssize_t m = ::write(2, hang, sizeof hang - 1);
    ::_exit(1);
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& seeds) : seeds_(seeds) {}

  std::string make(Rng rng) const {
    std::string s = seeds_[rng.below(seeds_.size())];
    for (std::uint64_t n = 1 + rng.below(6); n > 0; --n) change(rng, s);
    if (s.size() > kMaxInput) s.resize(kMaxInput);
    return s;
  }

 private:
  void change(Rng& rng, std::string& s) const {
    const auto position = [&] { return rng.below(s.size() + 1); };
    if (s.empty()) {
      s += static_cast<char>(rng.below(256));
      return;
    }
    const std::uint64_t at = rng.below(s.size());
    switch (rng.below(10)) {
      case 0:
        s[at] = static_cast<char>(s[at] ^ (1 << rng.below(8)));
        return;
      case 1:
        s[at] = static_cast<char>(rng.below(256));
        return;
      case 2: {  // a number that is interesting in 1, 2, 4 or 8 bytes
        static constexpr std::uint64_t kNumbers[] = {0,
                                                     1,
                                                     2,
                                                     3,
                                                     4,
                                                     7,
                                                     8,
                                                     9,
                                                     12,
                                                     13,
                                                     16,
                                                     31,
                                                     32,
                                                     64,
                                                     127,
                                                     128,
                                                     255,
                                                     256,
                                                     1023,
                                                     4096,
                                                     32767,
                                                     65535,
                                                     65536,
                                                     0x7FFFFFFF,
                                                     0x80000000,
                                                     0xFFFFFFFF,
                                                     0x7F800000,
                                                     0x7FC00000,
                                                     0x7FFFFFFFFFFFFFFF,
                                                     0x8000000000000000,
                                                     0xFFFFFFFFFFFFFFFF,
                                                     std::uint64_t{1} << 61};
        const std::uint64_t value = kNumbers[rng.below(std::size(kNumbers))];
        std::memcpy(s.data() + at,
                    &value,
                    std::min<std::size_t>(std::size_t{1} << rng.below(4), s.size() - at));
        return;
      }
      case 3: {  // a small step of a 4-byte number
        if (s.size() - at < 4) return;
        std::uint32_t value = 0;
        std::memcpy(&value, s.data() + at, 4);
        value += static_cast<std::uint32_t>(rng.below(33)) - 16;
        std::memcpy(s.data() + at, &value, 4);
        return;
      }
      case 4:
        s.erase(at, 1 + rng.below(16));
        return;
      case 5: {
        std::string extra;
        for (std::uint64_t n = 1 + rng.below(16); n > 0; --n)
          extra += static_cast<char>(rng.below(256));
        s.insert(position(), extra);
        return;
      }
      case 6:  // a part of itself, elsewhere
        s.insert(position(), s.substr(at, 1 + rng.below(64)));
        return;
      case 7: {  // a part of another seed over it
        const std::string& other = seeds_[rng.below(seeds_.size())];
        if (other.empty()) return;
        const std::uint64_t from = rng.below(other.size());
        const std::string part = other.substr(from, 1 + rng.below(64));
        s.replace(at, part.size(), part);
        return;
      }
      case 8:
        if (rng.below(4) == 0) s.resize(at);
        return;
      default: {  // a word of the formats
        static constexpr std::string_view kWords[] = {"GGUF",
                                                      "<|turn>",
                                                      "<turn|>",
                                                      "<0x41>",
                                                      "\xE2\x96\x81",
                                                      " ",
                                                      "\n",
                                                      "\n\n",
                                                      "<|tool_call>",
                                                      "<|\"|>",
                                                      "\xF0\x9F\x98\x80",
                                                      "\xED\xA0\x80",
                                                      "<bos>"};
        s.insert(position(), kWords[rng.below(std::size(kWords))]);
      }
    }
  }
  const std::vector<std::string>& seeds_;
};

int run(int argc, char** argv) {
  std::uint64_t runs = 100000;
  std::uint64_t first = 0;
  std::uint64_t seed = 1;
  std::string artifacts = ".";
  std::string json_path;
  std::vector<std::string> inputs;
  const std::string name = std::filesystem::path(argv[0]).filename().string();
  CommandLine app("Seeded mutations of seed files through one fuzz target",
                  name,
                  (name + " --runs 1000000 --rng-seed 1"));
  app.add_option("INPUTS", inputs, "seed files or folders, default: the target's seeds in the tree")
      .type_name("PATH");
  app.add_option("--runs", runs, "executions; 0: the seeds only").type_name("N").show_default();
  app.add_option("--first", first, "index of the first execution").type_name("N");
  app.add_option("--rng-seed", seed, "seed of the mutations").type_name("N").show_default();
  app.add_option("--artifacts", artifacts, "folder for the input of a finding").type_name("DIR");
  app.add_option("--json", json_path, "write the outcome as JSON to a file, - is stdout")
      .type_name("PATH");
  app.parse(argc, argv);

  namespace fs = std::filesystem;
  if (inputs.empty()) inputs.emplace_back(fuzz_seeds);
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    if (fs::is_directory(input)) {
      for (const auto& e : fs::directory_iterator(input)) files.push_back(e.path().string());
    } else {
      files.push_back(input);
    }
  }
  std::sort(files.begin(), files.end());  // the stream must not depend on the directory's order
  std::vector<std::string> seeds;
  for (const std::string& file : files) seeds.push_back(read_file(file));
  if (seeds.empty()) throw UserError("no seed file in " + inputs[0]);

  fs::create_directories(artifacts);
  artifact_path = (fs::path(artifacts) / (name + ".finding")).string();
  for (const int s : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) ::signal(s, on_signal);

  const auto execute = [](std::uint64_t index, std::string input) {
    current = std::move(input);
    current_index = index;
    (void)LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(current.data()),
                                 current.size());
  };
  for (const std::string& s : seeds) execute(0, s);
  const Mutator mutator(seeds);
  Progress bar(name, runs);
  std::uint64_t slowest_us = 0;
  const auto started = std::chrono::steady_clock::now();
  auto before = started;
  for (std::uint64_t i = first; i < first + runs; ++i) {
    if (i % 256 == 0 || i == first) ::alarm(kHangSeconds);
    execute(i, mutator.make(Rng(seed ^ (i * 0x9E3779B97F4A7C15ULL))));
    const auto now = std::chrono::steady_clock::now();
    slowest_us = std::max<std::uint64_t>(
        slowest_us,
        static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::microseconds>(now - before).count()));
    before = now;
    if (i % 256 == 0) bar.update(i - first);
  }
  ::alarm(0);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  write_json(json_path,
             nlohmann::json{{"schema", "assay-fuzz"},
                            {"schema_version", 1},
                            {"target", name},
                            {"seeds", seeds.size()},
                            {"rng_seed", seed},
                            {"runs", runs},
                            {"findings", 0},
                            {"slowest_us", slowest_us},
                            {"seconds", seconds}}
                 .dump());
  if (json_path != "-") {
    std::cout << name << ": " << seeds.size() << " seeds, " << runs
              << " executions, nothing found, slowest " << slowest_us << " us\n";
  }
  return 0;
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) { return assay::run_program("fuzz", argc, argv, assay::run); }
