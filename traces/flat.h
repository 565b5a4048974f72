// Flat access logs other cache simulators use: `.ids` (one decimal object id per line) and oracleGeneral (24-byte records:
// u32 time, u64 object + 1, u32 size, i64 index of the next access or -1).
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace assay {

enum class FlatKind : std::uint8_t { kIds, kOracleGeneral };

// Calls sink with the file's object ids in order, a window at a time. InputError naming the byte offset: empty file, a line
// that is not a decimal number below 2^32 - 1, a torn record, an object id of 0 or above 2^32 - 1 in oracleGeneral.
void read_flat(const std::string& path,
               FlatKind kind,
               const std::function<void(std::span<const std::uint32_t>)>& sink);

// Streams object ids into an `.ids` or oracleGeneral file. For oracleGeneral the next-access column is filled by the caller.
class FlatWriter {
 public:
  FlatWriter(const std::string& path, FlatKind kind);
  ~FlatWriter();
  FlatWriter(const FlatWriter&) = delete;
  FlatWriter& operator=(const FlatWriter&) = delete;
  // next: index of this object's next access, or -1; ignored for `.ids`. The time column is `time`.
  void append(std::uint32_t object, std::uint32_t time, std::int64_t next);
  // Flushes and closes; Error(1) when the disk is full.
  void close();

 private:
  void flush();
  std::string path_;
  std::string buffer_;
  FlatKind kind_;
  int fd_;
};

}  // namespace assay
