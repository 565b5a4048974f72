#include "traces/convert.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include <gtest/gtest.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "traces/edit.h"
#include "traces/trace.h"

namespace assay {
namespace {

const std::string kData = std::string(ASSAY_SOURCE_DIR "/traces/testdata/");

std::string slurp(const std::string& path) {
  std::ifstream f(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(f), {}};
}
void spit(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class Folder : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/assay-convert-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    dir_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string at(const std::string& name) const { return dir_ + "/" + name; }
  std::string dir_;
};
using Jsonl = Folder;
using Csv = Folder;
using Edit = Folder;

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "not refused";
}
void expect_refused(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message << "\nshould hold: " << part;
}

TEST_F(Jsonl, IsLosslessBothWays) {
  // Every field at an unusual value: weights that are no number, an empty conversation, padding, hidden tokens.
  for (const auto kind : {WeightKind::kNone, WeightKind::kF16, WeightKind::kF32}) {
    for (const int id_bytes : {1, 2}) {
      for (const bool seal : {true, false}) {
        TraceFormat f;
        f.geometry = {2, 200, 3};
        f.id_bytes = id_bytes;
        f.weights = kind;
        f.shared_experts = 2;
        f.flags = 0x80000001U;
        f.expert_bytes = 13824;
        f.label = "caf\xC3\xA9 \"quoted\"";
        {
          TraceWriter w(at("a.mrt"), f);
          TraceStep s;
          w.begin_conversation(7, Split::kHeldOut);
          for (int i = 0; i < 9; ++i) {
            if (i == 4) {
              if (seal) w.begin_conversation(8, Split::kTrain);  // empty
              w.begin_conversation(0xFFFFFFFFU, Split::kTrain);
            }
            s.position = static_cast<std::uint32_t>(i);
            s.token = i % 3 == 0 ? -1 : i * 1000;
            s.phase = i < 2 ? Phase::kPrefill : Phase::kDecode;
            s.flags = static_cast<std::uint8_t>(i == 5 ? 255 : 0);
            s.row = static_cast<std::uint16_t>(i == 6 ? 65535 : 0);
            s.ids = {i, i + 1, kPaddingId, 199, kPaddingId, 0};
            s.weights = {0.1F,
                         -0.0F,
                         1e-8F,
                         65504.0F,
                         std::numeric_limits<float>::infinity(),
                         std::numeric_limits<float>::quiet_NaN()};
            if (kind == WeightKind::kNone) s.weights.clear();
            w.append(s);
          }
          if (seal) {
            w.seal();
          } else {
            w.leave_unsealed();
          }
        }
        mrt_to_jsonl(at("a.mrt"), at("a.jsonl"));
        jsonl_to_mrt(at("a.jsonl"), at("b.mrt"));
        mrt_to_jsonl(at("b.mrt"), at("b.jsonl"));
        EXPECT_EQ(slurp(at("a.mrt")), slurp(at("b.mrt")));
        EXPECT_EQ(slurp(at("a.jsonl")), slurp(at("b.jsonl")));
      }
    }
  }
}

TEST_F(Jsonl, OfRecordedRoutingComesBackByteForByte) {
  mrt_to_jsonl(kData + "tiny-docs-cut.mrt", at("cut.jsonl"));
  jsonl_to_mrt(at("cut.jsonl"), at("cut.mrt"));
  EXPECT_EQ(slurp(at("cut.mrt")), slurp(kData + "tiny-docs-cut.mrt"));
}

TEST_F(Jsonl, NeedsOnlyTheDocumentedKeys) {
  spit(at("t.jsonl"),
       "{\"moetrc\":1,\"layers\":1,\"experts\":4,\"top_k\":2,\"steps\":3,\"conversations\":2}\n"
       "{\"c\":0,\"p\":0,\"e\":[[3,1]],\"w\":[[0.75,0.25]]}\n"
       "{\"c\":0,\"p\":1,\"e\":[[0,1]],\"w\":[[0.5,0.5]],\"tok\":9}\n\n"
       "{\"c\":4,\"p\":0,\"e\":[[2,-1]],\"w\":[[1,0]]}\n");
  jsonl_to_mrt(at("t.jsonl"), at("t.mrt"));
  TraceReader r(at("t.mrt"));
  EXPECT_EQ(r.info().format.weights, WeightKind::kF32);
  EXPECT_EQ(r.info().conversations,
            (std::vector<Conversation>{{0, 2, 0, Split::kTrain}, {2, 1, 4, Split::kTrain}}));
  TraceStep s;
  r.read(1, 1).decode(0, s);
  EXPECT_EQ(s.token, 9);
  EXPECT_EQ(s.phase, Phase::kDecode);
  r.read(2, 1).decode(0, s);
  EXPECT_EQ(s.ids, (std::vector<std::int32_t>{2, kPaddingId}));
}

TEST_F(Jsonl, RefusesBadLinesNamingThem) {
  const std::string head =
      "{\"moetrc\":1,\"layers\":1,\"experts\":4,\"top_k\":2,\"steps\":1,\"conversations\":1}\n";
  const auto refusal = [&](const std::string& text) {
    spit(at("t.jsonl"), text);
    return message_of([&] { jsonl_to_mrt(at("t.jsonl"), at("t.mrt")); });
  };
  expect_refused(refusal(""), "byte 0: empty file");
  expect_refused(refusal("[]\n"), "line 1, byte 0: not a JSON object");
  expect_refused(refusal("{\"moetrc\":2}"), "\"moetrc\" must be an integer from 1 to 1");
  expect_refused(refusal("{\"moetrc\":1,\"layers\":1}"), "\"experts\" is missing");
  expect_refused(refusal("{\"moetrc\":1,\"layers\":1,\"experts\":4,\"top_k\":5,\"steps\":1,"
                         "\"conversations\":1}\n{}"),
                 "top-k = 5");
  expect_refused(refusal(head), "promises 1 steps, the file has 0");
  expect_refused(refusal(head + "{\"c\":0,\"p\":0,\"e\":[[1,4]]}\n"),
                 "line 2, byte " + std::to_string(head.size()) + ": \"e\": expert id 4");
  expect_refused(refusal(head + "{\"c\":0,\"p\":0,\"e\":[[1,1]]}\n"), "appears twice");
  expect_refused(refusal(head + "{\"c\":0,\"p\":0,\"e\":[[1]]}\n"), "2 entries a layer");
  expect_refused(refusal(head + "{\"c\":0,\"p\":0,\"e\":[[1,2],[1,2]]}\n"), "1 layers");
  expect_refused(refusal(head + "{\"c\":0,\"p\":-1,\"e\":[[1,2]]}\n"), "\"p\" must be");
  expect_refused(refusal(head + "{\"c\":0,\"p\":0,\"e\":[[1,2]],\"w\":[[1,\"x\"]]}\n"),
                 "a weight is neither");
  expect_refused(
      refusal(head + "{\"c\":0,\"p\":0,\"e\":[[1,2]]}\n{\"c\":0,\"p\":1,\"e\":[[1,2]]}\n"),
      "more steps than the header's 1");
  expect_refused(refusal(head + "{\"c\":0,\"p\":0,\"ph\":3,\"e\":[[1,2]]}\n"), "\"ph\" must be");
  std::string two = head;
  two.replace(two.find("\"conversations\":1"), 17, "\"conversations\":2");
  expect_refused(refusal(two + "{\"c\":0,\"p\":0,\"e\":[[1,2]]}\n"),
                 "promises 2 conversations, the steps make 1");
}

TEST_F(Csv, ImportsARouteTraceInAnyRowOrder) {
  csv_to_mrt(kData + "route.csv", at("t.mrt"));
  TraceReader r(at("t.mrt"));
  const TraceInfo& info = r.info();
  EXPECT_EQ(info.format.geometry, (TraceGeometry{3, 16, 2}));
  EXPECT_EQ(info.format.weights, WeightKind::kF32);
  EXPECT_EQ(info.format.expert_bytes, 4000U);  // the mean of 4500, 3500, 4000
  EXPECT_EQ(info.format.label, "example-Q4_K_M.gguf");
  EXPECT_EQ(info.conversations,
            (std::vector<Conversation>{{0, 3, 0, Split::kTrain}, {3, 1, 1, Split::kTrain}}));
  TraceStep s;
  r.read(0, 1).decode(0, s);
  EXPECT_EQ(s.phase, Phase::kPrefill);
  EXPECT_EQ(s.ids, (std::vector<std::int32_t>{7, 10, 3, 15, 0, 1}));
  EXPECT_EQ(s.weights[0], 0.425021F);
  r.read(2, 1).decode(0, s);
  EXPECT_EQ(s.phase, Phase::kDecode);
  EXPECT_EQ(s.position, 2U);
  EXPECT_EQ(s.ids, (std::vector<std::int32_t>{5, 6, 8, kPaddingId, 2, 9}));
}

TEST_F(Csv, RefusesBadRowsNamingThem) {
  const std::string head =
      "# n_layer=2 n_expert=4 "
      "n_expert_used=2\nturn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n";
  const auto refusal = [&](const std::string& text) {
    spit(at("t.csv"), text);
    return message_of([&] { csv_to_mrt(at("t.csv"), at("t.mrt")); });
  };
  expect_refused(refusal(""), "no rows");
  expect_refused(refusal(head), "no rows");
  expect_refused(refusal("a,b\n1,2\n"), "line 1, byte 0: columns must be turn,");
  expect_refused(refusal(head + "0,1,0,0,0,4,0.5,0,0\n"),
                 "line 3, byte 103: expert 4 is not below n_expert=4");
  expect_refused(refusal(head + "0,1,0,2,0,1,0.5,0,0\n"), "layer 2 is not below n_layer=2");
  expect_refused(refusal(head + "0,1,0,0,2,1,0.5,0,0\n"), "slot 2 is not below n_expert_used=2");
  expect_refused(refusal(head + "0,2,0,0,0,1,0.5,0,0\n"), "phase 2");
  expect_refused(refusal(head + "0,1,0,0,0,x,0.5,0,0\n"), "column 6 is not a whole number");
  expect_refused(refusal(head + "0,1,0,0,0,1,y,0,0\n"), "column 7");
  expect_refused(refusal(head + "0,1,0,0,0,1,0.5,0\n"), "9 columns");
  expect_refused(refusal(head + "0,1,0,0,0,1,0.5,0,0\n0,1,0,0,0,2,0.5,0,0\n"),
                 "slot 0 appears twice");
  expect_refused(refusal(head + "0,1,0,0,0,1,0.5,0,0\n0,1,0,0,1,1,0.5,0,0\n"),
                 "appears twice in its group");
}

TEST_F(Csv, TheFileOfAPublishedCaptureIsRead) {
  const std::string path =
      std::string(ASSAY_SOURCE_DIR "/../shared/traces/public/gemma-4-26b-a4b.route.csv");
  if (!std::ifstream(path)) GTEST_SKIP() << path << " is not here";
  csv_to_mrt(path, at("t.mrt"));
  TraceReader r(at("t.mrt"));
  EXPECT_EQ(r.info().format.geometry, (TraceGeometry{30, 128, 6}));
  EXPECT_EQ(r.info().steps, 157U);
  std::size_t decode = 0;
  TraceStep s;
  const RecordBlock b = r.read(0, 1000);
  for (std::size_t i = 0; i < b.count; ++i) {
    b.decode(i, s);
    decode += s.phase == Phase::kDecode ? 1 : 0;
  }
  EXPECT_EQ(decode, 128U);
}

TEST_F(Edit, KindIsSeenFromMagicThenSuffix) {
  std::filesystem::copy_file(kData + "tiny-docs-cut.mrt", at("odd.name"));
  EXPECT_EQ(kind_of_input(at("odd.name")), TraceKind::kMrt);
  spit(at("a.oracleGeneral.bin"), "x");
  EXPECT_EQ(kind_of_input(at("a.oracleGeneral.bin")), TraceKind::kOracleGeneral);
  spit(at("b.txt"), "x");
  expect_refused(message_of([&] { static_cast<void>(kind_of_input(at("b.txt"))); }),
                 ".oracleGeneral.bin");
  EXPECT_THROW(static_cast<void>(kind_of_input(at("none.mrt"))), InputError);
  EXPECT_THROW(static_cast<void>(kind_of_output("x.bin")), UserError);
}

TEST_F(Edit, CutKeepsTheChosenStepsAndMergePutsThemTogetherAgain) {
  const std::string cut = kData + "tiny-docs-cut.mrt";
  cut_trace(cut, at("a.mrt"), {.steps = 700});
  cut_trace(cut, at("b.mrt"), {.first_step = 700});
  TraceReader a(at("a.mrt"));
  EXPECT_EQ(a.info().steps, 700U);
  EXPECT_EQ(a.info().conversations.size(), 2U);
  EXPECT_EQ(a.info().conversations[1].id, 6U);
  merge_traces({at("a.mrt"), at("b.mrt")}, at("c.mrt"));
  TraceReader c(at("c.mrt"));
  TraceReader whole(cut);
  ASSERT_EQ(c.info().steps, whole.info().steps);
  EXPECT_EQ(c.info().conversations.size(),
            whole.info().conversations.size() + 1);  // one was cut in two
  TraceStep x;
  TraceStep y;
  for (const std::uint64_t i : {0U, 699U, 700U, 5209U}) {
    c.read(i, 1).decode(0, x);
    whole.read(i, 1).decode(0, y);
    EXPECT_EQ(x.ids, y.ids);
    EXPECT_EQ(x.position, y.position);
  }
  cut_trace(cut, at("held.mrt"), {.split = Split::kHeldOut});
  EXPECT_EQ(TraceReader(at("held.mrt")).info().steps, 556U + 562 + 668 + 481);
  cut_trace(cut, at("two.mrt"), {.conversations = {9, 68}});
  EXPECT_EQ(TraceReader(at("two.mrt")).info().steps, 586U + 481);
  EXPECT_THROW(cut_trace(cut, at("no.mrt"), {.conversations = {3}}), UserError);
  EXPECT_THROW(cut_trace(cut, at("no.mrt"), {.first_step = 5210}), UserError);
  csv_to_mrt(kData + "route.csv", at("other.mrt"));
  expect_refused(message_of([&] {
                   merge_traces({cut, at("other.mrt")}, at("no.mrt"));
                 }),
                 "differ in geometry");
}

TEST_F(Edit, AComposedTraceInterleavesTwoConversationsAndNoTwoLayersAreCopies) {
  const std::string cut = kData + "tiny-docs-cut.mrt";
  compose_trace(cut, at("a.mrt"), {});
  compose_trace(cut, at("b.mrt"), {});
  compose_trace(cut, at("c.mrt"), {.seed = 2});
  EXPECT_EQ(slurp(at("a.mrt")), slurp(at("b.mrt")));
  EXPECT_NE(slurp(at("a.mrt")), slurp(at("c.mrt")));
  TraceReader r(at("a.mrt"));
  EXPECT_EQ(r.info().format.geometry, (TraceGeometry{30, 128, 8}));
  EXPECT_TRUE(r.info().format.label.starts_with("composed"));
  EXPECT_GT(r.info().steps, 3000U);
  TraceReader source(cut);
  TraceStep x;
  TraceStep y;
  r.read(0, 1).decode(0, x);
  source.read(0, 1).decode(0, y);
  for (std::size_t l = 0; l < 12; ++l) {
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(x.ids[l * 8 + 2 * i], y.ids[l * 8 + i]);
      EXPECT_GE(x.ids[l * 8 + 2 * i + 1], 64);
    }
  }
  std::size_t equal = 0;
  const RecordBlock b = r.read(0, 400);
  for (std::size_t i = 0; i < b.count; ++i) {
    b.decode(i, x);
    equal += std::equal(x.ids.begin(), x.ids.begin() + 8, x.ids.begin() + 96) ? 1 : 0;
  }
  EXPECT_LT(equal, 10U);
  compose_trace(cut, at("u.mrt"), {.uniform = true});
  EXPECT_EQ(TraceReader(at("u.mrt")).info().steps, r.info().steps);
  EXPECT_THROW(compose_trace(cut, at("no.mrt"), {.geometry = {30, 64, 8}}), UserError);
  EXPECT_THROW(compose_trace(cut, at("no.mrt"), {.geometry = {30, 128, 7}}), UserError);
}

}  // namespace
}  // namespace assay
