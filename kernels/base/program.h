// The frame every program runs in: exit codes, one-screen help, the build line, JSON on stdout, progress on stderr.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace assay {

// Runs body and turns exceptions into documented exit codes with one message on stderr: assay::Error -> its code,
// HelpShown -> 0, std::bad_alloc and anything else -> 1. Sets up logging first and
// refuses unknown ASSAY_* variables, so that a typo cannot measure stock against stock.
int run_program(const char* name,
                int argc,
                char** argv,
                const std::function<int(int, char**)>& body);

// Writes one JSON document (already serialised) to stdout for "-", else to the file. Empty path: nothing.
void write_json(const std::string& path, const std::string& document);
// Reads a whole file. InputError naming the path and the reason: missing, a directory, unreadable, over max_bytes.
std::string read_file(const std::string& path, std::size_t max_bytes = std::size_t{1} << 30);
// An OutputFile (output_file.h) with this content.
void write_file_atomic(const std::string& path, std::string_view content);

// A bar on stderr when it is a terminal; silent otherwise. Redraws at most ten times a second.
class Progress {
 public:
  Progress(std::string label, std::uint64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(std::uint64_t done);

 private:
  std::string label_;
  std::uint64_t total_;
  std::int64_t started_ms_;
  std::int64_t drawn_ms_ = 0;
  bool terminal_;
};

}  // namespace assay
