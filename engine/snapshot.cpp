#include "engine/snapshot.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gnu/libc-version.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/build_id.h"
#include "kernels/base/device_info.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"
#include "kernels/base/sha256.h"

namespace assay {

// Over the sources of the forward pass outside the ops; generated at configure.
extern const std::string_view kForwardSources;

namespace {

// Offsets into the header; numbers are little endian.
constexpr std::string_view kMagic("ASSAYKV\x1a", 8);
constexpr std::size_t kVersionAt = 8;       // u32
constexpr std::size_t kHeaderBytesAt = 12;  // u32
constexpr std::size_t kFileBytesAt = 16;    // u64
constexpr std::size_t kIdsAt = 24;          // u32
constexpr std::size_t kKvAt = 28;           // u32: 0 f32, 1 f16
constexpr std::size_t kRowBytesAt = 32;     // u64
constexpr std::size_t kCheckpointsAt = 40;  // u32, then 4 zero bytes
constexpr std::size_t kIdentityAt = 48;     // four digests of 32 bytes
constexpr std::size_t kPayloadDigestAt = 176;
constexpr std::size_t kPositionsAt = 208;  // kMaxCheckpoints u32
constexpr std::size_t kHeaderDigestAt = 224;
constexpr std::size_t kHeaderBytes = 256;
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kWriteBytes = std::size_t{1} << 20;
constexpr const char* kNoFile = ": is not a regular file";
constexpr std::size_t kFingerprintDigits = 16;  // of SnapshotIdentity::digest, in a file's name

template <class T>
void put(std::string& header, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i)
    header[at + i] = static_cast<char>(value >> (8 * i));
}
template <class T>
T take(std::string_view header, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(header[at + i])) << (8 * i));
  }
  return value;
}

std::string raw_digest(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  out.resize(32);
  return out;
}
void put_digest(std::string& header, std::size_t at, const std::string& hex) {
  header.replace(at, 32, raw_digest(hex));
}

// Calls f(data, bytes) for everything behind the header.
template <class F>
void each_part(const Snapshot& s, F&& f) {
  f(s.ids.data(), s.ids.size() * sizeof(TokenId));
  f(s.rows.data(), s.rows.size());
  for (const Checkpoint& c : s.checkpoints) f(c.rows.data(), c.rows.size());
}

std::string model_digest(const std::string& path) {
  constexpr std::uint64_t kWhole = std::uint64_t{256} << 20;
  constexpr std::uint64_t kHead = std::uint64_t{1} << 20;
  constexpr std::uint64_t kStride = std::uint64_t{256} << 10;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat st {};
  if (fd < 0 || ::fstat(fd, &st) != 0) {
    if (fd >= 0) ::close(fd);
    throw InputError(path + ": cannot read: " + std::strerror(errno));
  }
  const auto size = static_cast<std::uint64_t>(st.st_size);
  Sha256 digest;
  std::vector<char> buffer(kHead);
  std::uint64_t at = 0;
  while (at < size) {
    const bool head = size <= kWhole || at < kHead;
    const ssize_t n =
        ::pread(fd, buffer.data(), head ? buffer.size() : 4096, static_cast<off_t>(at));
    if (n <= 0) break;
    digest.update(buffer.data(), static_cast<std::size_t>(n));
    at += head ? static_cast<std::uint64_t>(n) : kStride;
  }
  ::close(fd);
  digest.update(&size, sizeof size);
  return digest.hex();
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int reason = errno;
  if (fd >= 0) ::close(fd);
  if (!synced) throw Error(Exit::kCheckFailed, path + ": cannot sync: " + std::strerror(reason));
}

SnapshotRead bad(SnapshotState state, std::string reason) {
  return {.state = state, .reason = std::move(reason)};
}

}  // namespace

std::string SnapshotIdentity::digest() const {
  return sha256_hex(model + tokenizer + build + numerics);
}

SnapshotIdentity snapshot_identity(const Model& model) {
  Sha256 words;
  for (TokenId id = 0; id < model.tokenizer().vocab_size(); ++id) {
    const std::string_view text = model.tokenizer().token_text(id);
    words.update(text.data(), text.size());
    const char type = static_cast<char>(model.tokenizer().token_type(id));
    words.update(&type, 1);
  }
  std::string numerics = model.numerics() == Numerics::kFast ? "fast " : "exact ";
  numerics += to_string(model.kv_type());
  const DeviceInfo& cpu = host_device();
  numerics += std::string(cpu.avx2 ? " avx2" : "") + (cpu.avx512_vnni ? " avx512_vnni" : "");
  numerics += std::string(" libm ") + gnu_get_libc_version();  // picks its code by the CPU, too
  if (model.backend() == Backend::kCuda)
    numerics += " cc" + std::to_string(model.device().cc) + " " + build_id().cuda;
  for (const auto& [op, choice] : model.selection().choices) {
    const std::string served = choice.parity ? "stock" : choice.variant;
    numerics += " " + op + "=" + served + ":" + std::string(source_digest(op, served));
  }
  return {model_digest(model.path()),
          words.hex(),
          sha256_hex(std::string(kForwardSources) + build_id().compiler),
          sha256_hex(numerics)};
}

SnapshotShape snapshot_shape(const Model& model, const SnapshotIdentity& identity) {
  return {identity,
          model.context(),
          model.config().vocab,
          model.kv_type(),
          [&model](int position, KvCache::Part part) {
            return KvCache::saved_bytes(model.config(), model.kv_type(), position, part);
          }};
}

std::size_t Snapshot::bytes() const {
  std::size_t n = 0;
  each_part(*this, [&](const void*, std::size_t bytes) { n += bytes; });
  return n;
}

std::string snapshot_header(const Snapshot& s, const SnapshotShape& shape) {
  std::string h(kHeaderBytes, '\0');
  h.replace(0, kMagic.size(), kMagic);
  put<std::uint32_t>(h, kVersionAt, kVersion);
  put<std::uint32_t>(h, kHeaderBytesAt, kHeaderBytes);
  put<std::uint64_t>(h, kFileBytesAt, kHeaderBytes + s.bytes());
  put<std::uint32_t>(h, kIdsAt, static_cast<std::uint32_t>(s.ids.size()));
  put<std::uint32_t>(h, kKvAt, shape.kv == KvType::kF16 ? 1 : 0);
  put<std::uint64_t>(h, kRowBytesAt, s.rows.size());
  put<std::uint32_t>(h, kCheckpointsAt, static_cast<std::uint32_t>(s.checkpoints.size()));
  put_digest(h, kIdentityAt, shape.identity.model);
  put_digest(h, kIdentityAt + 32, shape.identity.tokenizer);
  put_digest(h, kIdentityAt + 64, shape.identity.build);
  put_digest(h, kIdentityAt + 96, shape.identity.numerics);
  for (std::size_t i = 0; i < s.checkpoints.size(); ++i) {
    put<std::uint32_t>(
        h, kPositionsAt + 4 * i, static_cast<std::uint32_t>(s.checkpoints[i].position));
  }
  Sha256 payload;
  each_part(s, [&](const void* data, std::size_t bytes) { payload.update(data, bytes); });
  put_digest(h, kPayloadDigestAt, payload.hex());
  put_digest(h, kHeaderDigestAt, sha256_hex(std::string_view(h).substr(0, kHeaderDigestAt)));
  return h;
}

std::string encode_snapshot(const Snapshot& s, const SnapshotShape& shape) {
  std::string out = snapshot_header(s, shape);
  each_part(s, [&](const void* data, std::size_t bytes) {
    out.append(static_cast<const char*>(data), bytes);
  });
  return out;
}

SnapshotRead decode_snapshot(std::string_view bytes, const SnapshotShape& shape) {
  constexpr auto kDamaged = SnapshotState::kDamaged;
  constexpr auto kForeign = SnapshotState::kForeign;
  if (bytes.size() < kHeaderBytes) return bad(kDamaged, "snapshot shorter than its header");
  const std::string_view header = bytes.substr(0, kHeaderBytes);
  if (!header.starts_with(kMagic)) return bad(kDamaged, "no snapshot");
  if (const auto v = take<std::uint32_t>(header, kVersionAt); v != kVersion) {
    return bad(kForeign, "snapshot of format version " + std::to_string(v));
  }
  if (raw_digest(sha256_hex(header.substr(0, kHeaderDigestAt))) != header.substr(kHeaderDigestAt)) {
    return bad(kDamaged, "snapshot with a damaged header");
  }
  // From here on the header is what a writer meant, though maybe another one.
  const struct {
    const char* what;
    const std::string& want;
  } parts[] = {{"model", shape.identity.model},
               {"tokenizer", shape.identity.tokenizer},
               {"build", shape.identity.build},
               {"numerics", shape.identity.numerics}};
  for (std::size_t i = 0; i < std::size(parts); ++i) {
    if (header.substr(kIdentityAt + 32 * i, 32) != raw_digest(parts[i].want)) {
      return bad(kForeign, std::string("snapshot of another ") + parts[i].what);
    }
  }
  if (take<std::uint32_t>(header, kKvAt) != (shape.kv == KvType::kF16 ? 1U : 0U)) {
    return bad(kForeign, "snapshot of another cache type");
  }
  const auto ids = take<std::uint32_t>(header, kIdsAt);
  const auto count = take<std::uint32_t>(header, kCheckpointsAt);
  if (ids > static_cast<std::uint32_t>(shape.context)) {
    return bad(kForeign, "snapshot longer than the context (" + std::to_string(ids) + " tokens)");
  }
  if (take<std::uint32_t>(header, kHeaderBytesAt) != kHeaderBytes || count > kMaxCheckpoints) {
    return bad(kDamaged, "snapshot with a damaged header");
  }
  Snapshot s;
  std::size_t expected = kHeaderBytes + ids * sizeof(TokenId);
  const std::size_t row_bytes = shape.saved_bytes(static_cast<int>(ids), KvCache::Part::kAll);
  expected += row_bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const auto position = take<std::uint32_t>(header, kPositionsAt + 4 * i);
    if (position > ids) return bad(kDamaged, "snapshot with a damaged header");
    const auto at = static_cast<int>(position);
    s.checkpoints.push_back({.position = at});
    expected += shape.saved_bytes(at, KvCache::Part::kLocal);
  }
  if (bytes.size() != expected || take<std::uint64_t>(header, kFileBytesAt) != expected ||
      take<std::uint64_t>(header, kRowBytesAt) != row_bytes) {
    return bad(kDamaged,
               "snapshot of " + std::to_string(bytes.size()) + " bytes instead of " +
                   std::to_string(expected));
  }
  Sha256 payload;
  payload.update(bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes);
  if (raw_digest(payload.hex()) != header.substr(kPayloadDigestAt, 32)) {
    return bad(kDamaged, "snapshot with damaged rows");
  }
  const char* at = bytes.data() + kHeaderBytes;
  const auto copy = [&](void* to, std::size_t n) {
    if (n > 0) std::memcpy(to, at, n);
    at += n;
  };
  s.ids.resize(ids);
  copy(s.ids.data(), ids * sizeof(TokenId));
  s.rows.resize(row_bytes);
  copy(s.rows.data(), row_bytes);
  for (Checkpoint& c : s.checkpoints) {
    c.rows.resize(shape.saved_bytes(c.position, KvCache::Part::kLocal));
    copy(c.rows.data(), c.rows.size());
  }
  for (const TokenId id : s.ids) {
    if (id < 0 || id >= shape.vocab)
      return bad(kDamaged, "snapshot with a token outside the vocabulary");
  }
  return {.state = SnapshotState::kGood, .snapshot = std::move(s)};
}

namespace {

bool plain_name(std::string_view name, std::size_t most) {
  return !name.empty() && name.size() <= most && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.';
         });
}

}  // namespace

bool is_snapshot_name(std::string_view name) { return plain_name(name, 64); }

std::string snapshot_file(const std::string& name, const SnapshotIdentity& identity) {
  if (!plain_name(name, 80))
    throw UserError("'" + name.substr(0, 80) + "' is no name for a snapshot");
  return name + "." + identity.digest().substr(0, kFingerprintDigits) + ".kv";
}

SnapshotFolder::SnapshotFolder(const std::string& path) : path_(path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  const std::string lock = path + "/lock";
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (lock_ < 0) {
    throw Error(Exit::kCheckFailed, path + ": cannot hold snapshots: " + std::strerror(errno));
  }
  struct stat st {};
  if (::fstat(lock_, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(lock_);
    throw UserError(lock + kNoFile);
  }
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    throw UserError(path + ": another process keeps its snapshots here");
  }
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string file = entry.path().filename().string();
    const std::size_t mark =
        file.rfind(".kv.tmp.");  // OutputFile's name for what it has not finished
    if (mark != std::string::npos &&
        file.find_first_not_of("0123456789", mark + 8) == std::string::npos) {
      std::filesystem::remove(entry.path(), error);
    }
  }
}
SnapshotFolder::~SnapshotFolder() { ::close(lock_); }

void SnapshotFolder::write(const std::string& name,
                           const Snapshot& snapshot,
                           const SnapshotShape& shape,
                           const std::function<void()>& step) const {
  const auto done = [&] {
    if (step) step();
  };
  const std::string path = path_ + "/" + snapshot_file(name, shape.identity);
  struct stat st {};
  // To write into a FIFO would wait for its reader.
  if (::lstat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode))
    throw Error(Exit::kCheckFailed, path + kNoFile);
  OutputFile out(path);
  done();
  const std::string header = snapshot_header(snapshot, shape);
  out.write(header.data(), header.size());
  done();
  each_part(snapshot, [&](const void* data, std::size_t bytes) {
    const char* at = static_cast<const char*>(data);
    for (std::size_t n = 0; bytes > 0; at += n, bytes -= n) {
      n = std::min(bytes, kWriteBytes);
      out.write(at, n);
      done();
    }
  });
  out.finish();
  done();
  sync_folder(path_);
  done();
}

SnapshotRead SnapshotFolder::read(const std::string& name, const SnapshotShape& shape) const {
  const std::string path = path_ + "/" + snapshot_file(name, shape.identity);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return read_other(name, shape);
  struct stat st {};
  SnapshotRead result;
  if (fd < 0 || ::fstat(fd, &st) != 0) {
    result = bad(SnapshotState::kDamaged, "snapshot that cannot be read");
  } else if (!S_ISREG(st.st_mode)) {
    result = bad(SnapshotState::kDamaged, "snapshot that is not a regular file");
  } else {
    // No larger than what the context can fill: a stray file does not become memory.
    const std::size_t most =
        kHeaderBytes + static_cast<std::size_t>(shape.context) * sizeof(TokenId) +
        (1 + kMaxCheckpoints) * shape.saved_bytes(shape.context, KvCache::Part::kAll);
    std::string bytes;
    if (static_cast<std::size_t>(st.st_size) <= most) {
      bytes.resize(static_cast<std::size_t>(st.st_size));
      std::size_t have = 0;
      while (have < bytes.size()) {
        const ssize_t n = ::read(fd, bytes.data() + have, bytes.size() - have);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        have += static_cast<std::size_t>(n);
      }
      bytes.resize(have);
      result = decode_snapshot(bytes, shape);
    } else {
      result = bad(SnapshotState::kDamaged, "snapshot larger than the context");
    }
  }
  if (fd >= 0) ::close(fd);
  // Out of the way; a foreign one of this fingerprint is of a larger context.
  if (result.state == SnapshotState::kDamaged) result.kept = path + ".bad";
  if (result.state == SnapshotState::kForeign) result.kept = path + ".kept";
  if (!result.kept.empty() && ::rename(path.c_str(), result.kept.c_str()) != 0) result.kept = path;
  return result;
}

// Why there is no file of this fingerprint although there is one of the name: the newest of another says it.
SnapshotRead SnapshotFolder::read_other(const std::string& name, const SnapshotShape& shape) const {
  SnapshotRead result = bad(SnapshotState::kMissing, "no snapshot");
  std::filesystem::file_time_type newest{};
  std::error_code error;
  for (std::filesystem::directory_iterator it(path_, error), end; !error && it != end;
       it.increment(error)) {
    const std::string file = it->path().filename().string();
    if (file.size() != name.size() + 1 + kFingerprintDigits + 3 || !file.starts_with(name + ".") ||
        !file.ends_with(".kv") || !it->is_regular_file(error))
      continue;
    const auto written = it->last_write_time(error);
    if (error || (result.state == SnapshotState::kForeign && written < newest)) continue;
    std::string header(kHeaderBytes, '\0');
    std::ifstream(it->path(), std::ios::binary)
        .read(header.data(), static_cast<std::streamsize>(header.size()));
    SnapshotRead other = decode_snapshot(header, shape);
    if (other.state != SnapshotState::kForeign) continue;
    result = std::move(other);
    result.kept = it->path().string();
    newest = written;
  }
  return result;
}

}  // namespace assay
