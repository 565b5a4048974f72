// The sequences that stay in memory between turns, so that a turn computes only what is new in it. Sessions have a name,
// the others are found by their tokens; a named prefix (persona and tools, say) is captured once and starts sessions.
// For one thread, the engine's.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/forward.h"
#include "engine/snapshot.h"
#include "engine/snapshot_writer.h"

namespace assay {

// The longest common prefix of two sequences.
std::size_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b);

class PrefixStore {
 public:
  struct Settings {
    std::size_t budget_bytes = std::size_t{1} << 30;  // of all that stays resident
    int slack = 64;           // tokens that a sequence can be cut back by at any time
    std::string folder = {};  // of snapshots; empty: memory only
    std::size_t unwritten_bytes = std::size_t{256} << 20;  // of snapshots that wait for the disk
  };
  // UserError and Error as SnapshotFolder.
  PrefixStore(Model& model, const Settings& settings);
  ~PrefixStore();

  // What became of the last open() and close(), for the log, /v1/events and metrics.
  struct Event {
    std::string what;  // one word: used, refused, damaged, evicted
    std::string detail;
  };
  struct Opened {
    int reused = 0;  // tokens of the prompt that are in the cache
    // When reused is 0: first_turn, evicted, no_match, history_changed, ring_overwritten, prefix_mismatch, or snapshot_damaged and
    // snapshot_foreign with the reason in brackets.
    std::string cold_reason;
  };

  // Puts the best sequence for the prompt into `session` (made with Settings::slack), cut back to what it shares with
  // the prompt but at most all of it but one token. session, prefix: names, or empty.
  Opened open(Session& session,
              const std::string& session_name,
              const std::string& prefix_name,
              std::span<const TokenId> prompt);
  // Between open and close. A checkpoint at the session's position: the sequence can later be cut back to it.
  void checkpoint(const Session& session);
  // Between open and close. The session's rows so far become the named prefix, in memory and on disk.
  void capture(const std::string& prefix_name,
               const Session& session,
               std::span<const TokenId> ids);
  // Takes the sequence back. ids: all tokens whose rows it holds. A named session goes to disk, when there is a folder,
  // without the caller waiting for it; the last versions are there once the store is gone.
  void close(Session& session, std::span<const TokenId> ids);
  // Takes the sequence back and forgets it: its rows are not to be trusted.
  void drop(Session& session);

  bool warm(const std::string& prefix_name) const { return prefixes_.contains(prefix_name); }
  std::set<std::string> warm_prefixes() const;
  bool wants_capture() const { return wants_capture_; }  // the prefix named in open() was not there
  std::vector<Event> take_events() { return std::exchange(events_, {}); }
  // Told "written" and "failed", from another thread.
  void listen(SnapshotListener listener);

  struct Count {
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::uint64_t evictions = 0;
    std::uint64_t reused_tokens = 0;
    std::size_t resident_bytes = 0;
    std::size_t resident_sequences = 0;
    std::map<std::string, std::uint64_t> cold;  // by reason, without brackets
  };
  const Count& count() const { return count_; }
  SnapshotWriter::Count disk() const;  // any thread
  const SnapshotIdentity& identity() const { return identity_; }

 private:
  struct Entry {
    std::string name;  // session; empty: found by tokens
    Sequence sequence;
    std::vector<TokenId> ids;
    std::vector<Checkpoint> checkpoints;  // by position
    std::size_t resident = 0;
    std::size_t bytes() const;
  };
  struct Prefix {
    std::shared_ptr<const Snapshot> snapshot;
    std::uint64_t used = 0;
  };
  // Why a turn starts cold.
  struct Cold {
    std::string kind;
    std::string detail = {};
  };
  struct Cut {
    int at = 0;
    const Checkpoint* from = nullptr;  // null: the ring still holds the rows
  };

  Entry* find(const std::string& name);
  Entry* nearest(std::span<const TokenId> prompt);
  Entry& make(const std::string& name);
  static Cut best_cut(const Entry& entry, int common);
  const Snapshot* prefix(const std::string& name, Cold& cold);
  void from_disk(Entry& entry, Cold& cold);
  void refuse(const SnapshotRead& read, const std::string& whose, Cold& cold);
  SnapshotShape shape() const;
  void save(const std::string& file, std::shared_ptr<const Snapshot> snapshot);
  SnapshotRead load(const std::string& file) const;
  void make_room(std::size_t wanted);
  void measure();
  void event(std::string what, std::string detail) {
    events_.push_back({std::move(what), std::move(detail)});
  }

  Model& model_;
  Settings settings_;
  SnapshotIdentity identity_;
  std::unique_ptr<SnapshotFolder> folder_;
  std::unique_ptr<SnapshotWriter> writer_;  // with a folder
  std::list<Entry> entries_;                // the last used first
  std::set<std::string>
      evicted_;  // sessions that memory had no room for, to say so when they come back
  std::map<std::string, Prefix> prefixes_;
  std::uint64_t turn_ = 0;
  bool open_ = false;
  bool wants_capture_ = false;
  std::vector<Event> events_;
  Count count_;
};

}  // namespace assay
