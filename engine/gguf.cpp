#include "engine/gguf.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/error.h"

static_assert(std::endian::native == std::endian::little,
              "GGUF data is used as it lies in the file");

namespace assay {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"

// Bytes of one element, 0 for strings and arrays.
std::uint64_t scalar_bytes(MetaType type) {
  switch (type) {
    case MetaType::kU8:
    case MetaType::kI8:
    case MetaType::kBool:
      return 1;
    case MetaType::kU16:
    case MetaType::kI16:
      return 2;
    case MetaType::kU32:
    case MetaType::kI32:
    case MetaType::kF32:
      return 4;
    case MetaType::kU64:
    case MetaType::kI64:
    case MetaType::kF64:
      return 8;
    case MetaType::kString:
    case MetaType::kArray:
      return 0;
  }
  return 0;
}

// A name from a stranger's file, safe to print: control bytes escaped, cut at 80 characters.
std::string printable(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    if (out.size() >= 80) return out + "..";
    const auto b = static_cast<unsigned char>(c);
    if (b >= 0x20 && b < 0x7F && c != '\'' && c != '\\') {
      out += c;
    } else {
      out += "\\x";
      out += kHex[b >> 4];
      out += kHex[b & 15];
    }
  }
  return out;
}

// a + b and a * b, or nothing when they do not fit.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t r = 0;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

// Rounds up to a power of two; values near 2^64 cannot occur (callers bound them by the file's size first).
std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

template <class T>
T load(const char* p) {
  T v{};
  std::memcpy(&v, p, sizeof v);
  return v;
}

}  // namespace

const char* to_string(MetaType type) {
  static constexpr const char* kNames[] = {"u8",
                                           "i8",
                                           "u16",
                                           "i16",
                                           "u32",
                                           "i32",
                                           "f32",
                                           "bool",
                                           "string",
                                           "array",
                                           "u64",
                                           "i64",
                                           "f64"};
  const auto i = static_cast<std::uint32_t>(type);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}

// ---- parsing ----

// A cursor over the file's head. Every read is checked against what remains before anything is allocated for it.
class GgufFile::Parser {
 public:
  explicit Parser(GgufFile& file) : f_(file), window_(kWindow, 0) {}

  void run() {
    header();
    for (std::uint64_t i = 0; i < n_kv_; ++i) pair(i);
    f_.records_offset_ = pos_;
    settings();
    for (std::uint64_t i = 0; i < n_tensors_; ++i) record(i);
    layout();
  }

 private:
  static constexpr std::size_t kWindow = std::size_t{1} << 18;

  [[noreturn]] void refuse(std::uint64_t at, const std::string& why) const {
    throw InputError(f_.path_ + ": " + (what_.empty() ? "" : what_ + " ") + "(at byte " +
                     std::to_string(at) + "): " + why);
  }
  std::uint64_t remaining() const { return f_.file_bytes_ - pos_; }
  void need(std::uint64_t bytes, const char* part) const {
    if (bytes > remaining()) {
      refuse(pos_,
             std::string("the file ends inside the ") + part + ": " + std::to_string(bytes) +
                 " bytes needed, " + std::to_string(remaining()) + " left");
    }
  }
  // Copies and advances; the caller has called need().
  void take(void* into, std::uint64_t bytes) {
    auto* out = static_cast<char*>(into);
    while (bytes > 0) {
      if (pos_ < window_at_ || pos_ >= window_at_ + window_used_) fill();
      const std::uint64_t from = pos_ - window_at_;
      const std::uint64_t n = std::min<std::uint64_t>(bytes, window_used_ - from);
      std::memcpy(out, window_.data() + from, n);
      out += n;
      pos_ += n;
      bytes -= n;
    }
  }
  void fill() {
    window_at_ = pos_;
    for (;;) {
      const ssize_t n = ::pread(f_.fd_, window_.data(), window_.size(), static_cast<off_t>(pos_));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) refuse(pos_, std::string("cannot read: ") + std::strerror(errno));
      if (n == 0) refuse(pos_, "the file became shorter while it was read");
      window_used_ = static_cast<std::size_t>(n);
      return;
    }
  }
  template <class T>
  T number(const char* part) {
    need(sizeof(T), part);
    T v{};
    take(&v, sizeof v);
    return v;
  }
  std::string string(std::uint64_t limit, const char* part) {
    const std::uint64_t at = pos_;
    const auto n = number<std::uint64_t>(part);
    if (n > limit || n > remaining()) {
      refuse(at,
             std::string(part) + " of " + std::to_string(n) + " bytes; " +
                 std::to_string(remaining()) + " remain and " + std::to_string(limit) +
                 " are accepted");
    }
    std::string s(n, '\0');
    take(s.data(), n);
    return s;
  }
  void charge(std::uint64_t at, std::uint64_t bytes) {
    metadata_bytes_ += bytes;
    if (metadata_bytes_ > kMaxMetadataBytes) {
      refuse(at, "more than " + std::to_string(kMaxMetadataBytes) + " bytes of metadata");
    }
  }

  void header() {
    what_ = "header";
    if (f_.file_bytes_ < 4)
      refuse(0, "not a GGUF file: " + std::to_string(f_.file_bytes_) + " bytes");
    if (number<std::uint32_t>("magic") != kMagic)
      refuse(0, "not a GGUF file: the first four bytes are not 'GGUF'");
    f_.version_ = number<std::uint32_t>("version");
    if (f_.version_ != 0 && (f_.version_ & 0xFFFFU) == 0)
      refuse(4, "a big-endian file; only little-endian is read");
    if (f_.version_ != 2 && f_.version_ != 3) {
      refuse(4, "GGUF version " + std::to_string(f_.version_) + "; 2 and 3 are read");
    }
    n_tensors_ = number<std::uint64_t>("tensor count");
    n_kv_ = number<std::uint64_t>("key count");
    // A record is at least 8 + 1 + 4 + 8 + 4 + 8 bytes, a pair at least 8 + 1 + 4 + 1.
    if (n_tensors_ > kMaxTensors || n_tensors_ > remaining() / 24) {
      refuse(8, "tensor count " + std::to_string(n_tensors_) + " is impossible for this file");
    }
    if (n_kv_ > kMaxKeys || n_kv_ > remaining() / 14) {
      refuse(16, "key count " + std::to_string(n_kv_) + " is impossible for this file");
    }
    f_.values_.reserve(n_kv_);
    f_.tensors_.reserve(n_tensors_);
  }

  void pair(std::uint64_t index) {
    what_ = "metadata pair " + std::to_string(index);
    const std::uint64_t at = pos_;
    Value v;
    v.key = string(kMaxKeyBytes, "key");
    if (v.key.empty()) refuse(at, "empty key");
    what_ = "key '" + printable(v.key) + "'";
    if (f_.value_index_.contains(v.key)) refuse(at, "the key occurs twice");
    const std::uint64_t type_at = pos_;
    v.type = type(number<std::uint32_t>("value type"), type_at);
    v.offset = pos_;
    if (v.type == MetaType::kArray) {
      v.array = true;
      v.type = type(number<std::uint32_t>("element type"), v.offset);
      if (v.type == MetaType::kArray) refuse(v.offset, "an array of arrays");
      const std::uint64_t count_at = pos_;
      v.count = number<std::uint64_t>("element count");
      const std::uint64_t least = v.type == MetaType::kString ? 8 : scalar_bytes(v.type);
      if (v.count > kMaxArrayElements || v.count > remaining() / least) {
        refuse(count_at,
               "an array of " + std::to_string(v.count) + " elements; " +
                   std::to_string(remaining()) + " bytes remain and " +
                   std::to_string(kMaxArrayElements) + " elements are accepted");
      }
    }
    if (v.type == MetaType::kString && v.array) {
      strings(v);
    } else if (v.type == MetaType::kString) {
      v.raw = string(kMaxStringBytes, "string");
      charge(v.offset, v.raw.size());
    } else {
      const std::uint64_t bytes = v.count * scalar_bytes(v.type);  // count <= remaining / size
      need(bytes, "value");
      charge(v.offset, bytes);
      v.raw.resize(bytes);
      take(v.raw.data(), bytes);
    }
    f_.values_.push_back(std::move(v));
    f_.value_index_.emplace(f_.values_.back().key, f_.values_.size() - 1);
  }

  // Two passes, so that the text is allocated once at its exact size: first the lengths, then the bytes.
  void strings(Value& v) {
    const std::uint64_t begin = pos_;
    std::uint64_t total = 0;
    charge(begin, v.count * sizeof(std::uint32_t));
    v.strings.ends_.reserve(v.count);
    for (std::uint64_t i = 0; i < v.count; ++i) {
      const std::uint64_t at = pos_;
      const auto n = number<std::uint64_t>("string array");
      if (n > kMaxStringBytes || n > remaining()) {
        refuse(at,
               "element " + std::to_string(i) + " of " + std::to_string(n) + " bytes; " +
                   std::to_string(remaining()) + " remain and " + std::to_string(kMaxStringBytes) +
                   " are accepted");
      }
      charge(at, n);
      total += n;  // bounded by charge()
      pos_ += n;
      v.strings.ends_.push_back(static_cast<std::uint32_t>(total));
    }
    const std::uint64_t end = pos_;
    v.strings.text_.resize(total);
    pos_ = begin;
    std::uint64_t done = 0;
    for (std::uint64_t i = 0; i < v.count; ++i) {
      pos_ += 8;
      take(v.strings.text_.data() + done, v.strings.ends_[i] - done);
      done = v.strings.ends_[i];
    }
    assert(pos_ == end);
    pos_ = end;
  }

  MetaType type(std::uint32_t id, std::uint64_t at) const {
    if (id > 12) refuse(at, "value type " + std::to_string(id) + "; 0 to 12 exist");
    return static_cast<MetaType>(id);
  }

  void settings() {
    if (const Value* v = f_.find("general.alignment")) {
      what_ = "key 'general.alignment'";
      if (v->array || v->type != MetaType::kU32) refuse(v->offset, "must be a u32");
      f_.alignment_ = load<std::uint32_t>(v->raw.data());
      if (!std::has_single_bit(f_.alignment_)) {
        refuse(v->offset, "alignment " + std::to_string(f_.alignment_) + " is not a power of two");
      }
    }
    // 0 or 1 part is this file alone.
    if (f_.find_integer("split.count").value_or(1) > 1 ||
        f_.find_integer("split.no").value_or(0) != 0) {
      f_.refuse_key(f_.has("split.count") ? "split.count" : "split.no",
                    "one part of a split model; join the parts into one file first");
    }
  }

  void record(std::uint64_t index) {
    what_ = "tensor record " + std::to_string(index);
    const std::uint64_t at = pos_;
    TensorInfo t;
    t.name = string(kMaxNameBytes, "tensor name");
    if (t.name.empty()) refuse(at, "empty tensor name");
    what_ = "tensor '" + printable(t.name) + "'";
    if (f_.tensor_index_.contains(t.name)) refuse(at, "the name occurs twice");
    const std::uint64_t dims_at = pos_;
    const auto dims = number<std::uint32_t>("dimension count");
    if (dims < 1 || dims > 4)
      refuse(dims_at, std::to_string(dims) + " dimensions; 1 to 4 are possible");
    t.dims = static_cast<int>(dims);
    std::uint64_t elements = 1;
    for (std::uint32_t d = 0; d < dims; ++d) {
      const std::uint64_t ne_at = pos_;
      t.ne[d] = number<std::int64_t>("dimensions");
      if (t.ne[d] < 1)
        refuse(ne_at, "dimension " + std::to_string(d) + " is " + std::to_string(t.ne[d]));
      const auto p = product(elements, static_cast<std::uint64_t>(t.ne[d]));
      if (!p || *p > static_cast<std::uint64_t>(INT64_MAX))
        refuse(ne_at, "the product of the dimensions overflows");
      elements = *p;
    }
    const std::uint64_t type_at = pos_;
    const auto id = number<std::uint32_t>("tensor type");
    const auto type = block_type_from_id(id);
    if (!type) {
      std::string known;
      for (const BlockType b : kAllBlockTypes) {
        known += std::string(known.empty() ? "" : ", ") + to_string(b) + " (" +
                 std::to_string(static_cast<int>(b)) + ")";
      }
      refuse(type_at, "unsupported tensor type " + std::to_string(id) + "; known are " + known);
    }
    t.type = *type;
    if (t.ne[0] % static_cast<std::int64_t>(block_elements(t.type)) != 0) {
      refuse(dims_at + 4,
             "row length " + std::to_string(t.ne[0]) + " is not a multiple of " +
                 std::to_string(block_elements(t.type)) + ", the block of " + to_string(t.type));
    }
    const auto bytes = product(elements / block_elements(t.type), block_bytes(t.type));
    if (!bytes || *bytes > static_cast<std::uint64_t>(INT64_MAX))
      refuse(dims_at + 4, "the size in bytes overflows");
    t.bytes = *bytes;
    offset_at_.push_back(pos_);
    t.offset = number<std::uint64_t>("tensor offset");  // relative for now, see layout()
    f_.tensors_.push_back(std::move(t));
    f_.tensor_index_.emplace(f_.tensors_.back().name, f_.tensors_.size() - 1);
  }

  // Tensors lie end to end in file order: anything else is an overlap, a gap or a size that points outside.
  void layout() {
    what_ = "data section";
    if (f_.tensors_.empty()) {
      f_.data_offset_ = pos_;
      return;
    }
    f_.data_offset_ = align_up(pos_, f_.alignment_);  // pos_ <= file size < 2^63, alignment <= 2^31
    if (f_.data_offset_ > f_.file_bytes_) {
      refuse(f_.data_offset_,
             "would start past the end of the file (" + std::to_string(f_.file_bytes_) + " bytes)");
    }
    const std::uint64_t data_bytes = f_.file_bytes_ - f_.data_offset_;
    std::uint64_t expected = 0;
    for (std::size_t i = 0; i < f_.tensors_.size(); ++i) {
      TensorInfo& t = f_.tensors_[i];
      what_ = "tensor '" + printable(t.name) + "'";
      if (t.offset != expected) {
        refuse(offset_at_[i],
               "offset " + std::to_string(t.offset) + ", but the tensors before it end at " +
                   std::to_string(expected) +
                   (t.offset % f_.alignment_ != 0 ? " (and it is not aligned)" : ""));
      }
      if (expected > data_bytes || t.bytes > data_bytes - expected) {
        refuse(offset_at_[i],
               "its " + std::to_string(t.bytes) + " bytes at " + std::to_string(f_.data_offset_) +
                   " + " + std::to_string(expected) + " end past the end of the file (" +
                   std::to_string(f_.file_bytes_) + " bytes)");
      }
      t.offset += f_.data_offset_;
      expected = align_up(expected + t.bytes, f_.alignment_);  // both <= file size
    }
  }

  GgufFile& f_;
  std::string window_;
  std::uint64_t window_at_ = 0;
  std::size_t window_used_ = 0;
  std::uint64_t pos_ = 0;
  std::string what_;
  std::uint64_t n_tensors_ = 0;
  std::uint64_t n_kv_ = 0;
  std::uint64_t metadata_bytes_ = 0;
  std::vector<std::uint64_t> offset_at_;  // where each tensor's offset is written
};

GgufFile GgufFile::open(const std::string& path) {
  GgufFile f;
  f.path_ = path;
  // O_NONBLOCK: opening a fifo without a writer must not hang; it is refused below.
  f.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (f.fd_ < 0) throw InputError(path + ": " + std::strerror(errno));
  struct stat st {};
  if (::fstat(f.fd_, &st) != 0) throw InputError(path + ": " + std::strerror(errno));
  if (S_ISDIR(st.st_mode)) throw InputError(path + ": is a directory, not a model file");
  if (!S_ISREG(st.st_mode)) throw InputError(path + ": is not a regular file");
  f.file_bytes_ = static_cast<std::uint64_t>(st.st_size);
  Parser(f).run();
  return f;
}

GgufFile::~GgufFile() {
  if (fd_ >= 0) ::close(fd_);
}

GgufFile::GgufFile(GgufFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      version_(other.version_),
      file_bytes_(other.file_bytes_),
      alignment_(other.alignment_),
      data_offset_(other.data_offset_),
      records_offset_(other.records_offset_),
      values_(std::move(other.values_)),
      tensors_(std::move(other.tensors_)),
      value_index_(std::move(other.value_index_)),
      tensor_index_(std::move(other.tensor_index_)) {}

GgufFile& GgufFile::operator=(GgufFile&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    path_ = std::move(other.path_);
    fd_ = std::exchange(other.fd_, -1);
    version_ = other.version_;
    file_bytes_ = other.file_bytes_;
    alignment_ = other.alignment_;
    data_offset_ = other.data_offset_;
    records_offset_ = other.records_offset_;
    values_ = std::move(other.values_);
    tensors_ = std::move(other.tensors_);
    value_index_ = std::move(other.value_index_);
    tensor_index_ = std::move(other.tensor_index_);
  }
  return *this;
}

// ---- tensors ----

const TensorInfo* GgufFile::find_tensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

const TensorInfo& GgufFile::tensor(std::string_view name) const {
  if (const TensorInfo* t = find_tensor(name)) return *t;
  throw InputError(path_ + ": tensor '" + printable(name) + "' (at byte " +
                   std::to_string(records_offset_) + "): not among the " +
                   std::to_string(tensors_.size()) + " tensor records that start here");
}

void GgufFile::read_at(const TensorInfo& tensor,
                       std::uint64_t from,
                       std::span<std::byte> into) const {
  assert(from <= tensor.bytes && into.size() <= tensor.bytes - from);
  std::size_t done = 0;
  while (done < into.size()) {
    // The kernel moves at most 2 GiB a call.
    const std::size_t ask = std::min<std::size_t>(into.size() - done, std::size_t{1} << 30);
    const ssize_t n =
        ::pread(fd_, into.data() + done, ask, static_cast<off_t>(tensor.offset + from + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      refuse_tensor(tensor, std::string("cannot read: ") + std::strerror(errno), from + done);
    if (n == 0) refuse_tensor(tensor, "the file became shorter while it was in use", from + done);
    done += static_cast<std::size_t>(n);
  }
}

void GgufFile::read_tensor(const TensorInfo& tensor, std::span<std::byte> into) const {
  assert(into.size() == tensor.bytes);
  read_at(tensor, 0, into);
}

void GgufFile::read_tensor(const TensorInfo& tensor,
                           std::uint64_t from,
                           std::span<std::byte> into) const {
  read_at(tensor, from, into);
}

void GgufFile::read_finite_tensor(const TensorInfo& tensor, std::span<std::byte> into) const {
  read_tensor(tensor, into);
  check_finite(*this, tensor, into);
}

std::vector<float> GgufFile::read_f32(const TensorInfo& tensor) const {
  if (tensor.type != BlockType::kF32) {
    refuse_tensor(tensor, std::string("type ") + to_string(tensor.type) + ", f32 is needed");
  }
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  read_finite_tensor(tensor, std::as_writable_bytes(std::span(values)));
  return values;
}

// ---- metadata ----

const GgufFile::Value* GgufFile::find(std::string_view key) const {
  const auto it = value_index_.find(key);
  return it == value_index_.end() ? nullptr : &values_[it->second];
}

const GgufFile::Value& GgufFile::need(std::string_view key) const {
  if (const Value* v = find(key)) return *v;
  refuse_key(key, "missing; the metadata ends here");
}

const GgufFile::Value& GgufFile::need_scalar(std::string_view key) const {
  const Value& v = need(key);
  if (v.array)
    refuse_key(key,
               std::string("an array of ") + to_string(v.type) + " where a single value is needed");
  return v;
}

bool GgufFile::has(std::string_view key) const { return find(key) != nullptr; }

std::vector<std::string_view> GgufFile::keys() const {
  std::vector<std::string_view> out;
  out.reserve(values_.size());
  for (const Value& v : values_) out.emplace_back(v.key);
  return out;
}

std::int64_t GgufFile::integer_at(const Value& v, std::uint64_t index) const {
  const char* p = v.raw.data() + index * std::max<std::uint64_t>(1, scalar_bytes(v.type));
  switch (v.type) {
    case MetaType::kU8:
      return load<std::uint8_t>(p);
    case MetaType::kI8:
      return load<std::int8_t>(p);
    case MetaType::kU16:
      return load<std::uint16_t>(p);
    case MetaType::kI16:
      return load<std::int16_t>(p);
    case MetaType::kU32:
      return load<std::uint32_t>(p);
    case MetaType::kI32:
      return load<std::int32_t>(p);
    case MetaType::kBool:
      return load<std::uint8_t>(p) != 0 ? 1 : 0;
    case MetaType::kI64:
      return load<std::int64_t>(p);
    case MetaType::kU64: {
      const auto u = load<std::uint64_t>(p);
      if (u > static_cast<std::uint64_t>(INT64_MAX))
        refuse_key(v.key, std::to_string(u) + " is out of range");
      return static_cast<std::int64_t>(u);
    }
    case MetaType::kF32:
    case MetaType::kF64:
    case MetaType::kString:
    case MetaType::kArray:
      break;
  }
  refuse_key(v.key, std::string("a ") + to_string(v.type) + " where an integer is needed");
}

double GgufFile::number_at(const Value& v, std::uint64_t index) const {
  double x = 0.0;
  if (v.type == MetaType::kF32) {
    x = static_cast<double>(load<float>(v.raw.data() + 4 * index));
  } else if (v.type == MetaType::kF64) {
    x = load<double>(v.raw.data() + 8 * index);
  } else {
    refuse_key(v.key, std::string("a ") + to_string(v.type) + " where an f32 or f64 is needed");
  }
  if (!std::isfinite(x)) {
    refuse_key(v.key,
               (v.array ? "element " + std::to_string(index) : std::string("the value")) +
                   " is not finite");
  }
  return x;
}

std::int64_t GgufFile::integer(std::string_view key) const {
  return integer_at(need_scalar(key), 0);
}
std::optional<std::int64_t> GgufFile::find_integer(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return integer(key);
}
double GgufFile::number(std::string_view key) const { return number_at(need_scalar(key), 0); }
std::optional<double> GgufFile::find_number(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return number(key);
}
bool GgufFile::boolean(std::string_view key) const {
  const Value& v = need_scalar(key);
  if (v.type != MetaType::kBool) {
    refuse_key(key, std::string("a ") + to_string(v.type) + " where a bool is needed");
  }
  return v.raw[0] != 0;
}
std::optional<bool> GgufFile::find_boolean(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return boolean(key);
}
std::string_view GgufFile::text(std::string_view key) const {
  const Value& v = need_scalar(key);
  if (v.type != MetaType::kString) {
    refuse_key(key, std::string("a ") + to_string(v.type) + " where a string is needed");
  }
  return v.raw;
}
std::optional<std::string_view> GgufFile::find_text(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return text(key);
}

bool GgufFile::is_array(std::string_view key) const {
  const Value* v = find(key);
  return v != nullptr && v->array;
}
bool GgufFile::is_bool(std::string_view key) const {
  const Value* v = find(key);
  return v != nullptr && v->type == MetaType::kBool;
}

std::vector<std::int64_t> GgufFile::integers(std::string_view key) const {
  const Value& v = need(key);
  if (!v.array) refuse_key(key, "a single value where an array is needed");
  std::vector<std::int64_t> out(v.count);
  for (std::uint64_t i = 0; i < v.count; ++i) out[i] = integer_at(v, i);
  return out;
}
std::vector<double> GgufFile::numbers(std::string_view key) const {
  const Value& v = need(key);
  if (!v.array) refuse_key(key, "a single value where an array is needed");
  std::vector<double> out(v.count);
  for (std::uint64_t i = 0; i < v.count; ++i) out[i] = number_at(v, i);
  return out;
}
const StringList& GgufFile::strings(std::string_view key) const {
  const Value& v = need(key);
  if (!v.array || v.type != MetaType::kString) refuse_key(key, "an array of strings is needed");
  return v.strings;
}

void GgufFile::refuse_key(std::string_view key, const std::string& why) const {
  const Value* v = find(key);
  throw InputError(path_ + ": key '" + printable(key) + "' (at byte " +
                   std::to_string(v == nullptr ? records_offset_ : v->offset) + "): " + why);
}

void GgufFile::refuse_tensor(const TensorInfo& tensor,
                             const std::string& why,
                             std::uint64_t at) const {
  throw InputError(path_ + ": tensor '" + printable(tensor.name) + "' (at byte " +
                   std::to_string(tensor.offset + at) + "): " + why);
}

// ---- finiteness ----

namespace {

// Where a block keeps its half-precision scale and minimum.
struct ScaleFields {
  std::size_t first;
  std::size_t second;  // equal to first when there is only one
};
ScaleFields scale_fields(BlockType type) {
  switch (type) {
    case BlockType::kQ4_1:
    case BlockType::kQ5_1:
    case BlockType::kQ4_K:
    case BlockType::kQ5_K:
      return {0, 2};
    case BlockType::kQ6_K:
      return {208, 208};
    default:
      return {0, 0};
  }
}

// True when one of `count` items of `stride` bytes is not finite; branch-free inside, so that it vectorises.
template <class Word>
bool any_nonfinite(
    const std::byte* p, std::size_t count, std::size_t stride, std::size_t at, Word exponent) {
  unsigned bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Word w = 0;
    std::memcpy(&w, p + i * stride + at, sizeof w);
    bad |= static_cast<unsigned>((w & exponent) == exponent);
  }
  return bad != 0;
}

template <class Word>
std::optional<std::uint64_t> find_bad(std::span<const std::byte> bytes,
                                      std::size_t stride,
                                      ScaleFields fields,
                                      Word exponent) {
  const std::size_t count = bytes.size() / stride;
  constexpr std::size_t kChunk = 1024;
  const auto bad = [&](std::size_t first, std::size_t n) {
    const std::byte* p = bytes.data() + first * stride;
    return any_nonfinite<Word>(p, n, stride, fields.first, exponent) ||
           (fields.second != fields.first &&
            any_nonfinite<Word>(p, n, stride, fields.second, exponent));
  };
  for (std::size_t i = 0; i < count; i += kChunk) {
    const std::size_t n = std::min(kChunk, count - i);
    if (!bad(i, n)) continue;
    for (std::size_t j = i; j < i + n; ++j) {
      if (bad(j, 1)) return j;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> find_nonfinite(BlockType type, std::span<const std::byte> bytes) {
  assert(bytes.size() % block_bytes(type) == 0);
  if (type == BlockType::kF32) return find_bad<std::uint32_t>(bytes, 4, {0, 0}, 0x7F800000U);
  const std::uint16_t exponent = type == BlockType::kBF16 ? 0x7F80 : 0x7C00;
  return find_bad<std::uint16_t>(bytes, block_bytes(type), scale_fields(type), exponent);
}

void check_finite(const GgufFile& file,
                  const TensorInfo& tensor,
                  std::span<const std::byte> bytes,
                  std::uint64_t from) {
  assert(from % block_bytes(tensor.type) == 0);
  const auto bad = find_nonfinite(tensor.type, bytes);
  if (!bad) return;
  const std::uint64_t at = from + *bad * block_bytes(tensor.type);
  const std::uint64_t index = at / block_bytes(tensor.type);
  file.refuse_tensor(tensor,
                     (block_elements(tensor.type) == 1 ? "value " : "the scale of block ") +
                         std::to_string(index) + " is NaN or infinite",
                     at);
}

}  // namespace assay
