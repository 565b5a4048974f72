// The kept cache: a turn that goes on from it gives the bits of a cold run, whether the rows stayed in memory, were cut
// back, or come from disk; and a file that is not exactly what was written is never used.
#include "engine/snapshot.h"

#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>

#include "gtest/gtest.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/golden.h"
#include "engine/prefix_store.h"
#include "engine/snapshot_writer.h"
#include "kernels/base/error.h"
#include "kernels/base/rng.h"
#include "kernels/base/sha256.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

constexpr int kWindow = 128;  // of the shipped model's local layers

ModelSettings settings(Numerics numerics = Numerics::kFast) {
  return {.numerics = numerics,
          .threads = 2,
          .context = 640,
          .chunk = 64,
          .selection = vector_variants("avx2")};
}
Model& model() {
  static Model m(kShippedModel, settings());
  return m;
}
const SnapshotIdentity& identity() {
  static const SnapshotIdentity i = snapshot_identity(model());
  return i;
}

std::vector<TokenId> some_ids(std::size_t n, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<TokenId> ids{*model().tokenizer().bos()};
  while (ids.size() < n) ids.push_back(static_cast<TokenId>(300 + rng.below(3000)));
  return ids;
}
std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
std::vector<float> cold_logits(Model& m, std::span<const TokenId> ids) {
  Session session(m);
  const auto row = session.feed(ids);
  return {row.begin(), row.end()};
}
void expect_bits(std::span<const float> got,
                 const std::vector<float>& want,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << what;
}

class Snapshots : public testing::Test {
 protected:
  Snapshots() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Snapshots() override { fs::remove_all(folder_); }
  std::string folder_ = (fs::path(testing::TempDir()) /
                         ("assay_snapshots_" + std::to_string(::getpid()) + "_" +
                          testing::UnitTest::GetInstance()->current_test_info()->name()))
                            .string();
};

// One turn through the store: what was reused, and the logits of the prompt's last token.
struct Turn {
  PrefixStore::Opened opened;
  std::vector<float> logits;
};
Turn run_turn(PrefixStore& store,
              Session& session,
              const std::vector<TokenId>& prompt,
              const std::string& name = "s",
              const std::vector<TokenId>& reply = {},
              const std::string& prefix = {},
              int capture_at = 0) {
  Turn t;
  t.opened = store.open(session, name, prefix, prompt);
  std::span<const TokenId> rest(prompt);
  if (store.wants_capture() && capture_at > t.opened.reused) {
    session.feed(rest.subspan(static_cast<std::size_t>(t.opened.reused),
                              static_cast<std::size_t>(capture_at - t.opened.reused)));
    store.capture(prefix, session, rest.first(static_cast<std::size_t>(capture_at)));
  }
  const auto row = session.feed(rest.subspan(static_cast<std::size_t>(session.position())));
  t.logits.assign(row.begin(), row.end());
  store.checkpoint(session);
  if (!reply.empty()) session.feed(reply);
  store.close(session, joined(prompt, reply));
  return t;
}

TEST_F(Snapshots, TurnTwoComputesOnlyWhatIsNewAndGivesTheBitsOfAColdRun) {
  PrefixStore store(model(), {.slack = 16});
  Session session(model(), 16);
  const auto first = some_ids(200, 1);
  const auto reply = some_ids(30, 2);
  EXPECT_EQ(run_turn(store, session, first, "s", reply).opened.cold_reason, "first_turn");
  const auto second = joined(joined(first, reply), some_ids(40, 3));
  const Turn two = run_turn(store, session, second, "s", some_ids(50, 9));
  EXPECT_EQ(two.opened.reused, 230);
  EXPECT_EQ(two.opened.cold_reason, "");
  expect_bits(two.logits, cold_logits(model(), second), "turn two");
  // The reply was changed by the client (a thought dropped): back to the checkpoint at the end of the prompt.
  const auto third = joined(second, some_ids(60, 4));
  const Turn three = run_turn(store, session, third);
  EXPECT_EQ(three.opened.reused, 270);
  expect_bits(three.logits, cold_logits(model(), third), "turn three");
  // The same prompt again: all but its last token.
  const Turn again = run_turn(store, session, third);
  EXPECT_EQ(again.opened.reused, 329);
  expect_bits(again.logits, three.logits, "again");
  // Another conversation in the same session.
  const auto fresh = some_ids(50, 5);
  const Turn other = run_turn(store, session, fresh);
  EXPECT_EQ(other.opened.reused, 0);
  EXPECT_EQ(other.opened.cold_reason, "ring_overwritten");
  expect_bits(other.logits, cold_logits(model(), fresh), "another conversation");
}

TEST_F(Snapshots, CutsWhereTheRowsAreStillHeldAndNowhereElse) {
  for (const int slack : {0, 16}) {
    for (const int length : {90, kWindow, 200}) {
      const auto ids = some_ids(static_cast<std::size_t>(length), 7);
      for (const int at : {0,
                           1,
                           length / 2,
                           length - slack - 2,
                           length - slack - 1,
                           length - slack,
                           length - 1,
                           length}) {
        Session session(model(), slack);
        session.feed(ids);
        Sequence& sequence = session.sequence();
        const bool held = at == 0 || length <= kWindow + slack ||
                          at - (kWindow - 1) >= length - (kWindow + slack);
        ASSERT_EQ(sequence.can_cut(at), held)
            << "slack " << slack << " length " << length << " at " << at;
        if (!held) {
          EXPECT_THROW(sequence.cut(at), std::logic_error);
          continue;
        }
        if (at == length / 2 || at == length) continue;  // the others are enough for the slow part
        sequence.cut(at);
        auto other = std::vector<TokenId>(ids.begin(), ids.begin() + at);
        const auto tail = some_ids(20, 8);
        const auto row = session.feed(tail);
        expect_bits(row, cold_logits(model(), joined(other, tail)), "cut at " + std::to_string(at));
      }
    }
  }
}

TEST_F(Snapshots, RandomConversationsAlwaysGiveTheBitsOfAColdRun) {
  PrefixStore store(model(), {.slack = 8});
  Session session(model(), 8);
  Rng rng(11);
  std::vector<TokenId> history = some_ids(20, 1);
  int reused = 0;
  for (int turn = 0; turn < 14; ++turn) {
    if (rng.below(3) == 0) history.resize(1 + rng.below(history.size()));
    if (history.size() > 450) history.resize(60);
    history = joined(history, some_ids(1 + rng.below(80), 100 + static_cast<std::uint64_t>(turn)));
    const auto reply = some_ids(1 + rng.below(60), 200 + static_cast<std::uint64_t>(turn));
    const Turn t = run_turn(store, session, history, turn % 4 == 0 ? "" : "s", reply);
    expect_bits(t.logits, cold_logits(model(), history), "turn " + std::to_string(turn));
    reused += t.opened.reused;
    history = joined(history, reply);
  }
  EXPECT_GT(reused, 300);
}

TEST_F(Snapshots, ARestartGoesOnFromDisk) {
  const auto first = some_ids(200, 1);
  const auto reply = some_ids(30, 2);
  const auto second = joined(joined(first, reply), some_ids(40, 3));
  const auto changed = joined(first, some_ids(25, 6));
  const auto want = cold_logits(model(), second);
  {
    PrefixStore store(model(), {.folder = folder_});
    Session session(model(), 64);
    run_turn(store, session, first, "talk", reply);
  }
  {
    PrefixStore store(model(), {.folder = folder_});
    Session session(model(), 64);
    const Turn t = run_turn(store, session, second, "talk");
    EXPECT_EQ(t.opened.reused, 230);
    expect_bits(t.logits, want, "from disk");
  }
  {  // cut back to a checkpoint that came from disk
    PrefixStore store(model(), {.folder = folder_});
    Session session(model(), 64);
    const Turn t = run_turn(store, session, changed, "talk");
    EXPECT_EQ(t.opened.reused, 200);
    expect_bits(t.logits, cold_logits(model(), changed), "checkpoint from disk");
  }
  {  // damage: cold, the reason said, the file set aside, and the same logits
    const std::string path = folder_ + "/" + snapshot_file("session.talk", identity());
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.put('\x55');
    file.close();
    PrefixStore store(model(), {.folder = folder_});
    Session session(model(), 64);
    const Turn t = run_turn(store, session, second, "talk");
    EXPECT_EQ(t.opened.reused, 0);
    EXPECT_EQ(t.opened.cold_reason, "snapshot_damaged (snapshot with damaged rows)");
    expect_bits(t.logits, want, "after damage");
    EXPECT_TRUE(fs::exists(path + ".bad"));
  }
}

TEST_F(Snapshots, OtherModelsAndNumericsAreRefused) {
  const auto ids = some_ids(40, 1);
  {
    PrefixStore store(model(), {.folder = folder_});
    Session session(model(), 64);
    run_turn(store, session, ids, "talk");
  }
  const std::string other_path = folder_ + "/other.gguf";
  {  // one byte of one weight differs
    std::ifstream in(kShippedModel, std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(in), {});
    bytes[bytes.size() - 1000] = static_cast<char>(bytes[bytes.size() - 1000] ^ 1);
    std::ofstream(other_path, std::ios::binary) << bytes;
  }
  const struct {
    std::string path;
    ModelSettings with;
    const char* says;
  } others[] = {{other_path, settings(), "another model"},
                {kShippedModel, settings(Numerics::kExact), "another numerics"}};
  for (const auto& o : others) {
    // The newest of the others is what the reason speaks of.
    fs::last_write_time(folder_ + "/" + snapshot_file("session.talk", identity()),
                        fs::file_time_type::clock::now());
    Model other(o.path, o.with);
    const auto want = cold_logits(other, ids);
    PrefixStore store(other, {.folder = folder_});
    Session session(other, 64);
    const Turn t = run_turn(store, session, ids, "talk");
    EXPECT_EQ(t.opened.reused, 0);
    EXPECT_EQ(t.opened.cold_reason, std::string("snapshot_foreign (snapshot of ") + o.says + ")");
    expect_bits(t.logits, want, o.says);
    const auto told = store.take_events().at(0);
    EXPECT_EQ(told.what, "refused");
    EXPECT_NE(told.detail.find("kept as " + folder_), std::string::npos) << told.detail;
  }
  // Every one has its own file: the first model finds its rows where it left them.
  {
    PrefixStore store(model(), {.folder = folder_});
    Session session(model(), 64);
    EXPECT_EQ(run_turn(store, session, joined(ids, some_ids(5, 2)), "talk").opened.reused, 40);
  }
  // Of a larger context: it is set aside.
  ModelSettings narrow = settings();
  narrow.context = 30;
  Model small(kShippedModel, narrow);
  PrefixStore store(small, {.folder = folder_});
  Session session(small, 64);
  EXPECT_EQ(run_turn(store, session, some_ids(20, 1), "talk").opened.cold_reason,
            "snapshot_foreign (snapshot longer than the context (45 tokens))");
  EXPECT_TRUE(fs::exists(folder_ + "/" + snapshot_file("session.talk", identity()) + ".kept"));
}

// What the fingerprint is made of: numbers that may differ, and nothing else.
TEST_F(Snapshots, TheFingerprintFollowsTheNumbers) {
  const auto with = [](auto change) {
    ModelSettings s = settings();
    change(s);
    return snapshot_identity(Model(kShippedModel, s)).digest();
  };
  const std::string own = identity().digest();
  EXPECT_EQ(with([](ModelSettings& s) { s.threads = 1; }), own);
  EXPECT_EQ(with([](ModelSettings& s) { s.context = 64; }), own);
  EXPECT_NE(with([](ModelSettings& s) { s.numerics = Numerics::kExact; }), own);
  EXPECT_NE(with([](ModelSettings& s) { s.kv = KvType::kF32; }), own);
  EXPECT_NE(with([](ModelSettings& s) { s.selection = vector_variants("avx512"); }), own);
  // Under parity stock is served.
  const auto parity = [](ModelSettings& s) {
    for (auto& [op, choice] : s.selection.choices) choice.parity = true;
  };
  EXPECT_EQ(with(parity), with([](ModelSettings& s) {
              for (auto& [op, choice] : s.selection.choices) choice.variant = "stock";
            }));
}

TEST_F(Snapshots, APrefixIsCapturedOnceAndStartsSessions) {
  const auto persona = some_ids(150, 1);
  {
    PrefixStore store(model(), {.folder = folder_});
    Session session(model(), 64);
    const auto a = joined(persona, some_ids(20, 2));
    EXPECT_FALSE(store.warm("persona"));
    expect_bits(run_turn(store, session, a, "a", {}, "persona", 150).logits,
                cold_logits(model(), a),
                "capture");
    EXPECT_TRUE(store.warm("persona"));
    const auto b = joined(persona, some_ids(20, 3));
    const Turn t = run_turn(store, session, b, "b", {}, "persona", 150);
    EXPECT_EQ(t.opened.reused, 150);
    expect_bits(t.logits, cold_logits(model(), b), "second session");
  }
  PrefixStore store(model(), {.folder = folder_});
  Session session(model(), 64);
  const auto c = joined(persona, some_ids(20, 4));
  const Turn t = run_turn(store, session, c, "c", {}, "persona", 150);
  EXPECT_EQ(t.opened.reused, 150);
  expect_bits(t.logits, cold_logits(model(), c), "from disk");
  const Turn no = run_turn(store, session, some_ids(30, 77), "d", {}, "persona", 10);
  EXPECT_EQ(no.opened.cold_reason, "prefix_mismatch");
}

TEST_F(Snapshots, TheBudgetEvictsTheLeastRecentlyUsed) {
  const std::size_t one = KvCache::bytes_for(model().config(), model().kv_type(), 60, 64);
  PrefixStore store(model(), {.budget_bytes = one * 7 / 2});
  Session session(model(), 64);
  for (const char* name : {"a", "b", "c", "a", "d", "e"})
    run_turn(store, session, some_ids(50, 1), name);
  EXPECT_LE(store.count().resident_bytes, one * 7 / 2);
  EXPECT_GE(store.count().evictions, 2U);
  const auto longer = some_ids(51, 1);
  EXPECT_EQ(run_turn(store, session, longer, "e").opened.reused, 50);
  EXPECT_EQ(run_turn(store, session, longer, "b").opened.cold_reason, "evicted");
}

// ---- files ----

Snapshot small_snapshot(std::uint64_t seed) {
  Session session(model());
  Snapshot s;
  s.ids = some_ids(3, seed);
  session.feed(s.ids);
  s.rows = session.sequence().rows();
  s.checkpoints.push_back(
      {2,
       std::vector<std::byte>(session.cache().saved_bytes(2, KvCache::Part::kLocal),
                              std::byte{1})});
  return s;
}
SnapshotShape shape() { return snapshot_shape(model(), identity()); }

TEST_F(Snapshots, TheSizeIsThatOfWhatACacheSaves) {
  const Session session(model());
  for (const auto part : {KvCache::Part::kLocal, KvCache::Part::kAll}) {
    for (int position = 0; position <= model().context(); ++position) {
      ASSERT_EQ(shape().saved_bytes(position, part), session.cache().saved_bytes(position, part))
          << position;
    }
  }
}

TEST_F(Snapshots, EveryFlipAndEveryCutIsNoticed) {
  const std::string whole = encode_snapshot(small_snapshot(1), shape());
  const SnapshotRead good = decode_snapshot(whole, shape());
  ASSERT_EQ(good.state, SnapshotState::kGood) << good.reason;
  EXPECT_EQ(encode_snapshot(good.snapshot, shape()), whole);
  Rng rng(5);
  const auto refused = [&](const std::string& bytes) {
    const SnapshotRead r = decode_snapshot(bytes, shape());
    return (r.state == SnapshotState::kDamaged || r.state == SnapshotState::kForeign) &&
           !r.reason.empty();
  };
  for (std::size_t i = 0; i < 256; ++i) {
    for (const unsigned flip : {1U, 0x80U, 0xFFU}) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(static_cast<unsigned char>(bytes[i]) ^ flip);
      EXPECT_TRUE(refused(bytes)) << "header byte " << i;
    }
  }
  for (int k = 0; k < 1000; ++k) {
    std::string bytes = whole;
    const std::size_t at = 256 + rng.below(bytes.size() - 256);
    bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << rng.below(8)));
    ASSERT_TRUE(refused(bytes)) << "byte " << at;
  }
  for (std::size_t n = 0; n < whole.size(); n += n < 300 ? 1 : 97)
    ASSERT_TRUE(refused(whole.substr(0, n))) << n;
  EXPECT_TRUE(refused(whole + "x"));
  // A header with right digests and impossible numbers: lengths of 4G, positions behind the end.
  for (const auto& [at, bytes] : std::vector<std::pair<std::size_t, int>>{
           {8, 4}, {12, 4}, {16, 8}, {24, 4}, {28, 4}, {32, 8}, {40, 4}, {208, 4}}) {
    std::string forged = whole;
    for (int i = 0; i < bytes; ++i) forged[at + static_cast<std::size_t>(i)] = '\xFF';
    const std::string digest = sha256_hex(std::string_view(forged).substr(0, 224));
    for (std::size_t i = 0; i < 32; ++i) {
      forged[224 + i] = static_cast<char>(std::stoi(digest.substr(2 * i, 2), nullptr, 16));
    }
    EXPECT_TRUE(refused(forged)) << "field at " << at;
  }
}

TEST_F(Snapshots, NamesStayInTheFolderAndTheFolderHasOneOwner) {
  SnapshotFolder folder(folder_);
  for (const char* name : {"", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a b", "a\nb"}) {
    EXPECT_FALSE(is_snapshot_name(name)) << name;
    EXPECT_THROW((void)snapshot_file(name, identity()), UserError) << name;
  }
  EXPECT_FALSE(is_snapshot_name(std::string(65, 'a')));
  EXPECT_TRUE(is_snapshot_name("a.B-c_9"));
  try {
    SnapshotFolder second(folder_);
    ADD_FAILURE() << "two owners";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("another process"), std::string::npos);
  }
  EXPECT_THROW(SnapshotFolder("/proc/nothing"), Error);
}

TEST_F(Snapshots, ReadsOnlyRegularFilesOfABelievableSize) {
  SnapshotFolder folder(folder_);
  const auto path = [&](const char* name) {
    return folder_ + "/" + snapshot_file(name, identity());
  };
  EXPECT_EQ(folder.read("missing", shape()).state, SnapshotState::kMissing);
  fs::create_directory(path("dir"));
  EXPECT_EQ(folder.read("dir", shape()).state, SnapshotState::kDamaged);
  fs::create_symlink("/dev/zero", path("zero"));
  EXPECT_EQ(folder.read("zero", shape()).state, SnapshotState::kDamaged);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(folder.read("pipe", shape()).state, SnapshotState::kDamaged);
  std::ofstream(path("huge")).close();
  fs::resize_file(path("huge"), std::uintmax_t{1} << 36);
  EXPECT_EQ(folder.read("huge", shape()).reason, "snapshot larger than the context");
  std::ofstream(path("empty")).close();
  EXPECT_EQ(folder.read("empty", shape()).reason, "snapshot shorter than its header");
}

// A full disk (here a limit on the file's size) leaves the old snapshot and says so.
TEST_F(Snapshots, AFullDiskLeavesTheOldOne) {
  SnapshotFolder folder(folder_);
  const Snapshot old = small_snapshot(1);
  folder.write("x", old, shape());
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 5000;
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(folder.write("x", small_snapshot(2), shape()), Error);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(folder.read("x", shape()).snapshot.rows, old.rows);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2) << "the lock and the snapshot";
}

// ---- the writer ----

std::shared_ptr<const Snapshot> shared_snapshot(std::uint64_t seed) {
  return std::make_shared<const Snapshot>(small_snapshot(seed));
}

// The disk stands still in the middle of the first write until `go`.
TEST_F(Snapshots, TheNewestVersionIsWrittenAndNobodyWaits) {
  SnapshotFolder folder(folder_);
  std::promise<void> go;
  std::promise<void> reached;
  std::once_flag first;
  std::vector<std::string> told;
  const auto v1 = shared_snapshot(1);
  const auto v3 = shared_snapshot(3);
  {
    SnapshotWriter writer(folder, shape(), v1->bytes(), [&] {
      std::call_once(first, [&] {
        reached.set_value();
        go.get_future().wait();
      });
    });
    writer.listen([&](std::string_view what, std::string_view detail) {
      told.push_back(std::string(what) + " " + std::string(detail));
    });
    writer.put("a", v1);
    reached.get_future().wait();
    EXPECT_EQ(writer.waiting("a"), v1);  // still: it is not on disk yet
    writer.put("a", shared_snapshot(2));
    writer.put("a", v3);
    EXPECT_EQ(writer.waiting("a"), v3);
    EXPECT_EQ(writer.waiting("b"), nullptr);
    writer.put("b", v1);  // does not fit beside what waits
    ASSERT_EQ(told.size(), 1U);
    EXPECT_EQ(told[0],
              "failed b: " + std::to_string(v1->bytes()) + " bytes, and " +
                  std::to_string(v3->bytes()) + " still wait for the disk");
    const auto count = writer.count();
    EXPECT_EQ(count.written, 0U);
    EXPECT_EQ(count.replaced, 1U);
    EXPECT_EQ(count.failed, 1U);
    EXPECT_EQ(count.waiting_bytes, v3->bytes());
    go.set_value();
  }  // its end waits for the disk
  EXPECT_EQ(folder.read("a", shape()).snapshot.rows, v3->rows);
  EXPECT_EQ(folder.read("b", shape()).state, SnapshotState::kMissing);
  EXPECT_EQ(told.size(), 3U);
}

TEST_F(Snapshots, AWriteThatFailsIsCountedWithItsReason) {
  SnapshotFolder folder(folder_);
  std::promise<std::string> told;
  SnapshotWriter writer(folder, shape(), 1);
  writer.listen([&](std::string_view what, std::string_view detail) {
    told.set_value(std::string(what) + " " + std::string(detail));
  });
  fs::remove_all(folder_);
  writer.put("a", shared_snapshot(1));
  const std::string got = told.get_future().get();
  EXPECT_EQ(got.rfind("failed a: " + folder_, 0), 0U) << got;
  EXPECT_NE(got.find("No such file"), std::string::npos) << got;
  EXPECT_EQ(writer.count().failed, 1U);
  EXPECT_EQ(writer.count().written, 0U);
}

// kill -9 at every point of a write, and while the file grows: what is there afterwards is the old or the new one.
void kill_at_points(const std::string& path, int points) {
  const Snapshot old = small_snapshot(1);
  Snapshot next = small_snapshot(2);
  int olds = 0;
  int news = 0;
  Rng rng(9);
  for (int point = 0; point < points; ++point) {
    {
      SnapshotFolder folder(path);
      folder.write("x", old, shape());
    }
    const pid_t child = ::fork();
    if (child == 0) {
      SnapshotFolder folder(path);
      // Half of the points are steps of the write, the others any moment of it.
      int left = point / 2 % 7;
      for (;;) {
        folder.write("x", next, shape(), [&] {
          if (point % 2 == 0 && left-- == 0) ::raise(SIGKILL);
        });
      }
    }
    ASSERT_GT(child, 0);
    if (point % 2 == 1) {
      ::usleep(static_cast<useconds_t>(rng.below(20000)));
      ::kill(child, SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    SnapshotFolder folder(path);
    const SnapshotRead r = folder.read("x", shape());
    ASSERT_EQ(r.state, SnapshotState::kGood) << r.reason << " at point " << point;
    ASSERT_TRUE(r.snapshot.rows == old.rows || r.snapshot.rows == next.rows)
        << "a mix at point " << point;
    (r.snapshot.rows == old.rows ? olds : news) += 1;
    ASSERT_EQ(std::distance(fs::directory_iterator(path), {}), 2)
        << "something was left at point " << point;
  }
  EXPECT_GT(olds, 0);
  EXPECT_GT(news, 0);
}
TEST_F(Snapshots, KilledWhileWritingLeavesOldOrNew) { kill_at_points(folder_, 20); }
TEST_F(Snapshots, DISABLED_KilledAt200PointsLeavesOldOrNew) { kill_at_points(folder_, 200); }

}  // namespace
}  // namespace assay
