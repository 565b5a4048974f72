// MOETRC1 (`.mrt`): which experts every layer's router chose, one fixed-size record a step. docs/replay.md has the layout.
//
// The reader streams through a window it fills with pread, not through a memory map: a file that another process
// truncates is then an InputError with the byte offset instead of a SIGBUS.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

enum class WeightKind : std::uint8_t { kNone = 0, kF16 = 1, kF32 = 2 };
enum class Phase : std::uint8_t { kPrefill = 0, kDecode = 1 };
enum class Split : std::uint32_t { kTrain = 0, kHeldOut = 1 };
const char* to_string(Split split);  // "train", "held-out"

// What one trace is about. Two traces are replayed together only when layers, experts and top_k are equal.
struct TraceGeometry {
  int layers = 0;  // 1..65535
  int experts =
      0;  // routed experts a layer, 1..65535; at most 255 with one-byte ids (255 is the padding id)
  int top_k = 0;  // 1..255, at most `experts`
  bool operator==(const TraceGeometry&) const = default;
  std::string describe() const;  // "30 layers x 128 experts, top-8"
};

// The header's fields that are not derived from the file's content.
struct TraceFormat {
  TraceGeometry geometry;
  int id_bytes = 1;  // 1 or 2
  WeightKind weights = WeightKind::kNone;
  int shared_experts = 0;  // per layer, not logged; 0..255
  std::uint32_t flags = 0;
  std::uint64_t expert_bytes = 0;  // bytes of one expert, 0 unknown
  std::string label;               // at most 68 bytes, no NUL

  std::size_t ids_per_step() const;
  std::size_t record_bytes() const;
  // UserError naming the field that is out of range.
  void validate() const;
};

// Steps [first, first + steps) belong to conversation `id`.
struct Conversation {
  std::uint64_t first = 0;
  std::uint64_t steps = 0;
  std::uint32_t id = 0;
  Split split = Split::kTrain;
  bool operator==(const Conversation&) const = default;
};

struct TraceInfo {
  TraceFormat format;
  std::uint64_t steps = 0;
  bool sealed = false;
  // Sealed: the file's table. Unsealed: one entry per run of equal conversation ids, all kTrain.
  std::vector<Conversation> conversations;
  std::uint32_t records_crc = 0;  // as stored; 0 when unsealed
};

inline constexpr int kPaddingId =
    -1;  // a member that does not exist: layer not MoE, or fewer than top-k chosen

// One step, decoded. `ids` and `weights` are [layers][top_k] by falling gate weight; ids may be kPaddingId.
struct TraceStep {
  std::uint32_t conversation = 0;
  std::uint32_t position = 0;
  std::int32_t token = -1;  // -1 hidden
  Phase phase = Phase::kDecode;
  std::uint8_t flags = 0;
  std::uint16_t row = 0;  // batch row
  std::vector<std::int32_t> ids;
  std::vector<float> weights;  // empty when the kind is kNone
};

// Raw records [first, first + count) of a file, checked: every id is below `experts` or the padding id, no id twice in one
// group, phase 0 or 1. Valid until the reader's next call.
struct RecordBlock {
  const TraceFormat* format = nullptr;
  std::uint64_t first = 0;
  std::size_t count = 0;
  const std::byte* data = nullptr;

  const std::byte* record(std::size_t i) const { return data + i * format->record_bytes(); }
  std::uint32_t conversation(std::size_t i) const;
  // [layers][top_k] of format->id_bytes each.
  const std::byte* ids(std::size_t i) const;
  // Fills `step`, reusing its vectors.
  void decode(std::size_t i, TraceStep& step) const;
};

class TraceReader {
 public:
  // Reads header, trailer and table; for an unsealed file also scans the conversation ids. InputError naming the byte
  // offset and what is wrong: foreign magic, other endianness, version, lying counts, torn table, no geometry.
  explicit TraceReader(const std::string& path);
  ~TraceReader();
  TraceReader(TraceReader&&) noexcept;
  TraceReader& operator=(TraceReader&&) noexcept;

  const std::string& path() const;
  const TraceInfo& info() const;
  // Up to `count` records from `first` on (fewer at the end). InputError on an id or phase out of range or on a file that
  // shrank; the message names step, layer, rank and byte offset.
  RecordBlock read(std::uint64_t first, std::size_t count);
  // Recomputes the CRC of all records. CheckError when it differs from the trailer's; unsealed files pass.
  void verify_crc();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A record count that makes windows of about 1 MiB.
std::size_t window_records(const TraceFormat& format);

// Writes a trace append-only. Until seal() the file is a readable, unsealed trace: header, then whole records.
class TraceWriter {
 public:
  // Until seal() the records lie in PATH.partial, where an interrupted capture leaves them, readable; what stands at PATH is
  // replaced by seal(). UserError for an impossible format, for a PATH that is an input of this run or no regular file, and
  // while another writer holds it; Error(1) when the file cannot be created.
  TraceWriter(const std::string& path, const TraceFormat& format);
  ~TraceWriter();  // flushes; does not seal
  TraceWriter(TraceWriter&&) noexcept;
  TraceWriter& operator=(TraceWriter&&) noexcept;

  // The next steps belong to this conversation. Needed once before the first append.
  void begin_conversation(std::uint32_t id, Split split);
  // Appends one record. `step.conversation` is ignored in favour of begin_conversation. UserError when the sizes do not fit
  // the format, an id is out of range or appears twice in a group.
  void append(const TraceStep& step);
  // The fast path of capture: ids as [layers][top_k] bytes or uint16 of the file's width and weights already in the file's
  // format; nothing is checked.
  void append_raw(std::uint32_t position,
                  std::int32_t token,
                  Phase phase,
                  std::uint16_t row,
                  const std::byte* ids,
                  const std::byte* weights);
  std::uint64_t steps() const;
  // Hands buffered records to the kernel: after it a crash of the process loses nothing.
  void flush();
  // Writes table and trailer, syncs, and renames to PATH. Nothing may be appended afterwards.
  void seal();
  // Moves what there is to PATH without table and trailer: a copy of an interrupted capture stays one. In place of seal().
  void leave_unsealed();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace assay
