#include "engine/prefix_store.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/base/error.h"

namespace assay {
namespace {

constexpr std::size_t kNamesRemembered = 4096;

// Names of sessions and prefixes may be the same: their files differ.
std::string session_file(const std::string& name) { return "session." + name; }
std::string prefix_file(const std::string& name) { return "prefix." + name; }

}  // namespace

std::size_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                  a.begin());
}

std::size_t PrefixStore::Entry::bytes() const {
  std::size_t n = resident;
  for (const Checkpoint& c : checkpoints) n += c.rows.size();
  return n;
}

PrefixStore::PrefixStore(Model& model, const Settings& settings)
    : model_(model), settings_(settings), identity_(snapshot_identity(model)) {
  if (settings.folder.empty()) return;
  folder_ = std::make_unique<SnapshotFolder>(settings.folder);
  writer_ = std::make_unique<SnapshotWriter>(*folder_, shape(), settings.unwritten_bytes);
}
PrefixStore::~PrefixStore() = default;

SnapshotShape PrefixStore::shape() const { return snapshot_shape(model_, identity_); }

PrefixStore::Entry* PrefixStore::find(const std::string& name) {
  for (Entry& e : entries_) {
    if (e.name == name) return &e;
  }
  return nullptr;
}

// The nameless sequence that shares most with the prompt, unless most of it would be lost by the cut.
PrefixStore::Entry* PrefixStore::nearest(std::span<const TokenId> prompt) {
  Entry* best = nullptr;
  std::size_t most = 0;
  for (Entry& e : entries_) {
    if (!e.name.empty()) continue;
    const std::size_t n = common_prefix(e.ids, prompt);
    if (n > most && 2 * n >= e.ids.size()) {
      most = n;
      best = &e;
    }
  }
  return best;
}

PrefixStore::Entry& PrefixStore::make(const std::string& name) {
  entries_.push_front(
      {.name = name,
       .sequence = Sequence(
           model_.config(), model_.kv_type(), model_.context(), model_.space(), settings_.slack),
       .ids = {},
       .checkpoints = {}});
  return entries_.front();
}

PrefixStore::Cut PrefixStore::best_cut(const Entry& entry, int common) {
  if (entry.sequence.can_cut(common)) return {.at = common};
  Cut best;
  for (const Checkpoint& c : entry.checkpoints) {
    if (c.position <= common && c.position > best.at) best = {c.position, &c};
  }
  return best;
}

// A snapshot on disk that is no use: why, for the log and the turn.
void PrefixStore::refuse(const SnapshotRead& read, const std::string& whose, Cold& cold) {
  if (read.state == SnapshotState::kMissing) return;
  const bool damaged = read.state == SnapshotState::kDamaged;
  cold = {damaged ? "snapshot_damaged" : "snapshot_foreign", read.reason};
  event(damaged ? "damaged" : "refused",
        whose + ": " + read.reason + (read.kept.empty() ? "" : ", kept as " + read.kept));
}

// What waits for the disk is newer than what lies there.
SnapshotRead PrefixStore::load(const std::string& file) const {
  if (const auto waiting = writer_->waiting(file))
    return {.state = SnapshotState::kGood, .snapshot = *waiting};
  return folder_->read(file, shape());
}

void PrefixStore::listen(SnapshotListener listener) {
  if (writer_ != nullptr) writer_->listen(std::move(listener));
}
SnapshotWriter::Count PrefixStore::disk() const {
  return writer_ != nullptr ? writer_->count() : SnapshotWriter::Count{};
}

const Snapshot* PrefixStore::prefix(const std::string& name, Cold& cold) {
  auto it = prefixes_.find(name);
  if (it == prefixes_.end() && folder_ != nullptr) {
    SnapshotRead read = load(prefix_file(name));
    if (read.state == SnapshotState::kGood) {
      it = prefixes_
               .emplace(name, Prefix{std::make_shared<const Snapshot>(std::move(read.snapshot))})
               .first;
    } else {
      refuse(read, "prefix " + name, cold);
    }
  }
  if (it == prefixes_.end()) return nullptr;
  it->second.used = ++turn_;
  return it->second.snapshot.get();
}

void PrefixStore::from_disk(Entry& entry, Cold& cold) {
  if (folder_ == nullptr) return;
  SnapshotRead read = load(session_file(entry.name));
  if (read.state != SnapshotState::kGood) return refuse(read, "session " + entry.name, cold);
  entry.sequence.restore(static_cast<int>(read.snapshot.ids.size()), read.snapshot.rows.data());
  entry.ids = std::move(read.snapshot.ids);
  entry.checkpoints = std::move(read.snapshot.checkpoints);
  event("used",
        "session " + entry.name + " from disk, " + std::to_string(entry.ids.size()) + " tokens");
}

PrefixStore::Opened PrefixStore::open(Session& session,
                                      const std::string& session_name,
                                      const std::string& prefix_name,
                                      std::span<const TokenId> prompt) {
  if (open_) throw std::logic_error("a sequence is already open");
  Opened out;
  wants_capture_ = false;
  ++turn_;
  Cold cold{session_name.empty() ? "no_match" : "first_turn"};
  Entry* entry = session_name.empty() ? nearest(prompt) : find(session_name);
  if (entry == nullptr) {
    make_room(KvCache::bytes_for(model_.config(),
                                 model_.kv_type(),
                                 std::min(model_.context(), static_cast<int>(prompt.size())),
                                 settings_.slack));
    if (evicted_.erase(session_name) > 0) cold = {"evicted"};
    entry = &make(session_name);
    if (!session_name.empty()) from_disk(*entry, cold);
  } else {
    const auto at =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return &e == entry; });
    entries_.splice(entries_.begin(), entries_, at);
  }

  // One token at least is fed: the logits are its.
  const int most = static_cast<int>(prompt.size()) - 1;
  const int common = std::min(static_cast<int>(common_prefix(entry->ids, prompt)), most);
  Cut cut = best_cut(*entry, common);
  if (cut.at == 0 && !entry->ids.empty()) {
    cold = {common == 0 ? "history_changed" : "ring_overwritten"};
  }
  const Snapshot* start = prefix_name.empty() ? nullptr : prefix(prefix_name, cold);
  if (!prefix_name.empty()) {
    const bool fits = start != nullptr && static_cast<int>(start->ids.size()) <= most &&
                      common_prefix(start->ids, prompt) == start->ids.size();
    if (start != nullptr && !fits) cold = {"prefix_mismatch"};
    wants_capture_ = !fits;
    if (!fits) start = nullptr;
  }

  auto& sequence = entry->sequence;
  if (start != nullptr && static_cast<int>(start->ids.size()) > cut.at) {
    out.reused = static_cast<int>(start->ids.size());
    sequence.restore(out.reused, start->rows.data());
    entry->checkpoints.clear();
    event("used", "prefix " + prefix_name + ", " + std::to_string(out.reused) + " tokens");
  } else {
    out.reused = cut.at;
    if (cut.from != nullptr) {
      sequence.restore_local(cut.at, cut.from->rows.data());
    } else {
      sequence.cut(cut.at);
    }
    std::erase_if(entry->checkpoints, [&](const Checkpoint& c) { return c.position > out.reused; });
  }
  entry->ids.assign(prompt.begin(), prompt.begin() + out.reused);
  if (out.reused == 0) {
    out.cold_reason = cold.detail.empty() ? cold.kind : cold.kind + " (" + cold.detail + ")";
    ++count_.cold[cold.kind];
    ++count_.misses;
  } else {
    ++count_.hits;
    count_.reused_tokens += static_cast<std::uint64_t>(out.reused);
  }
  session.exchange(sequence);
  open_ = true;
  return out;
}

void PrefixStore::checkpoint(const Session& session) {
  auto& list = entries_.front().checkpoints;
  const int position = session.position();
  if (!list.empty() && list.back().position >= position) return;
  if (list.size() == kMaxCheckpoints) list.erase(list.begin());
  list.push_back({position, session.sequence().local_rows()});
}

void PrefixStore::capture(const std::string& name,
                          const Session& session,
                          std::span<const TokenId> ids) {
  const auto snapshot = std::make_shared<const Snapshot>(
      Snapshot{.ids = {ids.begin(), ids.end()}, .rows = session.sequence().rows()});
  save(prefix_file(name), snapshot);
  prefixes_[name] = {snapshot, turn_};
  wants_capture_ = false;
}

void PrefixStore::save(const std::string& file, std::shared_ptr<const Snapshot> snapshot) {
  if (writer_ != nullptr) writer_->put(file, std::move(snapshot));
}

void PrefixStore::close(Session& session, std::span<const TokenId> ids) {
  Entry& entry = entries_.front();
  session.exchange(entry.sequence);
  open_ = false;
  entry.ids.assign(ids.begin(), ids.end());
  std::erase_if(entry.checkpoints,
                [&](const Checkpoint& c) { return c.position > entry.sequence.position; });
  if (!entry.name.empty() && folder_ != nullptr) {
    save(session_file(entry.name),
         std::make_shared<const Snapshot>(
             Snapshot{entry.ids, entry.sequence.rows(), entry.checkpoints}));
  }
  entry.resident = KvCache::bytes_for(
      model_.config(),
      model_.kv_type(),
      std::clamp(entry.sequence.reserved, std::max(1, entry.sequence.position), model_.context()),
      settings_.slack);
  make_room(0);
}

void PrefixStore::drop(Session& session) {
  session.exchange(entries_.front().sequence);
  open_ = false;
  entries_.pop_front();
  measure();
}

std::set<std::string> PrefixStore::warm_prefixes() const {
  std::set<std::string> names;
  for (const auto& [name, ignored] : prefixes_) names.insert(name);
  return names;
}

void PrefixStore::measure() {
  count_.resident_bytes = 0;
  count_.resident_sequences = entries_.size();
  for (const Entry& e : entries_) count_.resident_bytes += e.bytes();
  for (const auto& [name, p] : prefixes_) count_.resident_bytes += p.snapshot->bytes();
}

// Forgets what was used longest ago, sequences before prefixes, never the one in use.
void PrefixStore::make_room(std::size_t wanted) {
  measure();
  const std::size_t kept = wanted > 0 ? 0 : 1;
  while (count_.resident_bytes + wanted > settings_.budget_bytes && entries_.size() > kept) {
    const Entry& last = entries_.back();
    if (!last.name.empty()) {
      if (evicted_.size() >= kNamesRemembered) evicted_.clear();
      evicted_.insert(last.name);
    }
    event("evicted",
          (last.name.empty() ? "a sequence" : "session " + last.name) + ", " +
              std::to_string(last.ids.size()) + " tokens");
    entries_.pop_back();
    ++count_.evictions;
    measure();
  }
  while (count_.resident_bytes + wanted > settings_.budget_bytes && !prefixes_.empty()) {
    const auto last =
        std::min_element(prefixes_.begin(), prefixes_.end(), [](const auto& a, const auto& b) {
          return a.second.used < b.second.used;
        });
    event("evicted", "prefix " + last->first);
    prefixes_.erase(last);
    ++count_.evictions;
    measure();
  }
}

}  // namespace assay
