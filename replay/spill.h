// An array of 32-bit numbers that lives in memory while it is small and in an unlinked temporary file when it is not, so that
// a replay's memory does not grow with the trace.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <vector>

namespace assay::replay {

class Spill {
 public:
  // `entries` numbers, undefined until written. Arrays above `memory_entries` go to the file.
  explicit Spill(std::uint64_t entries, std::uint64_t memory_entries = kDefaultMemoryEntries);
  std::uint64_t size() const { return entries_; }
  // Grows by the given numbers (a file of known final size is not needed).
  void append(std::span<const std::uint32_t> values);
  void write(std::uint64_t at, std::span<const std::uint32_t> values);
  void read(std::uint64_t at, std::span<std::uint32_t> values) const;

 private:
  static constexpr std::uint64_t kDefaultMemoryEntries = std::uint64_t{1} << 25;  // 128 MiB
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  void move_to_file();

  std::uint64_t entries_;
  std::uint64_t memory_entries_;
  std::vector<std::uint32_t> memory_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace assay::replay
