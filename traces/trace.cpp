#include "traces/trace.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/blocks.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"
#include "traces/crc32.h"

namespace assay {
namespace {

static_assert(std::endian::native == std::endian::little,
              "MOETRC1 is little-endian and is read in place");

constexpr std::size_t kHeaderBytes = 128;
constexpr std::size_t kTableEntryBytes = 24;
constexpr std::size_t kTrailerBytes = 32;
constexpr std::size_t kStepBytes = 16;  // a record before its ids
constexpr std::size_t kLabelBytes = 68;
constexpr char kMagic[] = "MOETRC1\n";
constexpr char kEndMagic[] = "MOETRCE\n";
constexpr std::uint32_t kEndianMark = 0x01020304;
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kWindowBytes = std::size_t{1} << 20;

template <class T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
void store(std::byte* p, T v) {
  std::memcpy(p, &v, sizeof v);
}

std::size_t weight_bytes(WeightKind kind) {
  return kind == WeightKind::kNone ? 0 : kind == WeightKind::kF16 ? 2 : 4;
}

std::int32_t id_at(const std::byte* ids, std::size_t i, int id_bytes) {
  if (id_bytes == 1) {
    const auto v = static_cast<std::uint8_t>(ids[i]);
    return v == 0xFF ? kPaddingId : v;
  }
  const auto v = load<std::uint16_t>(ids + 2 * i);
  return v == 0xFFFF ? kPaddingId : v;
}

// fp16 weights keep every bit on the way through float, a NaN's payload included: converting a trace is lossless.
float half_to_weight(std::uint16_t h) {
  if ((h & 0x7C00) != 0x7C00 || (h & 0x3FF) == 0) return half_to_float(h);
  const auto sign = static_cast<std::uint32_t>(h & 0x8000) << 16;
  return std::bit_cast<float>(sign | 0x7F800000U | static_cast<std::uint32_t>(h & 0x3FF) << 13);
}
std::uint16_t weight_to_half(float w) {
  const auto bits = std::bit_cast<std::uint32_t>(w);
  if ((bits & 0x7FFFFFFFU) <= 0x7F800000U) return float_to_half(w);
  const std::uint32_t payload = (bits >> 13) & 0x3FF;
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000) | 0x7C00 |
                                    (payload != 0 ? payload : 0x200));
}

// A file descriptor that closes itself.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

void write_all(
    int fd, const std::string& path, const void* data, std::size_t bytes, std::uint64_t at) {
  const auto* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd, p, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(Exit::kCheckFailed, path + ": cannot write: " + std::strerror(errno));
    p += n;
    at += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

std::array<std::byte, kHeaderBytes> encode_header(const TraceFormat& f,
                                                  std::uint64_t steps,
                                                  std::uint32_t conversations) {
  std::array<std::byte, kHeaderBytes> h{};
  std::memcpy(h.data(), kMagic, 8);
  store<std::uint16_t>(&h[8], kVersion);
  store<std::uint16_t>(&h[10], kHeaderBytes);
  store<std::uint32_t>(&h[12], kEndianMark);
  store<std::uint32_t>(&h[16], static_cast<std::uint32_t>(f.record_bytes()));
  store<std::uint16_t>(&h[20], static_cast<std::uint16_t>(f.geometry.layers));
  store<std::uint16_t>(&h[22], static_cast<std::uint16_t>(f.geometry.experts));
  store<std::uint8_t>(&h[24], static_cast<std::uint8_t>(f.geometry.top_k));
  store<std::uint8_t>(&h[25], static_cast<std::uint8_t>(f.id_bytes));
  store<std::uint8_t>(&h[26], static_cast<std::uint8_t>(f.weights));
  store<std::uint8_t>(&h[27], static_cast<std::uint8_t>(f.shared_experts));
  store<std::uint32_t>(&h[28], f.flags);
  store<std::uint64_t>(&h[32], steps);
  store<std::uint32_t>(&h[40], conversations);
  store<std::uint64_t>(&h[48], f.expert_bytes);
  std::memcpy(&h[56], f.label.data(), std::min(f.label.size(), kLabelBytes));
  store<std::uint32_t>(&h[124], crc32(0, h.data(), 124));
  return h;
}

}  // namespace

const char* to_string(Split split) { return split == Split::kTrain ? "train" : "held-out"; }

std::string TraceGeometry::describe() const {
  return std::to_string(layers) + " layers x " + std::to_string(experts) + " experts, top-" +
         std::to_string(top_k);
}

std::size_t TraceFormat::ids_per_step() const {
  return static_cast<std::size_t>(geometry.layers) * static_cast<std::size_t>(geometry.top_k);
}
std::size_t TraceFormat::record_bytes() const {
  return kStepBytes + ids_per_step() * (static_cast<std::size_t>(id_bytes) + weight_bytes(weights));
}
void TraceFormat::validate() const {
  const auto refuse = [](const std::string& what) { throw UserError("trace format: " + what); };
  const auto& g = geometry;
  if (g.layers < 1 || g.layers > 65535)
    refuse("layers = " + std::to_string(g.layers) + ", valid are 1 to 65535");
  if (id_bytes != 1 && id_bytes != 2)
    refuse("id bytes = " + std::to_string(id_bytes) + ", valid are 1 and 2");
  const int most = id_bytes == 1 ? 255 : 65535;  // the value with all bits set is the padding id
  if (g.experts < 1 || g.experts > most) {
    refuse("experts = " + std::to_string(g.experts) + ", valid with " + std::to_string(id_bytes) +
           "-byte ids are 1 to " + std::to_string(most));
  }
  if (g.top_k < 1 || g.top_k > 255 || g.top_k > g.experts) {
    refuse("top-k = " + std::to_string(g.top_k) + ", valid are 1 to " +
           std::to_string(std::min(255, g.experts)));
  }
  if (static_cast<int>(weights) > 2)
    refuse("weight kind " + std::to_string(static_cast<int>(weights)) + ", valid are 0, 1, 2");
  if (shared_experts < 0 || shared_experts > 255)
    refuse("shared experts = " + std::to_string(shared_experts));
  if (label.size() > kLabelBytes || label.find('\0') != std::string::npos)
    refuse("label longer than 68 bytes or with a NUL");
}

std::uint32_t RecordBlock::conversation(std::size_t i) const {
  return load<std::uint32_t>(record(i));
}

const std::byte* RecordBlock::ids(std::size_t i) const { return record(i) + kStepBytes; }

void RecordBlock::decode(std::size_t i, TraceStep& step) const {
  const std::byte* r = record(i);
  step.conversation = load<std::uint32_t>(r);
  step.position = load<std::uint32_t>(r + 4);
  step.token = load<std::int32_t>(r + 8);
  step.phase = static_cast<Phase>(r[12]);
  step.flags = static_cast<std::uint8_t>(r[13]);
  step.row = load<std::uint16_t>(r + 14);
  const std::size_t n = format->ids_per_step();
  const std::byte* ids = r + kStepBytes;
  step.ids.resize(n);
  for (std::size_t j = 0; j < n; ++j) step.ids[j] = id_at(ids, j, format->id_bytes);
  const std::byte* w = ids + n * static_cast<std::size_t>(format->id_bytes);
  step.weights.resize(format->weights == WeightKind::kNone ? 0 : n);
  for (std::size_t j = 0; j < step.weights.size(); ++j) {
    step.weights[j] = format->weights == WeightKind::kF16
                          ? half_to_weight(load<std::uint16_t>(w + 2 * j))
                          : load<float>(w + 4 * j);
  }
}

std::size_t window_records(const TraceFormat& format) {
  return std::max<std::size_t>(1, kWindowBytes / format.record_bytes());
}

// ---- reader ----

struct TraceReader::Impl {
  std::string path;
  File file;
  std::uint64_t file_bytes = 0;
  TraceInfo info;
  std::vector<std::byte> window;
  std::vector<std::uint32_t>
      seen;  // [experts]: the last group that named the expert, for finding doubles
  std::uint32_t group = 0;

  Impl(const std::string& p, int fd) : path(p), file(fd) {}

  [[noreturn]] void refuse(std::uint64_t offset, const std::string& what) const {
    throw InputError(path + ": byte " + std::to_string(offset) + ": " + what);
  }

  void read_exact(std::byte* out, std::size_t bytes, std::uint64_t at) const {
    while (bytes > 0) {
      const ssize_t n = ::pread(file.get(), out, bytes, static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0)
        throw InputError(path + ": byte " + std::to_string(at) + ": " + std::strerror(errno));
      if (n == 0) refuse(at, "the file became shorter while it was read");
      out += n;
      at += static_cast<std::uint64_t>(n);
      bytes -= static_cast<std::size_t>(n);
    }
  }

  void read_header() {
    std::array<std::byte, kHeaderBytes> h{};
    const std::size_t have =
        static_cast<std::size_t>(std::min<std::uint64_t>(file_bytes, kHeaderBytes));
    read_exact(h.data(), have, 0);
    if (have < 8 || std::memcmp(h.data(), kMagic, 8) != 0)
      refuse(0, "not a MOETRC1 trace (magic differs)");
    if (have < kHeaderBytes)
      refuse(have, "header cut short: " + std::to_string(have) + " of 128 bytes");
    const auto endian = load<std::uint32_t>(&h[12]);
    if (endian == 0x04030201) refuse(12, "written big-endian; only little-endian traces are read");
    if (endian != kEndianMark) refuse(12, "endianness mark is neither order");
    if (const auto v = load<std::uint16_t>(&h[8]); v != kVersion)
      refuse(8, "version " + std::to_string(v) + ", this build reads 1");
    if (const auto n = load<std::uint16_t>(&h[10]); n != kHeaderBytes)
      refuse(10, "header bytes " + std::to_string(n) + ", expected 128");
    const auto crc = crc32(0, h.data(), 124);
    if (load<std::uint32_t>(&h[124]) != crc) refuse(124, "header CRC-32 differs");
    auto& f = info.format;
    f.geometry = {
        load<std::uint16_t>(&h[20]), load<std::uint16_t>(&h[22]), static_cast<std::uint8_t>(h[24])};
    f.id_bytes = static_cast<std::uint8_t>(h[25]);
    f.weights = static_cast<WeightKind>(h[26]);
    f.shared_experts = static_cast<std::uint8_t>(h[27]);
    f.flags = load<std::uint32_t>(&h[28]);
    f.expert_bytes = load<std::uint64_t>(&h[48]);
    f.label.assign(reinterpret_cast<const char*>(&h[56]), kLabelBytes);
    f.label.resize(std::min(f.label.find('\0'), kLabelBytes));
    try {
      f.validate();
    } catch (const UserError& e) {
      refuse(20, e.what());
    }
    if (const auto n = load<std::uint32_t>(&h[16]); n != f.record_bytes()) {
      refuse(16,
             "record bytes " + std::to_string(n) + ", but " + f.geometry.describe() + " needs " +
                 std::to_string(f.record_bytes()));
    }
    read_tail(load<std::uint64_t>(&h[32]), load<std::uint32_t>(&h[40]));
  }

  void read_tail(std::uint64_t header_steps, std::uint32_t header_conversations) {
    const std::uint64_t record = info.format.record_bytes();
    const std::uint64_t body = file_bytes - kHeaderBytes;
    std::array<std::byte, kTrailerBytes> t{};
    const std::uint64_t at = file_bytes - std::min<std::uint64_t>(body, kTrailerBytes);
    if (body >= kTrailerBytes) read_exact(t.data(), kTrailerBytes, at);
    if (std::memcmp(&t[24], kEndMagic, 8) != 0) {
      // Interrupted capture. A header that already knows its steps belongs to a file cut after sealing began; what
      // follows its records may be a piece of the table.
      info.steps = body / record;
      if (header_steps != 0) info.steps = std::min(info.steps, header_steps);
      scan_conversations();
      return;
    }
    info.sealed = true;
    info.steps = load<std::uint64_t>(t.data());
    const auto table_at = load<std::uint64_t>(&t[8]);
    if (info.steps != header_steps) {
      refuse(at,
             "trailer says " + std::to_string(info.steps) + " steps, header says " +
                 std::to_string(header_steps));
    }
    if (info.steps > body / record || table_at != kHeaderBytes + info.steps * record) {
      refuse(at + 8,
             "table offset " + std::to_string(table_at) + " does not follow " +
                 std::to_string(info.steps) + " records");
    }
    if (at < table_at || at - table_at != std::uint64_t{header_conversations} * kTableEntryBytes) {
      refuse(40,
             "header says " + std::to_string(header_conversations) +
                 " conversations, but the table holds " +
                 std::to_string(at < table_at ? 0 : at - table_at) + " bytes");
    }
    info.records_crc = load<std::uint32_t>(&t[16]);
    std::vector<std::byte> table(static_cast<std::size_t>(at - table_at));
    read_exact(table.data(), table.size(), table_at);
    if (crc32(0, table.data(), table.size()) != load<std::uint32_t>(&t[20]))
      refuse(table_at, "conversation table CRC-32 differs");
    std::uint64_t next = 0;
    for (std::size_t i = 0; i < header_conversations; ++i) {
      const std::byte* e = table.data() + i * kTableEntryBytes;
      const std::uint64_t entry_at = table_at + i * kTableEntryBytes;
      const auto split = load<std::uint32_t>(e + 20);
      const Conversation c{load<std::uint64_t>(e),
                           load<std::uint64_t>(e + 8),
                           load<std::uint32_t>(e + 16),
                           static_cast<Split>(split)};
      if (split > 1)
        refuse(entry_at + 20,
               "split " + std::to_string(split) + ", valid are 0 (train) and 1 (held out)");
      if (c.first != next || c.steps > info.steps - next) {
        refuse(entry_at,
               "conversation " + std::to_string(i) +
                   " does not begin where the one before ends, or ends past the last step");
      }
      next += c.steps;
      info.conversations.push_back(c);
    }
    if (next != info.steps)
      refuse(table_at,
             "the table covers " + std::to_string(next) + " of " + std::to_string(info.steps) +
                 " steps");
  }

  void scan_conversations() {
    const std::size_t record = info.format.record_bytes();
    std::array<std::byte, 4> id{};
    const std::size_t count = window_records(info.format);
    for (std::uint64_t first = 0; first < info.steps; first += count) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(count, info.steps - first));
      window.resize(n * record);
      read_exact(window.data(), window.size(), kHeaderBytes + first * record);
      for (std::size_t i = 0; i < n; ++i) {
        std::memcpy(id.data(), window.data() + i * record, 4);
        const auto c = load<std::uint32_t>(id.data());
        if (info.conversations.empty() || info.conversations.back().id != c)
          info.conversations.push_back({first + i, 0, c, Split::kTrain});
        ++info.conversations.back().steps;
      }
    }
  }

  template <class Id>
  void check_ids(const std::byte* ids, std::uint64_t step) {
    const auto& g = info.format.geometry;
    const auto k = static_cast<std::size_t>(g.top_k);
    constexpr Id kPad = static_cast<Id>(~Id{0});
    for (int layer = 0; layer < g.layers; ++layer) {
      ++group;
      for (std::size_t r = 0; r < k; ++r) {
        const std::size_t i = static_cast<std::size_t>(layer) * k + r;
        const Id id = load<Id>(ids + i * sizeof(Id));
        if (id < g.experts) {
          if (seen[id] != group) {
            seen[id] = group;
            continue;
          }
        } else if (id == kPad) {
          continue;
        }
        const std::uint64_t at =
            kHeaderBytes + step * info.format.record_bytes() + kStepBytes + i * sizeof(Id);
        refuse(at,
               "step " + std::to_string(step) + " layer " + std::to_string(layer) + " rank " +
                   std::to_string(r) + ": expert id " + std::to_string(id) +
                   (id < g.experts ? " appears twice in its group"
                                   : " is not below " + std::to_string(g.experts)));
      }
    }
  }

  RecordBlock read(std::uint64_t first, std::size_t count) {
    const std::size_t record = info.format.record_bytes();
    if (first > info.steps) throw std::out_of_range("TraceReader::read past the last step");
    count = static_cast<std::size_t>(std::min<std::uint64_t>(count, info.steps - first));
    if (window.size() < count * record) window.resize(count * record);
    read_exact(window.data(), count * record, kHeaderBytes + first * record);
    seen.resize(static_cast<std::size_t>(info.format.geometry.experts), 0);
    for (std::size_t i = 0; i < count; ++i) {
      const std::byte* r = window.data() + i * record;
      if (static_cast<std::uint8_t>(r[12]) > 1) {
        refuse(kHeaderBytes + (first + i) * record + 12,
               "step " + std::to_string(first + i) + ": phase " +
                   std::to_string(static_cast<int>(r[12])) +
                   ", valid are 0 (prefill) and 1 (decode)");
      }
      if (group >
          0xFFFFFFFFU - 65536U) {  // the group counter is about to wrap: forget what was seen
        std::fill(seen.begin(), seen.end(), 0U);
        group = 0;
      }
      if (info.format.id_bytes == 1) {
        check_ids<std::uint8_t>(r + kStepBytes, first + i);
      } else {
        check_ids<std::uint16_t>(r + kStepBytes, first + i);
      }
    }
    return {&info.format, first, count, window.data()};
  }
};

TraceReader::TraceReader(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw InputError(path + ": " + std::strerror(errno));
  impl_ = std::make_unique<Impl>(path, fd);
  struct stat st {};
  if (::fstat(fd, &st) != 0) throw InputError(path + ": " + std::strerror(errno));
  if (!S_ISREG(st.st_mode)) throw InputError(path + ": not a regular file");
  impl_->file_bytes = static_cast<std::uint64_t>(st.st_size);
  impl_->read_header();
}
TraceReader::~TraceReader() = default;
TraceReader::TraceReader(TraceReader&&) noexcept = default;
TraceReader& TraceReader::operator=(TraceReader&&) noexcept = default;

const std::string& TraceReader::path() const { return impl_->path; }
const TraceInfo& TraceReader::info() const { return impl_->info; }
RecordBlock TraceReader::read(std::uint64_t first, std::size_t count) {
  return impl_->read(first, count);
}

void TraceReader::verify_crc() {
  if (!impl_->info.sealed) return;
  const std::size_t record = impl_->info.format.record_bytes();
  const std::size_t count = window_records(impl_->info.format);
  std::uint32_t crc = 0;
  for (std::uint64_t first = 0; first < impl_->info.steps; first += count) {
    const RecordBlock b = read(first, count);
    crc = crc32(crc, b.data, b.count * record);
  }
  if (crc != impl_->info.records_crc)
    throw CheckError(impl_->path + ": CRC-32 of the records differs from the trailer's");
}

// ---- writer ----

struct TraceWriter::Impl {
  std::string path;     // for messages
  std::string partial;  // where the records are until the end
  std::string target;   // where they go
  TraceFormat format;
  File file;
  std::vector<std::byte> buffer;
  std::uint64_t written = 0;  // bytes on file
  std::uint64_t steps = 0;
  std::uint32_t crc = 0;
  std::vector<Conversation> table;
  bool sealed = false;

  Impl(std::string p, std::string from, std::string to, const TraceFormat& f, int fd)
      : path(std::move(p)), partial(std::move(from)), target(std::move(to)), format(f), file(fd) {}

  void move_into_place() const {
    if (partial != target && ::rename(partial.c_str(), target.c_str()) != 0)
      throw Error(Exit::kCheckFailed, path + ": cannot rename to: " + std::strerror(errno));
  }
  void flush() {
    if (buffer.empty()) return;
    write_all(file.get(), path, buffer.data(), buffer.size(), written);
    crc = crc32(crc, buffer.data(), buffer.size());
    written += buffer.size();
    buffer.clear();
  }

  std::byte* next_record() {
    if (sealed) throw std::logic_error("append to a sealed trace");
    if (table.empty()) throw std::logic_error("append before begin_conversation");
    const std::size_t record = format.record_bytes();
    if (buffer.size() + record > kWindowBytes) flush();
    buffer.resize(buffer.size() + record);
    ++steps;
    ++table.back().steps;
    std::byte* r = buffer.data() + buffer.size() - record;
    store<std::uint32_t>(r, table.back().id);
    return r;
  }
};

TraceWriter::TraceWriter(const std::string& path, const TraceFormat& format) {
  format.validate();
  const OutputTarget target = output_target(path);
  const std::string partial = target.in_place ? path : target.path + ".partial";
  const int fd = ::open(partial.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) throw Error(Exit::kCheckFailed, path + ": cannot create: " + std::strerror(errno));
  impl_ = std::make_unique<Impl>(path, partial, target.path, format, fd);
  // The second look: a writer that ended in between has renamed this very file to its final name.
  struct stat mine {};
  struct stat there {};
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 || ::fstat(fd, &mine) != 0 ||
      ::stat(partial.c_str(), &there) != 0 || mine.st_ino != there.st_ino)
    throw UserError(path + ": another program is writing it (" + partial + ")");
  if (!S_ISREG(mine.st_mode)) throw UserError(path + ": a trace needs a regular file");
  if (::ftruncate(fd, 0) != 0)
    throw Error(Exit::kCheckFailed, partial + ": cannot empty: " + std::strerror(errno));
  const auto header = encode_header(format, 0, 0);
  write_all(fd, path, header.data(), header.size(), 0);
  impl_->written = header.size();
}
TraceWriter::~TraceWriter() {
  if (impl_ == nullptr || impl_->sealed) return;
  try {
    impl_->flush();
  } catch (
      const Error&) {  // a destructor must not throw; the file stays readable up to the last whole record
  }
}
TraceWriter::TraceWriter(TraceWriter&&) noexcept = default;
TraceWriter& TraceWriter::operator=(TraceWriter&&) noexcept = default;

void TraceWriter::begin_conversation(std::uint32_t id, Split split) {
  impl_->table.push_back({impl_->steps, 0, id, split});
}
std::uint64_t TraceWriter::steps() const { return impl_->steps; }
void TraceWriter::flush() { impl_->flush(); }

void TraceWriter::append(const TraceStep& step) {
  const TraceFormat& f = impl_->format;
  const std::size_t n = f.ids_per_step();
  if (step.ids.size() != n || step.weights.size() != (f.weights == WeightKind::kNone ? 0 : n)) {
    throw UserError("trace step: " + std::to_string(step.ids.size()) + " ids and " +
                    std::to_string(step.weights.size()) + " weights do not fit " +
                    f.geometry.describe());
  }
  const auto k = static_cast<std::size_t>(f.geometry.top_k);
  for (std::size_t i = 0; i < n; ++i) {
    const auto id = step.ids[i];
    const auto where = [&] {
      return "trace step: layer " + std::to_string(i / k) + " rank " + std::to_string(i % k) +
             ": expert id " + std::to_string(id);
    };
    if (id == kPaddingId) continue;
    if (id < 0 || id >= f.geometry.experts)
      throw UserError(where() + " is not below " + std::to_string(f.geometry.experts));
    for (std::size_t j = i - i % k; j < i; ++j) {
      if (step.ids[j] == id) throw UserError(where() + " appears twice in its group");
    }
  }
  std::byte* r = impl_->next_record();
  store<std::uint32_t>(r + 4, step.position);
  store<std::int32_t>(r + 8, step.token);
  r[12] = static_cast<std::byte>(step.phase);
  r[13] = static_cast<std::byte>(step.flags);
  store<std::uint16_t>(r + 14, step.row);
  std::byte* ids = r + kStepBytes;
  std::byte* w = ids + n * static_cast<std::size_t>(f.id_bytes);
  for (std::size_t i = 0; i < n; ++i) {
    // The padding id, -1, has all bits set at either width.
    if (f.id_bytes == 1) {
      store(ids + i, static_cast<std::uint8_t>(step.ids[i]));
    } else {
      store(ids + 2 * i, static_cast<std::uint16_t>(step.ids[i]));
    }
    if (f.weights == WeightKind::kF16) store(w + 2 * i, weight_to_half(step.weights[i]));
    if (f.weights == WeightKind::kF32) store(w + 4 * i, step.weights[i]);
  }
}

void TraceWriter::append_raw(std::uint32_t position,
                             std::int32_t token,
                             Phase phase,
                             std::uint16_t row,
                             const std::byte* ids,
                             const std::byte* weights) {
  const TraceFormat& f = impl_->format;
  std::byte* r = impl_->next_record();
  store<std::uint32_t>(r + 4, position);
  store<std::int32_t>(r + 8, token);
  r[12] = static_cast<std::byte>(phase);
  r[13] = std::byte{0};
  store<std::uint16_t>(r + 14, row);
  const std::size_t id_total = f.ids_per_step() * static_cast<std::size_t>(f.id_bytes);
  std::memcpy(r + kStepBytes, ids, id_total);
  if (f.weights != WeightKind::kNone)
    std::memcpy(r + kStepBytes + id_total, weights, f.ids_per_step() * weight_bytes(f.weights));
}

void TraceWriter::seal() {
  auto& w = *impl_;
  if (w.sealed) return;
  w.flush();
  // The header learns the counts first: a crash between the two writes leaves a file that counts as unsealed and whose
  // header still tells where its records end.
  const auto header = encode_header(w.format, w.steps, static_cast<std::uint32_t>(w.table.size()));
  write_all(w.file.get(), w.path, header.data(), header.size(), 0);
  if (::fdatasync(w.file.get()) != 0)
    throw Error(Exit::kCheckFailed, w.path + ": cannot sync: " + std::strerror(errno));
  std::vector<std::byte> tail(w.table.size() * kTableEntryBytes + kTrailerBytes);
  for (std::size_t i = 0; i < w.table.size(); ++i) {
    std::byte* e = tail.data() + i * kTableEntryBytes;
    store(e, w.table[i].first);
    store(e + 8, w.table[i].steps);
    store(e + 16, w.table[i].id);
    store(e + 20, static_cast<std::uint32_t>(w.table[i].split));
  }
  const std::size_t table_bytes = tail.size() - kTrailerBytes;
  std::byte* t = tail.data() + table_bytes;
  store(t, w.steps);
  store(t + 8, w.written);
  store(t + 16, w.crc);
  store(t + 20, crc32(0, tail.data(), table_bytes));
  std::memcpy(t + 24, kEndMagic, 8);
  write_all(w.file.get(), w.path, tail.data(), tail.size(), w.written);
  if (::fsync(w.file.get()) != 0)
    throw Error(Exit::kCheckFailed, w.path + ": cannot sync: " + std::strerror(errno));
  w.move_into_place();
  w.sealed = true;
}

void TraceWriter::leave_unsealed() {
  impl_->flush();
  impl_->move_into_place();
}

}  // namespace assay
