// GGUF container reader (v2 and v3) for files from strangers: everything is checked at open, before anything is allocated
// for it, and tensor data is read with pread into the caller's memory. Never mmap: a file that is cut short while it is
// in use is then an InputError at the next read and not a SIGBUS.
//
// Every refusal is an InputError (exit 3) that names the file, the key or tensor, and the byte offset.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/base/blocks.h"

namespace assay {

// Value types of the container's metadata; the numbers are the file's.
enum class MetaType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
const char* to_string(MetaType type);

// One tensor's record. Row-major [ne[2]][ne[1]][ne[0]]: ne[0] runs fastest and is the row length.
struct TensorInfo {
  std::string name;
  BlockType type = BlockType::kF32;
  int dims = 0;                                   // 1..4, as written in the file
  std::array<std::int64_t, 4> ne = {1, 1, 1, 1};  // unused dimensions are 1
  std::uint64_t offset = 0;                       // of the first byte, from the start of the file
  std::uint64_t bytes = 0;                        // exact, without padding

  std::int64_t rows() const { return ne[1] * ne[2] * ne[3]; }
  std::int64_t elements() const { return ne[0] * rows(); }
};

// Strings of one metadata array, stored end to end: 500,000 merges are two allocations.
class StringList {
 public:
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text_).substr(begin, ends_[i] - begin);
  }

 private:
  friend class GgufFile;
  std::string text_;
  std::vector<std::uint32_t> ends_;
};

class GgufFile {
 public:
  // Limits of what this reader accepts; far above every real file, far below what could hurt.
  static constexpr std::uint64_t kMaxKeys = 1024;
  static constexpr std::uint64_t kMaxTensors = 65536;
  static constexpr std::uint64_t kMaxKeyBytes = 65536;
  static constexpr std::uint64_t kMaxNameBytes = 63;
  static constexpr std::uint64_t kMaxStringBytes = std::uint64_t{1} << 24;
  static constexpr std::uint64_t kMaxArrayElements = std::uint64_t{1} << 24;
  static constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{1} << 28;

  // Reads and checks header, metadata and tensor records: spec 8, points 1 to 5 and 8. Memory: the metadata, about as
  // large as in the file. Tensors are contiguous in file order (no gap, no overlap) and end inside the file.
  static GgufFile open(const std::string& path);
  ~GgufFile();
  GgufFile(GgufFile&& other) noexcept;
  GgufFile& operator=(GgufFile&& other) noexcept;
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint32_t version() const { return version_; }
  std::uint64_t file_bytes() const { return file_bytes_; }
  std::uint64_t alignment() const { return alignment_; }
  std::uint64_t data_offset() const { return data_offset_; }

  // ---- tensors ----
  std::span<const TensorInfo> tensors() const { return tensors_; }
  // Null when absent.
  const TensorInfo* find_tensor(std::string_view name) const;
  // InputError when absent.
  const TensorInfo& tensor(std::string_view name) const;
  // Reads the tensor's bytes into `into`. Thread-safe. into.size() must be tensor.bytes (assert), or, with `from`, at
  // most tensor.bytes - from: one expert, one row. InputError when the file has become shorter or cannot be read.
  void read_tensor(const TensorInfo& tensor, std::span<std::byte> into) const;
  void read_tensor(const TensorInfo& tensor, std::uint64_t from, std::span<std::byte> into) const;
  // The same, and refuses NaN and infinity among the values or block scales just read (find_nonfinite below).
  void read_finite_tensor(const TensorInfo& tensor, std::span<std::byte> into) const;
  // A whole F32 tensor, checked finite. InputError when the type is another one.
  std::vector<float> read_f32(const TensorInfo& tensor) const;

  // ---- metadata ----
  // The plain forms refuse a missing key; find_* answer nothing. Both refuse a value of another kind.
  bool has(std::string_view key) const;
  std::vector<std::string_view> keys() const;  // file order
  // Any integer width and sign that fits int64; bool counts as 0 or 1.
  std::int64_t integer(std::string_view key) const;
  std::optional<std::int64_t> find_integer(std::string_view key) const;
  // f32 or f64, finite.
  double number(std::string_view key) const;
  std::optional<double> find_number(std::string_view key) const;
  bool boolean(std::string_view key) const;
  std::optional<bool> find_boolean(std::string_view key) const;
  std::string_view text(std::string_view key) const;
  std::optional<std::string_view> find_text(std::string_view key) const;
  // Arrays. `is_array` and `is_bool` (element type for arrays) tell a scalar setting from a per-layer one.
  bool is_array(std::string_view key) const;
  bool is_bool(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;
  const StringList& strings(std::string_view key) const;

  // Throws the InputError "<path>: key '<key>' (at byte N): <why>"; the end of the metadata when the key is absent.
  [[noreturn]] void refuse_key(std::string_view key, const std::string& why) const;
  // "<path>: tensor '<name>' (data at byte N): <why>"; `at` adds to the offset.
  [[noreturn]] void refuse_tensor(const TensorInfo& tensor,
                                  const std::string& why,
                                  std::uint64_t at = 0) const;

 private:
  struct Value {
    std::string key;
    MetaType type = MetaType::kU8;  // of the value, or of an array's elements
    bool array = false;
    std::uint64_t offset = 0;  // of the value in the file
    std::uint64_t count = 1;
    std::string raw;  // numbers: little-endian, as in the file; a string: its bytes
    StringList strings;
  };
  class Parser;
  GgufFile() = default;
  const Value* find(std::string_view key) const;
  const Value& need(std::string_view key) const;
  const Value& need_scalar(std::string_view key) const;
  std::int64_t integer_at(const Value& value, std::uint64_t index) const;
  double number_at(const Value& value, std::uint64_t index) const;
  void read_at(const TensorInfo& tensor, std::uint64_t from, std::span<std::byte> into) const;

  std::string path_;
  int fd_ = -1;
  std::uint32_t version_ = 0;
  std::uint64_t file_bytes_ = 0;
  std::uint64_t alignment_ = 32;
  std::uint64_t data_offset_ = 0;
  std::uint64_t records_offset_ = 0;  // end of the metadata
  std::vector<Value> values_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::size_t> value_index_;   // views into values_
  std::unordered_map<std::string_view, std::size_t> tensor_index_;  // views into tensors_
};

// The index of the first block whose scale (or minimum) is NaN or infinite; for F32, F16 and BF16 of the first such
// element. A few GB/s a core. bytes.size(): a multiple of block_bytes(type).
std::optional<std::uint64_t> find_nonfinite(BlockType type, std::span<const std::byte> bytes);

// Throws refuse_tensor naming block (or element) and byte offset when `bytes`, which start `from` bytes into the tensor
// (a whole number of blocks), hold a NaN or an infinity. A loader calls this on everything it reads.
void check_finite(const GgufFile& file,
                  const TensorInfo& tensor,
                  std::span<const std::byte> bytes,
                  std::uint64_t from = 0);

}  // namespace assay
