#include "traces/trace.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/blocks.h"
#include "kernels/base/error.h"
#include "kernels/base/rng.h"
#include "traces/crc32.h"

namespace assay {
namespace {

std::string slurp(const std::string& path) {
  std::ifstream f(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(f), {}};
}
void spit(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class TraceFile : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/assay-trace-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    dir_ = name;
    path_ = dir_ + "/t.mrt";
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // 2 layers x 5 experts, top-2, three conversations, 7 steps: 20 bytes a record without weights.
  std::string write_small(WeightKind weights = WeightKind::kNone,
                          int id_bytes = 1,
                          bool seal = true) {
    TraceFormat f;
    f.geometry = {2, 5, 2};
    f.id_bytes = id_bytes;
    f.weights = weights;
    f.label = "small";
    TraceWriter w(path_, f);
    TraceStep s;
    for (int c = 0; c < 3; ++c) {
      w.begin_conversation(static_cast<std::uint32_t>(10 + c),
                           c == 1 ? Split::kHeldOut : Split::kTrain);
      for (int p = 0; p < 2 + (c == 2 ? 1 : 0); ++p) {
        s.position = static_cast<std::uint32_t>(p);
        s.token = p == 0 ? -1 : 400 + p;
        s.phase = p == 0 ? Phase::kPrefill : Phase::kDecode;
        s.flags = static_cast<std::uint8_t>(c);
        s.row = static_cast<std::uint16_t>(p);
        s.ids = {c, c + 1, 4, c == 2 ? kPaddingId : 0};
        s.weights.assign(weights == WeightKind::kNone ? 0 : 4,
                         0.5F + 0.25F * static_cast<float>(p));
        w.append(s);
      }
    }
    if (seal) w.seal();
    if (!seal) w.leave_unsealed();
    return slurp(path_);
  }

  std::string message_of(const std::function<void()>& f) {
    try {
      f();
    } catch (const InputError& e) {
      return e.what();
    }
    return "not refused";
  }
  // Opens and reads everything in the file made of `bytes`; the refusal's text.
  std::string refusal(const std::string& bytes) {
    spit(path_, bytes);
    return message_of([&] {
      TraceReader r(path_);
      r.read(0, 1000);
    });
  }
  template <class T>
  static std::string with(std::string bytes, std::size_t at, T value, bool fix_crc = true) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
    if (fix_crc) {
      const std::uint32_t crc = crc32(0, bytes.data(), 124);
      std::memcpy(bytes.data() + 124, &crc, 4);
    }
    return bytes;
  }

  std::string dir_;
  std::string path_;
};

void expect_refused(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message << "\nshould hold: " << part;
}

TEST_F(TraceFile, HasTheBytesOfTheFormatPage) {
  const std::string bytes = write_small();
  ASSERT_EQ(bytes.size(), 128U + 7 * 20 + 3 * 24 + 32);
  const auto u = [&](std::size_t at, std::size_t n) {
    std::uint64_t v = 0;
    std::memcpy(&v, bytes.data() + at, n);
    return v;
  };
  EXPECT_EQ(bytes.substr(0, 8), "MOETRC1\n");
  EXPECT_EQ(u(8, 2), 1U);
  EXPECT_EQ(u(10, 2), 128U);
  EXPECT_EQ(u(12, 4), 0x01020304U);
  EXPECT_EQ(u(16, 4), 20U);
  EXPECT_EQ(u(20, 2), 2U);
  EXPECT_EQ(u(22, 2), 5U);
  EXPECT_EQ(u(24, 1), 2U);
  EXPECT_EQ(u(25, 1), 1U);
  EXPECT_EQ(u(26, 1), 0U);
  EXPECT_EQ(u(32, 8), 7U);
  EXPECT_EQ(u(40, 4), 3U);
  EXPECT_EQ(bytes.substr(56, 6), std::string("small\0", 6));
  // The second record: conversation 10, position 1, token 401, decode, row 1, ids 0 1 | 4 0.
  EXPECT_EQ(u(148, 4), 10U);
  EXPECT_EQ(u(152, 4), 1U);
  EXPECT_EQ(u(156, 4), 401U);
  EXPECT_EQ(u(160, 1), 1U);
  EXPECT_EQ(u(162, 2), 1U);
  EXPECT_EQ(bytes.substr(164, 4), std::string("\0\1\4\0", 4));
  EXPECT_EQ(u(128 + 6 * 20 + 19, 1), 0xFFU);  // padding
  const std::size_t table = 128 + 7 * 20;
  EXPECT_EQ(u(table + 24, 8), 2U);   // second conversation's first step
  EXPECT_EQ(u(table + 32, 8), 2U);   // its steps
  EXPECT_EQ(u(table + 40, 4), 11U);  // id
  EXPECT_EQ(u(table + 44, 4), 1U);   // held out
  const std::size_t trailer = table + 72;
  EXPECT_EQ(u(trailer, 8), 7U);
  EXPECT_EQ(u(trailer + 8, 8), table);
  EXPECT_EQ(u(trailer + 16, 4), crc32(0, bytes.data() + 128, 140));
  EXPECT_EQ(u(trailer + 20, 4), crc32(0, bytes.data() + table, 72));
  EXPECT_EQ(bytes.substr(trailer + 24), "MOETRCE\n");
}

TEST(Crc32, HasTheKnownCheckValue) {
  EXPECT_EQ(crc32(0, "123456789", 9), 0xCBF43926U);
  EXPECT_EQ(crc32(crc32(0, "1234", 4), "56789", 5), 0xCBF43926U);
  EXPECT_EQ(crc32(0, "", 0), 0U);
}

TEST_F(TraceFile, ReadsBackWhatWasWrittenForEveryWidthAndWeightKind) {
  for (const int id_bytes : {1, 2}) {
    for (const auto kind : {WeightKind::kNone, WeightKind::kF16, WeightKind::kF32}) {
      write_small(kind, id_bytes);
      TraceReader r(path_);
      EXPECT_TRUE(r.info().sealed);
      EXPECT_EQ(r.info().steps, 7U);
      EXPECT_EQ(r.info().format.label, "small");
      ASSERT_EQ(r.info().conversations.size(), 3U);
      EXPECT_EQ(r.info().conversations[1], (Conversation{2, 2, 11, Split::kHeldOut}));
      const RecordBlock b = r.read(5, 100);
      ASSERT_EQ(b.count, 2U);
      TraceStep s;
      b.decode(0, s);
      EXPECT_EQ(s.conversation, 12U);
      EXPECT_EQ(s.position, 1U);
      EXPECT_EQ(s.token, 401);
      EXPECT_EQ(s.phase, Phase::kDecode);
      EXPECT_EQ(s.flags, 2);
      EXPECT_EQ(s.row, 1);
      EXPECT_EQ(s.ids, (std::vector<std::int32_t>{2, 3, 4, kPaddingId}));
      if (kind == WeightKind::kNone) {
        EXPECT_TRUE(s.weights.empty());
      } else {
        EXPECT_EQ(s.weights, std::vector<float>(4, 0.75F));
      }
      EXPECT_NO_THROW(r.verify_crc());
    }
  }
}

TEST_F(TraceFile, AnInterruptedCaptureIsReadableUpToItsLastWholeRecord) {
  const std::string bytes = write_small(WeightKind::kNone, 1, false);
  ASSERT_EQ(bytes.size(), 128U + 7 * 20);
  for (const std::size_t lost : {0U, 1U, 19U, 20U, 21U, 139U, 140U}) {
    spit(path_, bytes.substr(0, bytes.size() - lost));
    TraceReader r(path_);
    EXPECT_FALSE(r.info().sealed);
    EXPECT_EQ(r.info().steps, (140 - lost) / 20) << lost << " bytes lost";
    std::uint64_t steps = 0;
    for (const auto& c : r.info().conversations) steps += c.steps;
    EXPECT_EQ(steps, r.info().steps);
    EXPECT_NO_THROW(r.verify_crc());
  }
}

TEST_F(TraceFile, ASealedFileThatLostItsTrailerCountsAsUnsealedAndItsTableIsNoRecord) {
  const std::string bytes = write_small();
  for (const std::size_t lost : {1U, 8U, 32U, 40U, 60U, 104U}) {
    spit(path_, bytes.substr(0, bytes.size() - lost));
    TraceReader r(path_);
    EXPECT_FALSE(r.info().sealed);
    EXPECT_EQ(r.info().steps, 7U) << lost << " bytes lost";
  }
}

TEST_F(TraceFile, AKilledWriterLeavesItsFlushedRecords) {
  const pid_t child = ::fork();
  if (child == 0) {
    TraceFormat f;
    f.geometry = {1, 4, 1};
    TraceWriter w(path_, f);
    w.begin_conversation(0, Split::kTrain);
    TraceStep s;
    s.ids = {3};
    for (int i = 0; i < 100; ++i) w.append(s);
    w.flush();
    w.append(s);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(std::filesystem::exists(path_));
  TraceReader r(path_ + ".partial");
  EXPECT_FALSE(r.info().sealed);
  EXPECT_EQ(r.info().steps, 100U);
}

TEST_F(TraceFile, ALatecomerIsRefusedAndWhatStoodThereStaysUntilTheSeal) {
  const std::string before = write_small();
  TraceFormat f;
  f.geometry = {1, 4, 1};
  {
    TraceWriter w(path_, f);
    w.begin_conversation(0, Split::kTrain);
    TraceStep s;
    s.ids = {3};
    w.append(s);
    EXPECT_THROW(TraceWriter(path_, f), UserError);
    EXPECT_EQ(slurp(path_), before);
    w.seal();
  }
  EXPECT_EQ(TraceReader(path_).info().steps, 1U);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".partial"));
}

TEST_F(TraceFile, AFileThatShrinksWhileItIsReadIsRefusedNotASignal) {
  write_small();
  TraceReader r(path_);
  ASSERT_EQ(::truncate(path_.c_str(), 128 + 3 * 20 + 7), 0);
  EXPECT_EQ(r.read(0, 3).count, 3U);
  expect_refused(message_of([&] { r.read(0, 7); }),
                 "byte 195: the file became shorter while it was read");
}

TEST_F(TraceFile, NoRecordsAreAnEmptyTraceNotAnError) {
  TraceFormat f;
  f.geometry = {2, 5, 2};
  {
    TraceWriter w(path_, f);
    w.seal();
  }
  TraceReader r(path_);
  EXPECT_TRUE(r.info().sealed);
  EXPECT_EQ(r.info().steps, 0U);
  EXPECT_TRUE(r.info().conversations.empty());
  EXPECT_EQ(r.read(0, 10).count, 0U);
}

TEST_F(TraceFile, RefusesForeignAndDamagedHeadersNamingTheByte) {
  const std::string good = write_small();
  expect_refused(refusal(""), "byte 0: not a MOETRC1 trace");
  expect_refused(refusal("GGUF" + good.substr(4)), "byte 0: not a MOETRC1 trace");
  expect_refused(refusal(good.substr(0, 100)), "byte 100: header cut short: 100 of 128");
  expect_refused(refusal(with(good, 8, std::uint16_t{2})), "byte 8: version 2");
  expect_refused(refusal(with(good, 10, std::uint16_t{64})), "byte 10: header bytes 64");
  expect_refused(refusal(with(good, 12, std::uint32_t{0x04030201})), "byte 12: written big-endian");
  expect_refused(refusal(with(good, 12, std::uint32_t{7})), "byte 12: endianness");
  expect_refused(refusal(with(good, 16, std::uint32_t{21})), "byte 16: record bytes 21");
  expect_refused(refusal(with(good, 20, std::uint16_t{0})), "layers = 0");
  expect_refused(refusal(with(good, 22, std::uint16_t{0})), "experts = 0");
  expect_refused(refusal(with(good, 22, std::uint16_t{256})),
                 "experts = 256, valid with 1-byte ids are 1 to 255");
  expect_refused(refusal(with(good, 24, std::uint8_t{0})), "top-k = 0");
  expect_refused(refusal(with(good, 24, std::uint8_t{6})), "top-k = 6");
  expect_refused(refusal(with(good, 25, std::uint8_t{3})), "id bytes = 3");
  expect_refused(refusal(with(good, 26, std::uint8_t{3})), "weight kind 3");
  expect_refused(refusal(with(good, 60, std::uint8_t{'x'}, false)),
                 "byte 124: header CRC-32 differs");
}

TEST_F(TraceFile, RefusesLyingCountsNamingTheByte) {
  const std::string good = write_small();
  const std::size_t table = 128 + 140;
  const std::size_t trailer = table + 72;
  expect_refused(refusal(with(good, 32, std::uint64_t{8})), "trailer says 7 steps, header says 8");
  expect_refused(refusal(with(good, 40, std::uint32_t{4})), "byte 40: header says 4 conversations");
  expect_refused(refusal(with(good, trailer, std::uint64_t{6})), "trailer says 6 steps");
  expect_refused(refusal(with(good, trailer + 8, std::uint64_t{128})), "table offset 128");
  // Steps so many that their bytes wrap around 64 bits.
  const std::uint64_t huge = 0xFFFFFFFFFFFFFFFFULL / 20 + 2;
  expect_refused(refusal(with(with(good, 32, huge), trailer, huge)), "does not follow");
  expect_refused(refusal(with(good, table, std::uint64_t{1})), "conversation table CRC-32 differs");
  const auto table_with = [&](std::size_t at, auto value) {
    std::string bytes = with(good, table + at, value);
    const std::uint32_t crc = crc32(0, bytes.data() + table, 72);
    return with(bytes, trailer + 20, crc);
  };
  expect_refused(refusal(table_with(0, std::uint64_t{1})), "conversation 0 does not begin where");
  expect_refused(refusal(table_with(8, std::uint64_t{3})), "conversation 1 does not begin where");
  expect_refused(refusal(table_with(56, std::uint64_t{4})), "ends past the last step");
  expect_refused(refusal(table_with(56, std::uint64_t{2})), "the table covers 6 of 7 steps");
  expect_refused(refusal(table_with(20, std::uint32_t{2})), "split 2");
}

TEST_F(TraceFile, RefusesBadRecordsNamingStepLayerRankAndByte) {
  const std::string good = write_small();
  expect_refused(refusal(with(good, 148 + 18, std::uint8_t{5})),
                 "byte 166: step 1 layer 1 rank 0: expert id 5 is not below 5");
  expect_refused(refusal(with(good, 148 + 18, std::uint8_t{254})), "expert id 254 is not below 5");
  expect_refused(refusal(with(good, 148 + 19, std::uint8_t{4})),
                 "byte 167: step 1 layer 1 rank 1: expert id 4 appears twice in its group");
  expect_refused(refusal(with(good, 148 + 12, std::uint8_t{2})), "byte 160: step 1: phase 2");
  const std::string wide = write_small(WeightKind::kNone, 2);
  expect_refused(refusal(with(wide, 128 + 16 + 2, std::uint16_t{300})),
                 "byte 146: step 0 layer 0 rank 1: expert id 300");
  spit(path_, with(good, 148 + 17, std::uint8_t{3}));
  TraceReader r(path_);
  EXPECT_THROW(r.verify_crc(), CheckError);
}

TEST_F(TraceFile, RefusesWhatIsNoFile) {
  expect_refused(message_of([&] { TraceReader(dir_ + "/missing.mrt"); }), "No such file");
  expect_refused(message_of([&] { TraceReader{dir_}; }), "not a regular file");
}

TEST_F(TraceFile, WriterRefusesImpossibleFormatsAndSteps) {
  TraceFormat f;
  EXPECT_THROW(TraceWriter(path_, f), UserError);
  f.geometry = {2, 300, 2};
  EXPECT_THROW(TraceWriter(path_, f), UserError);
  f.id_bytes = 2;
  f.label = std::string(69, 'x');
  EXPECT_THROW(TraceWriter(path_, f), UserError);
  f.label.clear();
  TraceWriter w(path_, f);
  w.begin_conversation(0, Split::kTrain);
  TraceStep s;
  s.ids = {1, 2, 3};
  EXPECT_THROW(w.append(s), UserError);
  s.ids = {1, 2, 3, 300};
  EXPECT_THROW(w.append(s), UserError);
  s.ids = {1, 1, 2, 3};
  EXPECT_THROW(w.append(s), UserError);
  s.ids = {1, -2, 2, 3};
  EXPECT_THROW(w.append(s), UserError);
  s.ids = {1, 2, 2, 1};
  EXPECT_NO_THROW(w.append(s));
  EXPECT_EQ(w.steps(), 1U);
  EXPECT_THROW(TraceWriter(dir_ + "/no/such/folder.mrt", f), Error);
}

TEST_F(TraceFile, EveryHalfWeightSurvivesTheTripThroughFloat) {
  TraceFormat f;
  f.geometry = {256, 2, 1};
  f.weights = WeightKind::kF16;
  std::vector<std::byte> ids(256, std::byte{0});
  std::vector<std::uint16_t> halves(256);
  {
    TraceWriter w(path_, f);
    w.begin_conversation(0, Split::kTrain);
    for (std::uint32_t h = 0; h < 65536; h += 256) {
      for (std::uint32_t i = 0; i < 256; ++i) halves[i] = static_cast<std::uint16_t>(h + i);
      w.append_raw(h / 256,
                   -1,
                   Phase::kDecode,
                   0,
                   ids.data(),
                   reinterpret_cast<const std::byte*>(halves.data()));
    }
    w.seal();
  }
  const std::string raw = slurp(path_);
  const std::string copy = dir_ + "/copy.mrt";
  {
    TraceReader r(path_);
    TraceWriter w(copy, f);
    w.begin_conversation(0, Split::kTrain);
    TraceStep s;
    for (std::uint64_t i = 0; i < 256; ++i) {
      r.read(i, 1).decode(0, s);
      w.append(s);
    }
    w.seal();
  }
  EXPECT_EQ(slurp(copy), raw);
}

TEST_F(TraceFile, AWindowBorderChangesNothing) {
  // Records of 1,040 bytes: a window holds 1,008 of them.
  TraceFormat f;
  f.geometry = {128, 64, 8};
  Rng rng(seed_from_name("windows"));
  std::vector<std::vector<std::int32_t>> want;
  {
    TraceWriter w(path_, f);
    w.begin_conversation(0, Split::kTrain);
    TraceStep s;
    for (int i = 0; i < 2500; ++i) {
      s.ids.resize(1024);
      for (std::size_t j = 0; j < 1024; ++j)
        s.ids[j] = static_cast<std::int32_t>((j * 8 + j % 8 + static_cast<std::size_t>(i)) % 64);
      s.ids[0] = kPaddingId;
      w.append(s);
      want.push_back(s.ids);
    }
    w.seal();
  }
  TraceReader r(path_);
  r.verify_crc();
  TraceStep s;
  for (std::uint64_t at = 0; at < 2500;) {
    const RecordBlock b = r.read(at, window_records(f));
    for (std::size_t i = 0; i < b.count; ++i) {
      b.decode(i, s);
      ASSERT_EQ(s.ids, want[static_cast<std::size_t>(at) + i]);
    }
    at += b.count;
  }
}

}  // namespace
}  // namespace assay
