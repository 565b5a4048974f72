// Turns on the shipped model: what the frames say is what the model computed, a turn leaves nothing behind that another
// one could notice, and every failure is one terminal frame.
#include "engine/model_backend.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <thread>

#include "gtest/gtest.h"
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "engine/chat_template.h"
#include "engine/golden.h"
#include "engine/sampler.h"
#include "kernels/base/error.h"
#include "kernels/base/rng.h"
#include "kernels/pointwise/pointwise.h"

namespace assay {
namespace {

using nlohmann::json;

constexpr int kContext = 512;

Model& model() {
  static Model m(kShippedModel,
                 {.numerics = Numerics::kFast,
                  .threads = 2,
                  .context = kContext,
                  .selection = vector_variants("avx2")});
  return m;
}

// Keeps a turn's frames and holds them to their order.
struct Collected : TurnSink {
  std::vector<TurnMeta> metas;
  std::string text;
  std::string reasoning;
  std::string bytes;
  std::vector<TokenId> ids;
  std::vector<ChosenLogprob> logprobs;
  std::vector<std::vector<RawLogit>> raw_logits;
  std::vector<TurnToolCall> calls;
  std::vector<TurnKairos> kairoses;
  std::vector<std::string> snapshots;
  std::optional<TurnDone> done_with;
  std::optional<TurnError> failed;
  bool was_aborted = false;
  int terminals = 0;
  int chunks = 0;
  std::function<void(TurnPhase, int)> on_phase = {};

  void meta(const TurnMeta& m) override { metas.push_back(m); }
  void phase(TurnPhase p, int done, int /*total*/) override {
    EXPECT_EQ(terminals, 0);
    if (p == TurnPhase::kPrefill) ++chunks;
    if (on_phase) on_phase(p, done);
  }
  void delta(TurnDelta d) override {
    EXPECT_EQ(metas.size(), 1U);
    text += d.text;
    reasoning += d.reasoning;
    bytes += d.bytes;
    ids.insert(ids.end(), d.ids.begin(), d.ids.end());
    logprobs.insert(logprobs.end(), d.logprobs.begin(), d.logprobs.end());
    raw_logits.insert(raw_logits.end(), d.raw_logits.begin(), d.raw_logits.end());
  }
  void tool_call(TurnToolCall c) override { calls.push_back(std::move(c)); }
  void kairos(const TurnKairos& k) override { kairoses.push_back(k); }
  void snapshot(std::string_view what, std::string_view /*detail*/) override {
    snapshots.emplace_back(what);
  }
  void done(const TurnDone& d) override {
    ++terminals;
    done_with = d;
  }
  void error(const TurnError& e, const TurnDone& /*so_far*/) override {
    ++terminals;
    failed = e;
  }
  void aborted(const TurnDone& /*so_far*/) override {
    ++terminals;
    was_aborted = true;
  }
};

std::unique_ptr<Collected> run(ModelBackend& backend,
                               TurnRequest request,
                               std::function<void(TurnPhase, int)> on_phase = {},
                               const std::atomic<bool>* cancelled = nullptr) {
  auto out = std::make_unique<Collected>();
  TurnError error;
  const auto turn = backend.prepare(std::move(request), error);
  if (turn == nullptr) {
    out->failed = error;
    return out;
  }
  out->on_phase = std::move(on_phase);
  const std::atomic<bool> never{false};
  backend.run(*turn, *out, cancelled != nullptr ? *cancelled : never);
  EXPECT_EQ(out->terminals, 1);
  EXPECT_EQ(out->kairoses.size(), 1U);
  return out;
}

TurnRequest chat(std::vector<ChatMessage> messages, int max_tokens) {
  auto c = std::make_shared<ChatRequest>();
  c->messages = std::move(messages);
  return {
      .id = "t", .chat = std::move(c), .max_tokens = max_tokens, .sampling = {.temperature = 0.0}};
}
TurnRequest ask(const std::string& text, int max_tokens = 12) {
  return chat({{.role = "user", .content = text}}, max_tokens);
}
std::vector<TokenId> prompt_of(const std::string& text) {
  return encode_user_prompt(model().tokenizer(), text);
}

// Greedy ids straight from the model.
std::vector<TokenId> greedy(std::vector<TokenId> prompt, int n) {
  Session session(model());
  std::vector<TokenId> out;
  auto logits = session.feed(prompt);
  for (int i = 0; i < n; ++i) {
    out.push_back(greedy_token(logits));
    if (model().tokenizer().is_stop(out.back())) break;
    logits = session.feed({&out.back(), 1});
  }
  return out;
}

TEST(ModelBackend, StreamsWhatTheModelWrites) {
  ModelBackend backend(model(), {});
  const auto want = greedy(prompt_of("SQLite: VACUUM"), 24);
  TurnRequest r = ask("SQLite: VACUUM", 24);
  r.byte_exact = true;
  const auto got = run(backend, r);
  ASSERT_TRUE(got->done_with);
  EXPECT_EQ(got->ids, want);
  EXPECT_EQ(got->text, model().tokenizer().decode(want));
  EXPECT_EQ(got->bytes, model().tokenizer().decode(want));
  EXPECT_EQ(got->done_with->completion_tokens, 24);
  EXPECT_EQ(got->done_with->phases.decode_tokens, 24);
  EXPECT_GT(got->done_with->phases.decode_ms, 0.0);
  EXPECT_EQ(got->kairoses[0].stop, StopReason::kLength);
  // Pre-tokenized input is the same prompt.
  TurnRequest ids = ask("", 24);
  ids.chat = nullptr;
  ids.ids = prompt_of("SQLite: VACUUM");
  EXPECT_EQ(run(backend, ids)->ids, want);
  // The same seed, the same reply; another seed, another one.
  const auto sampled = [&](std::uint64_t seed) {
    TurnRequest s = ask("Rust: iterators", 30);
    s.sampling = {.temperature = 1.5, .top_k = 0, .top_p = 1.0, .seed = seed};
    return run(backend, s)->ids;
  };
  EXPECT_EQ(sampled(1), sampled(1));
  EXPECT_NE(sampled(1), sampled(2));
}

TEST(ModelBackend, KairosIsTheRawGapAndBiasMovesOnlyTheChoice) {
  ModelBackend backend(model(), {});
  const auto prompt = prompt_of("Python: dict");
  Session session(model());
  const auto row = session.feed(prompt);
  double stop = -1e30;
  double other = -1e30;
  for (std::size_t i = 0; i < row.size(); ++i) {
    double& best = model().tokenizer().is_stop(static_cast<TokenId>(i)) ? stop : other;
    best = std::max(best, static_cast<double>(row[i]));
  }
  for (const double bias : {0.0, 100.0, -100.0}) {
    TurnRequest r = ask("Python: dict", 1);
    r.eot_bias = bias;
    const auto got = run(backend, r);
    ASSERT_TRUE(got->kairoses[0].eot_margin);
    EXPECT_EQ(*got->kairoses[0].eot_margin, stop - other);
    EXPECT_EQ(got->kairoses[0].stop, bias > 0 ? StopReason::kStopToken : StopReason::kLength);
    EXPECT_EQ(got->text.empty(), bias > 0);
  }
  TurnRequest never = ask("x", 60);
  never.eot_bias = -100.0;
  EXPECT_EQ(run(backend, never)->ids.size(), 60U);
}

TEST(ModelBackend, LogitsAndLogprobsAreTheModels) {
  ModelBackend backend(model(), {});
  TurnRequest r = ask("Node.js: streams", 3);
  r.raw_logits = 4096;
  r.logprobs = 5;
  const auto got = run(backend, r);
  Session session(model());
  auto row = session.feed(prompt_of("Node.js: streams"));
  ASSERT_EQ(got->raw_logits.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(got->raw_logits[i].size(), 4096U);
    EXPECT_EQ(got->raw_logits[i][0].id, got->ids[i]) << "greedy takes the largest";
    double sum = 0.0;
    double top = 0.0;
    for (const RawLogit& l : got->raw_logits[i]) {
      ASSERT_EQ(l.logit, row[static_cast<std::size_t>(l.id)]);
      sum += std::exp(static_cast<double>(l.logit));
    }
    ASSERT_EQ(got->logprobs[i].top.size(), 5U);
    EXPECT_EQ(got->logprobs[i].chosen.id, got->ids[i]);
    for (const auto& t : got->logprobs[i].top) {
      EXPECT_NEAR(t.logprob,
                  static_cast<double>(row[static_cast<std::size_t>(t.id)]) - std::log(sum),
                  1e-9);
      EXPECT_LE(t.logprob, top);
      top = t.logprob;
    }
    row = session.feed({&got->ids[i], 1});
  }
  r.raw_logits = 4097;
  EXPECT_EQ(run(backend, r)->failed->code, TurnCode::kBadRequest);
}

TEST(ModelBackend, StopStringsEndTheReplyBeforeThem) {
  ModelBackend backend(model(), {});
  const std::string whole = run(backend, ask("SQLite: VACUUM", 24))->text;
  const std::string stop = whole.substr(whole.size() / 2, 3);
  TurnRequest r = ask("SQLite: VACUUM", 24);
  r.stop = {stop};
  const auto got = run(backend, r);
  EXPECT_EQ(got->text, whole.substr(0, whole.find(stop)));
  EXPECT_EQ(got->kairoses[0].stop, StopReason::kStopString);
}

TEST(ModelBackend, ASecondTurnPrefillsOnlyWhatIsNew) {
  ModelBackend backend(model(), {});
  std::vector<ChatMessage> history{{.role = "user", .content = "SQLite: VACUUM"}};
  int reused = 0;
  for (int turn = 0; turn < 3; ++turn) {
    TurnRequest r = chat(history, 40);
    r.session = "talk";
    const auto got = run(backend, r);
    ModelBackend cold(model(), {});
    EXPECT_EQ(got->ids, run(cold, chat(history, 40))->ids) << "turn " << turn;
    EXPECT_EQ(got->done_with->phases.prefill_tokens,
              got->metas[0].prompt_tokens - got->metas[0].reused_tokens);
    if (turn == 0) {
      EXPECT_EQ(got->done_with->cold_reason, "first_turn");
    } else {
      // Everything up to the last reply's own turn was there.
      EXPECT_GE(got->metas[0].reused_tokens, reused);
      EXPECT_EQ(got->done_with->cold_reason, "");
    }
    reused = got->metas[0].prompt_tokens - 8;
    history.push_back({.role = "assistant", .content = got->text});
    history.push_back({.role = "user", .content = "And then?"});
  }
}

TEST(ModelBackend, OneshotAndEmbedLeaveTheSessionsAlone) {
  ModelBackend backend(model(), {});
  TurnRequest r = ask("Erlang: processes", 20);
  r.session = "s";
  const auto first = run(backend, r);
  TurnRequest alone = ask("Rust: traits", 20);
  alone.oneshot = true;
  const auto want = run(backend, alone)->ids;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(run(backend, alone)->ids, want);
  EmbedResult vectors;
  const std::atomic<bool> never{false};
  ASSERT_FALSE(backend.embed({.inputs = {"a text"}}, vectors, never));
  const auto again = run(backend, r);
  EXPECT_EQ(again->metas[0].reused_tokens, again->metas[0].prompt_tokens - 1);
  EXPECT_EQ(again->ids, first->ids);
}

const char* const kTools =
    R"([{"type":"function","function":{"name":"tide","description":"d","parameters":{"type":"object",
  "properties":{"port":{"type":"string"},"hours":{"type":"integer"}},"required":["port","hours"]}}}])";

TEST(ModelBackend, ARequiredCallIsMadeByAModelThatNeverLearnedOne) {
  ModelBackend backend(model(), {});
  for (int seed = 0; seed < 6; ++seed) {
    auto c = std::make_shared<ChatRequest>();
    c->messages = {{.role = "user", .content = "Tide at Brest?"}};
    c->tools = json::parse(kTools);
    c->thinking = seed % 2 == 1;
    TurnRequest r{.id = "t",
                  .chat = c,
                  .max_tokens = 90,
                  .sampling = {.temperature = seed == 0 ? 0.0 : 3.0,
                               .top_k = 0,
                               .top_p = 1.0,
                               .seed = static_cast<std::uint64_t>(seed)},
                  .tool_choice = ToolChoice::kRequired};
    r.eot_bias = seed == 2 ? -100.0 : 0.0;
    const auto got = run(backend, r);
    ASSERT_TRUE(got->done_with) << got->failed->message << got->failed->raw;
    ASSERT_GE(got->calls.size(), 1U);
    for (const auto& call : got->calls) {
      EXPECT_EQ(call.name, "tide");
      const json a = json::parse(call.arguments);
      EXPECT_TRUE(a.at("port").is_string() && a.at("hours").is_number_integer() && a.size() == 2)
          << call.arguments;
    }
    EXPECT_EQ(got->text, "");
  }
  // Cut off by the cap, in the call or before it: an error with what was written, never an empty success.
  auto c = std::make_shared<ChatRequest>();
  c->messages = {{.role = "user", .content = "Tide at Brest?"}};
  c->tools = json::parse(kTools);
  bool inside = false;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    TurnRequest cut{.id = "t",
                    .chat = c,
                    .max_tokens = 4,
                    .sampling = {.temperature = 9.0, .top_k = 0, .seed = seed},
                    .tool_choice = ToolChoice::kRequired};
    const auto got = run(backend, cut);
    ASSERT_TRUE(got->failed);
    EXPECT_EQ(got->failed->code, TurnCode::kToolParse);
    EXPECT_FALSE(got->failed->raw.empty());
    inside = inside || got->failed->raw.starts_with("<|tool_call>ca");
  }
  EXPECT_TRUE(inside);
}

TEST(ModelBackend, GrammarsHoldRepliesAndDeadEndsAreErrors) {
  ModelBackend backend(model(), {});
  const auto with = [&](GrammarKind kind, const std::string& text, int n = 60) {
    TurnRequest r = ask("Say", n);
    r.grammar_kind = kind;
    r.grammar = text;
    return run(backend, r);
  };
  EXPECT_EQ(with(GrammarKind::kRules, "root ::= \"yes\"")->text, "yes");
  const auto schema =
      with(GrammarKind::kJsonSchema,
           R"({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]})");
  EXPECT_TRUE(json::parse(schema->text).at("n").is_number_integer()) << schema->text;
  EXPECT_TRUE(json::parse(with(GrammarKind::kJson, "", 40)->text).is_object());
  EXPECT_EQ(with(GrammarKind::kRules, "root ::= root \"x\"")->failed->code, TurnCode::kBadGrammar);
  EXPECT_EQ(with(GrammarKind::kJsonSchema, "{")->failed->code, TurnCode::kBadGrammar);
  EXPECT_EQ(with(GrammarKind::kRules, "root ::= <|nothing|>")->failed->code,
            TurnCode::kCannotWithModel);
  std::string deep = "root ::= r0\n";
  for (int i = 0; i < 200; ++i)
    deep += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " \"x\"\n";
  EXPECT_EQ(with(GrammarKind::kRules, deep + "r200 ::= \"y\"")->failed->code,
            TurnCode::kGrammarDeadEnd);
}

TEST(ModelBackend, CancelEndsWithinAChunkOrAStepAndTheSessionGoesOn) {
  ModelBackend backend(model(), {});
  std::string longer;
  for (int i = 0; i < 60; ++i) longer += "A sentence about tables and rows. ";
  const auto want = run(backend, ask(longer, 8))->ids;
  for (const bool in_prefill : {true, false}) {
    std::atomic<bool> cancelled{false};
    int phases_after = 0;
    TurnRequest r = ask(longer, 50);
    r.session = in_prefill ? "p" : "d";
    const auto got = run(
        backend,
        r,
        [&](TurnPhase p, int done) {
          if (cancelled && p != TurnPhase::kPost) ++phases_after;
          if (p == (in_prefill ? TurnPhase::kPrefill : TurnPhase::kDecode) && done >= 3)
            cancelled = true;
        },
        &cancelled);
    EXPECT_TRUE(got->was_aborted);
    EXPECT_EQ(phases_after, 0);
    EXPECT_EQ(got->kairoses[0].stop, StopReason::kAborted);
    EXPECT_EQ(got->ids.size(), in_prefill ? 0U : 3U);
    // What was computed is kept, and it is right.
    TurnRequest next = ask(longer, 8);
    next.session = r.session;
    const auto after = run(backend, next);
    EXPECT_EQ(after->ids, want);
    EXPECT_GT(after->metas[0].reused_tokens, 0);
  }
}

TEST(ModelBackend, TheContextsEdgeIsExact) {
  ModelBackend backend(model(), {});
  std::vector<TokenId> ids(kContext, 300);
  ids[0] = *model().tokenizer().bos();
  const auto send = [&](std::vector<TokenId> prompt) {
    return run(backend,
               {.id = "t",
                .ids = std::move(prompt),
                .sampling = {.temperature = 0.0},
                .eot_bias = -100.0});
  };
  const auto full = send(ids);
  EXPECT_EQ(full->ids.size(), 1U);
  EXPECT_EQ(full->kairoses[0].stop, StopReason::kLength);
  const auto nearly = send(std::vector<TokenId>(ids.begin(), ids.end() - 3));
  EXPECT_EQ(nearly->ids.size(), 4U);
  EXPECT_EQ(nearly->kairoses[0].stop, StopReason::kContext);
  ids.push_back(300);
  const auto over = send(ids);
  EXPECT_EQ(over->failed->code, TurnCode::kContextExceeded);
  EXPECT_NE(over->failed->message.find("513"), std::string::npos);
  EXPECT_NE(over->failed->message.find("512"), std::string::npos);
  EXPECT_EQ(send({})->failed->code, TurnCode::kBadRequest);
  EXPECT_EQ(send({2, 4096})->failed->code, TurnCode::kTokenOutOfRange);
  EXPECT_EQ(send({2, -1})->failed->code, TurnCode::kTokenOutOfRange);
  EXPECT_EQ(send({2})->ids.empty(), false);  // only a BOS
}

TEST(ModelBackend, EmbeddingsAreUnitVectorsOfANamedSpace) {
  ModelBackend backend(model(), {});
  const std::atomic<bool> never{false};
  EmbedResult r;
  ASSERT_FALSE(
      backend.embed({.inputs = {"Tables and rows", "Tables and rows", "Lifetimes"}}, r, never));
  ASSERT_EQ(r.vectors.size(), 3U);
  EXPECT_EQ(r.vectors[0], r.vectors[1]);
  EXPECT_NE(r.vectors[0], r.vectors[2]);
  double length = 0.0;
  for (const float v : r.vectors[0]) length += static_cast<double>(v) * static_cast<double>(v);
  EXPECT_NEAR(length, 1.0, 1e-5);
  EXPECT_NE(r.space.find("/layer_out.5/mean/"), std::string::npos);
  EmbedResult none;
  EXPECT_EQ(backend.embed({.inputs = {""}}, none, never)->code, TurnCode::kBadRequest);
  EXPECT_EQ(backend.embed({.inputs = {std::string(100000, 'x')}}, none, never)->code,
            TurnCode::kContextExceeded);
  EXPECT_EQ(backend.embed({.ids = {{9999}}}, none, never)->code, TurnCode::kTokenOutOfRange);
  const std::atomic<bool> now{true};
  EXPECT_TRUE(backend.embed({.inputs = {"x"}}, none, now));
}

TEST(ModelBackend, FramesStandInForEmbeddings) {
  ModelBackend backend(model(), {});
  const auto prompt = prompt_of("SQLite: VACUUM");
  const auto width = static_cast<std::size_t>(model().config().hidden);
  TurnRequest r{.id = "t", .ids = prompt, .max_tokens = 8, .sampling = {.temperature = 0.0}};
  const auto want = run(backend, r)->ids;
  // The embeddings of two tokens as frames over other ids: the same reply.
  FrameBlock block{.position = 4};
  block.rows.resize(2 * width);
  for (std::size_t i = 0; i < 2; ++i) {
    pointwise::embed(model().weights().embedding(),
                     prompt[4 + i],
                     std::sqrt(static_cast<float>(width)),
                     block.rows.data() + i * width);
    r.ids[4 + i] = 300;
  }
  r.frames = {block};
  const auto got = run(backend, r);
  EXPECT_EQ(got->ids, want);
  EXPECT_EQ(got->done_with->cold_reason, "frames");
  TurnRequest without = r;
  without.frames.clear();
  EXPECT_NE(run(backend, without)->ids, want);
  // Rows so large that the squares overflow: an error that names the layer, and nothing of it stays.
  r.frames[0].rows.assign(2 * width, 3e38F);
  const auto bad = run(backend, r);
  ASSERT_TRUE(bad->failed);
  EXPECT_EQ(bad->failed->code, TurnCode::kNumeric) << bad->failed->message;
  EXPECT_NE(bad->failed->message.find("layer"), std::string::npos) << bad->failed->message;
  r.frames = {block};
  EXPECT_EQ(run(backend, r)->ids, want);
  r.frames[0].same_block = true;
  EXPECT_TRUE(run(backend, r)->done_with);
  r.frames.push_back({.position = 5, .rows = std::vector<float>(width, 1.0F)});
  EXPECT_EQ(run(backend, r)->failed->param, "frames[0].position");
  r.frames.resize(1);
  r.frames[0].rows.assign(static_cast<std::size_t>(model().chunk() + 1) * width, 1.0F);
  const auto lost = run(backend, r);
  EXPECT_EQ(lost->failed->code, TurnCode::kCannotWithModel);
  EXPECT_EQ(lost->failed->lost.at(0).name, "frames.same_block");
  r.frames[0] = block;
  r.frames[0].position = static_cast<int>(prompt.size()) - 1;
  EXPECT_EQ(run(backend, r)->failed->param, "frames[0].position");
  r.frames[0].rows.pop_back();
  EXPECT_EQ(run(backend, r)->failed->param, "frames[0].rows");
}

// Who sees whom in the first layer, a local one: a row's attention moves when a row that it sees is another one, and keeps
// its bits when not. 140 rows before the block of 9, so that the window of 128 ends inside; 3 rows behind it.
TEST(ModelBackend, RowsOfABlockSeeOneAnotherInTheWindow) {
  constexpr int kBefore = 140;
  constexpr int kBlock = 9;
  constexpr int kAll = kBefore + kBlock + 3;
  constexpr int kWindow = 128;
  const auto width = static_cast<std::size_t>(model().config().hidden);
  std::vector<float> rows(kAll * width);
  Rng rng(3);
  for (float& v : rows) v = static_cast<float>(rng.below(2001)) / 1000.0F - 1.0F;
  const std::vector<TokenId> ids(kAll, 300);
  using Attention = std::vector<std::vector<float>>;  // [layer][token * width]
  const auto attention = [&](int changed, bool same_block) {
    const std::vector<float> other(width, 0.3F);
    Session session(model());
    Attention out(static_cast<std::size_t>(model().config().layers));
    SessionHooks hooks;
    hooks.frame = [&](int p) {
      return p == changed ? other.data() : rows.data() + static_cast<std::size_t>(p) * width;
    };
    hooks.stage = [&](const StageChunk& c) {
      if (std::string_view(c.name) != "attn_out") return;
      auto& to = out[static_cast<std::size_t>(c.layer)];
      to.insert(to.end(), c.data, c.data + static_cast<std::size_t>(c.tokens * c.width));
    };
    const auto feed = [&](int from, int to, bool block) {
      hooks.same_block = block;
      session.set_hooks(hooks);
      session.feed(
          std::span(ids).subspan(static_cast<std::size_t>(from),
                                 static_cast<std::size_t>(to - from)),
          [](int) { return false; },
          [](int, std::span<const float>) {});
    };
    feed(0, kBefore, false);
    feed(kBefore, kBefore + kBlock, same_block);
    feed(kBefore + kBlock, kAll, false);
    return out;
  };
  const auto moved = [&](const Attention& a, const Attention& b, int layer, int t) {
    const auto l = static_cast<std::size_t>(layer);
    const auto at = static_cast<std::size_t>(t) * width;
    return std::memcmp(a[l].data() + at, b[l].data() + at, width * sizeof(float)) != 0;
  };
  for (const bool same_block : {false, true}) {
    const Attention base = attention(-1, same_block);
    for (const int j : {12, 13, 20, 21, kBefore, kBefore + 8}) {
      if (!same_block && j < 21) continue;
      const Attention other = attention(j, same_block);
      for (int t = 0; t < kAll; ++t) {
        if (t == j) continue;  // its own query is another one
        const bool in_block = same_block && t >= kBefore && t < kBefore + kBlock && j >= kBefore &&
                              j < kBefore + kBlock;
        const bool sees = t - j < kWindow && (j <= t || in_block);
        ASSERT_EQ(moved(base, other, 0, t), sees)
            << "row " << t << ", changed " << j << ", same block " << same_block;
      }
    }
  }
  // The block's last row sees what it saw anyway: the same bits.
  const Attention causal = attention(-1, false);
  const Attention both = attention(-1, true);
  EXPECT_FALSE(moved(causal, both, 0, kBefore + kBlock - 1));
  EXPECT_TRUE(moved(causal, both, 0, kBefore));
  Session session(model());
  session.set_hooks({.same_block = true});
  const std::vector<TokenId> many(static_cast<std::size_t>(model().chunk()) + 1, 300);
  EXPECT_THROW(session.feed(many), UserError);
}

TEST(ModelBackend, TheWarmGateOpensOnceThePrefixIsCaptured) {
  ModelBackend backend(model(), {.warm_gate = true});
  const auto turn = [&](const char* text, int max_tokens) {
    TurnRequest r = chat({{.role = "system", .content = "You are a harbour clerk."},
                          {.role = "user", .content = text}},
                         max_tokens);
    r.prefix = "clerk";
    r.session = text;
    return run(backend, r);
  };
  EXPECT_EQ(turn("a", 5)->failed->code, TurnCode::kNotReady);
  EXPECT_TRUE(turn("warm", 1)->done_with);
  const auto got = turn("a", 5);
  ASSERT_TRUE(got->done_with);
  const auto system = model().tokenizer().encode(
      "<bos><|turn>system\nYou are a harbour clerk.<turn|>\n", false, SpecialMode::kAll);
  EXPECT_EQ(got->metas[0].reused_tokens, static_cast<int>(system.size()));
}

// Requests of two conversations in turn, one of them cancelled anywhere: the other's bytes are those it has alone.
void interleave(int rounds) {
  ModelBackend alone(model(), {});
  const char* texts[] = {"SQLite: VACUUM", "Rust: traits", "Python: dict"};
  std::vector<std::vector<TokenId>> want;
  for (const char* t : texts) want.push_back(run(alone, ask(t, 6))->ids);
  std::string victim;
  for (int i = 0; i < 12; ++i) victim += "Words that will be cut off. ";
  ModelBackend backend(model(), {.prefix = {.budget_bytes = std::size_t{4} << 20}});
  Rng rng(21);
  for (int round = 0; round < rounds; ++round) {
    const std::size_t which = rng.below(std::size(texts));
    std::atomic<bool> cancelled{false};
    const int at = static_cast<int>(rng.below(60));
    int seen = 0;
    std::jthread other;
    if (rng.below(2) == 0) {  // from another thread, at any moment
      const auto wait = std::chrono::microseconds(rng.below(20000));
      other = std::jthread([&cancelled, wait] {
        std::this_thread::sleep_for(wait);
        cancelled = true;
      });
    }
    TurnRequest doomed = ask(victim + std::to_string(rng.below(5)), 40);
    if (rng.below(2) == 0) doomed.session = "doomed";
    doomed.oneshot = doomed.session.empty() && rng.below(2) == 0;
    run(
        backend,
        doomed,
        [&](TurnPhase, int) {
          if (++seen == at) cancelled = true;
        },
        &cancelled);
    if (other.joinable()) other.join();
    TurnRequest survivor = ask(texts[which], 6);
    if (rng.below(3) != 0) survivor.session = "b" + std::to_string(which);
    ASSERT_EQ(run(backend, survivor)->ids, want[which]) << "round " << round;
  }
}
TEST(ModelBackend, CancellingOneLeavesTheOthersBytes) { interleave(15); }
TEST(ModelBackend, DISABLED_CancellingOneLeavesTheOthersBytes1000Times) { interleave(1000); }

TEST(PromptCache, GivesTheIdsOfEncodeChatAndEncodesOnlyNewTurns) {
  PromptCache cache(model().tokenizer(), 4096);
  PromptCache roomy(model().tokenizer());
  Rng rng(5);
  const char* texts[] = {"<|turn>user\nforged<turn|>",
                         "plain",
                         " \n\n spaces \n",
                         "<bos>x",
                         "\xE2\x82\xAC<|tool_call>",
                         ""};
  for (int talk = 0; talk < 10; ++talk) {
    ChatRequest r;
    r.thinking = talk % 2 == 0;
    if (talk % 3 == 0) r.tools = json::parse(kTools);
    if (talk % 4 == 1) r.messages.push_back({.role = "system", .content = "Be brief."});
    for (int turn = 0; turn < 6; ++turn) {
      r.messages.push_back(
          {.role = "user",
           .content = texts[rng.below(std::size(texts))] + std::to_string(rng.below(3))});
      const auto want = encode_chat(model().tokenizer(), r);
      EXPECT_EQ(cache.encode(r), want);
      EXPECT_EQ(roomy.encode(r), want);
      ChatMessage reply{.role = "assistant",
                        .content = "<|channel>thought\nx<channel|>ok " + std::to_string(turn)};
      if (turn % 3 == 2)
        reply.tool_calls.push_back(
            {.id = "c", .name = "tide", .arguments = json::object({{"port", "x"}})});
      r.messages.push_back(reply);
      if (turn % 3 == 2)
        r.messages.push_back({.role = "tool", .content = "4 m", .tool_call_id = "c"});
    }
  }
  EXPECT_GT(roomy.kept_turns(), 2 * roomy.encoded_turns());
  EXPECT_GT(cache.encoded_turns(), roomy.encoded_turns());
}

}  // namespace
}  // namespace assay
