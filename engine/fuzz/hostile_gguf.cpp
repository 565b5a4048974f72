// hostile_gguf: thousands of malformed model files through the loader. Each must be refused as input, quickly, with a
// message that names what and where; a crash or a hang is found by the system.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/fuzz/malformed_gguf.h"
#include "engine/make_model.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

constexpr double kSlowSeconds = 1.0;
constexpr std::uint64_t kExtraBytes = std::uint64_t{64} << 20;
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMemoryIsMeaningful = false;  // shadow memory and quarantine
#else
constexpr bool kMemoryIsMeaningful = true;
#endif

double cpu_seconds() {
  struct rusage r {};
  ::getrusage(RUSAGE_SELF, &r);
  return static_cast<double>(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}
std::uint64_t peak_bytes() {
  struct rusage r {};
  ::getrusage(RUSAGE_SELF, &r);
  return static_cast<std::uint64_t>(r.ru_maxrss) * 1024;
}

int run(int argc, char** argv) {
  std::uint64_t count = 10000;
  std::uint64_t first = 0;
  std::uint64_t seed = 1;
  std::string keep;
  std::string json_path;
  CommandLine app("Malformed model files through the loader; every one must be refused",
                  "hostile_gguf",
                  "hostile_gguf --count 10000 --rng-seed 1 --json -");
  app.add_option("--count", count, "files").type_name("N").show_default();
  app.add_option("--first", first, "index of the first file; with --count 1 repeats one")
      .type_name("N");
  app.add_option("--rng-seed", seed, "seed of the stream").type_name("N").show_default();
  app.add_option("--keep", keep, "folder for the files that were not refused as they must be")
      .type_name("DIR");
  app.add_option("--json", json_path, "write the outcome as JSON to a file, - is stdout")
      .type_name("PATH");
  app.parse(argc, argv);
  if (count == 0) throw UserError("--count 0: nothing would be checked");

  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("assay_hostile_" + std::to_string(::getpid()));
  fs::create_directory(folder);
  struct Remove {
    fs::path folder;
    ~Remove() {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
    }
  } const cleanup{folder};
  const std::string path = (folder / "model.gguf").string();

  make_model({.preset = "spec", .type = "q4_0"}, path, 1);
  const MalformedGguf stream(take_apart(path), seed);
  if (const std::string refusal = load_everything(path); !refusal.empty()) {
    throw CheckError("the sound file is refused: " + refusal);
  }
  const std::uint64_t baseline = peak_bytes();

  Progress bar("malformed files", count);
  std::vector<double> seconds;
  std::uint64_t faults = 0;
  std::uint64_t largest = 0;
  nlohmann::json examples = nlohmann::json::array();
  const auto fault = [&](std::uint64_t index, const MalformedFile& file, const std::string& what) {
    ++faults;
    std::cerr << "file " << index << " (" << file.change << "): " << what << '\n';
    if (examples.size() < 20)
      examples.push_back({{"index", index}, {"change", file.change}, {"fault", what}});
    if (!keep.empty()) {
      fs::create_directories(keep);
      std::ofstream(fs::path(keep) / ("malformed_" + std::to_string(index) + ".gguf"),
                    std::ios::binary)
          << file.bytes;
    }
  };
  for (std::uint64_t i = first; i < first + count; ++i) {
    const MalformedFile file = stream.make(i);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << file.bytes;
    largest = std::max<std::uint64_t>(largest, file.bytes.size());
    const double start = cpu_seconds();
    const std::string refusal = load_everything(path, file.shrinks_to);
    seconds.push_back(cpu_seconds() - start);
    if (refusal.empty()) {
      fault(i, file, "accepted");
    } else if (!well_formed_refusal(refusal, path)) {
      fault(i, file, "the refusal does not say what and where: " + refusal);
    }
    if (seconds.back() > kSlowSeconds)
      fault(i, file, "took " + std::to_string(seconds.back()) + " s");
    bar.update(i - first + 1);
  }
  const std::uint64_t peak = peak_bytes();
  const bool too_large = kMemoryIsMeaningful && peak > baseline + largest + kExtraBytes;
  if (too_large) {
    std::cerr << "peak memory " << peak << " bytes, " << baseline << " before the first file\n";
  }
  std::sort(seconds.begin(), seconds.end());
  const double slowest = seconds.back();
  const double p99 = seconds[(seconds.size() - 1) * 99 / 100];
  write_json(json_path,
             nlohmann::json{{"schema", "assay-hostile-gguf"},
                            {"schema_version", 1},
                            {"rng_seed", seed},
                            {"files", count},
                            {"faults", faults},
                            {"slowest_cpu_s", slowest},
                            {"p99_cpu_s", p99},
                            {"peak_bytes", peak},
                            {"baseline_bytes", baseline},
                            {"memory_checked", kMemoryIsMeaningful},
                            {"examples", examples}}
                 .dump());
  if (json_path != "-") {
    std::cout << count << " malformed files, " << faults << " faults, slowest " << slowest
              << " s, p99 " << p99 << " s of CPU, peak memory " << (peak >> 20) << " MiB ("
              << (baseline >> 20) << " MiB at the start)\n";
  }
  return static_cast<int>(faults == 0 && !too_large ? Exit::kGood : Exit::kCheckFailed);
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  return assay::run_program("hostile_gguf", argc, argv, assay::run);
}
