// A sequence's cache as bytes: in memory, and on disk so that a daemon goes on where it stopped. A snapshot is used only
// if it is complete, its digests hold and it was made by the same model, tokenizer, sources and numerics; anything else is
// a reason to start cold, never a wrong answer. Another's snapshots are kept: the file's name holds the fingerprint.
//
// File, little endian: header of 256 bytes (snapshot.cpp), token ids, rows as KvCache::save writes them, and of every
// checkpoint the rows of the local layers. SHA-256 over the header and over what follows it.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/forward.h"

namespace assay {

// Who may read a snapshot: SHA-256 in hex each. What changes a number is in it and nothing else is, so that a new commit
// alone leaves snapshots warm.
struct SnapshotIdentity {
  std::string model;      // of the file
  std::string tokenizer;  // of the vocabulary
  std::string build;      // of the forward pass's sources and the compiler
  std::string numerics;  // of lane, cache type, instruction set, and every op's variant and sources
  std::string digest() const;  // of all four
};
// Reads the model's file: whole up to 256 MiB, beyond that its first MiB and 4 KiB of every 256.
SnapshotIdentity snapshot_identity(const Model& model);

// The rows of local layers at an earlier position, see Sequence::local_rows.
struct Checkpoint {
  int position = 0;
  std::vector<std::byte> rows = {};
};

struct Snapshot {
  std::vector<TokenId> ids = {};     // tokens whose rows these are
  std::vector<std::byte> rows = {};  // KvCache::save, Part::kAll
  std::vector<Checkpoint> checkpoints = {};
  std::size_t bytes() const;
};
inline constexpr std::size_t kMaxCheckpoints = 4;

// What a snapshot must agree with.
struct SnapshotShape {
  SnapshotIdentity identity;
  int context = 0;
  int vocab = 0;
  KvType kv = KvType::kF32;
  std::function<std::size_t(int position, KvCache::Part part)> saved_bytes;  // KvCache::saved_bytes
};
// Refers to the model.
SnapshotShape snapshot_shape(const Model& model, const SnapshotIdentity& identity);

enum class SnapshotState {
  kGood,
  kMissing,
  kDamaged,  // incomplete or changed
  kForeign,  // of another model, tokenizer, build, numerics or format version
};
struct SnapshotRead {
  SnapshotState state = SnapshotState::kMissing;
  std::string reason = {};  // "snapshot of another model", for people and the log
  std::string kept = {};    // kForeign and kDamaged, of a folder: the file that holds it
  Snapshot snapshot = {};
};

// File parts in order: header, ids, rows, checkpoints' rows.
std::string snapshot_header(const Snapshot& snapshot, const SnapshotShape& shape);
std::string encode_snapshot(const Snapshot& snapshot, const SnapshotShape& shape);
// Never throws for what the bytes hold.
SnapshotRead decode_snapshot(std::string_view bytes, const SnapshotShape& shape);

// 1 to 64 letters, digits, '_', '-', '.', the first no '.': what a client may call a session or prefix.
bool is_snapshot_name(std::string_view name);
// NAME.FINGERPRINT.kv; UserError for a name that is no snapshot name but for its length (up to 80).
std::string snapshot_file(const std::string& name, const SnapshotIdentity& identity);

// The snapshots of one daemon on disk. One process at a time.
class SnapshotFolder {
 public:
  // Makes the folder, locks it and clears away what a killed process left half written. UserError when another process
  // has the lock; Error (exit 1) naming the path when the folder cannot be made or written.
  explicit SnapshotFolder(const std::string& path);
  ~SnapshotFolder();
  SnapshotFolder(const SnapshotFolder&) = delete;
  SnapshotFolder& operator=(const SnapshotFolder&) = delete;

  // The old file or the new one is there at every moment, also after a power cut. Error (exit 1) naming the path: the
  // old one stays. `step` is called after every part of the work (tests).
  void write(const std::string& name,
             const Snapshot& snapshot,
             const SnapshotShape& shape,
             const std::function<void()>& step = {}) const;
  // A damaged file is renamed: ".bad" behind its name. A foreign one is kept: it has another fingerprint in its name, or
  // is renamed: ".kept".
  SnapshotRead read(const std::string& name, const SnapshotShape& shape) const;

 private:
  SnapshotRead read_other(const std::string& name, const SnapshotShape& shape) const;

  std::string path_;
  int lock_ = -1;
};

}  // namespace assay
