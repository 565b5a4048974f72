// Everything of the daemon that needs no socket: the request decoder's table, the header guard, frames, the mailbox.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/chat_template.h"
#include "engine/daemon/exchange.h"
#include "engine/daemon/header_guard.h"
#include "engine/daemon/json_reader.h"
#include "engine/daemon/request_decoder.h"
#include "engine/daemon/wire_frames.h"
#include "kernels/base/rng.h"

namespace assay {
namespace {

using nlohmann::json;

ModelInfo model() {
  return {.name = "m", .vocabulary = 1000, .context = 512, .width = 2, .moe = true};
}

const std::string kMessages = R"("messages":[{"role":"user","content":"hi"}])";

// Code and field at fault, or "ok".
std::string verdict(const std::string& body, TurnRoute route = TurnRoute::kChat) {
  DecodedTurn out;
  const auto error = decode_turn(body, route, model(), out);
  if (!error) return "ok";
  EXPECT_FALSE(error->message.empty()) << body;
  return std::string(turn_code_name(error->code)) + " " + error->param;
}
std::string with(const std::string& field, TurnRoute route = TurnRoute::kChat) {
  return verdict("{" + kMessages + "," + field + "}", route);
}

TEST(Decoder, TakesEveryFieldOfTheWireFormat) {
  DecodedTurn out;
  const auto error = decode_turn(
      R"({"model":"x","messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}],"max_tokens":512,
          "temperature":0,"top_k":0,"top_p":1,"seed":9223372036854775807,"stop":["a","b"],"eot_bias":-100,
          "raw_logits":1000,"logprobs":20,"byte_exact":true,"thinking":true,"session":"a-1","prefix":"p.q",
          "tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],
          "tool_choice":{"type":"function","function":{"name":"f"}},"stream":false,
          "frames":[{"position":3,"rows":"AACAPwAAAEA=","same_block":true}]})",
      TurnRoute::kChat,
      model(),
      out);
  ASSERT_FALSE(error) << error->message;
  const TurnRequest& r = out.request;
  EXPECT_EQ(r.chat->messages.size(), 2U);
  EXPECT_TRUE(r.chat->thinking);
  EXPECT_EQ(r.chat->tools.size(), 1U);
  EXPECT_EQ(r.max_tokens, 512);
  EXPECT_EQ(r.sampling.temperature, 0.0);
  EXPECT_EQ(r.sampling.seed, 9223372036854775807ULL);
  EXPECT_EQ(r.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.eot_bias, -100.0);
  EXPECT_EQ(r.raw_logits, 1000);
  EXPECT_EQ(r.logprobs, 20);
  EXPECT_TRUE(r.byte_exact);
  EXPECT_EQ(r.tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(r.tool_name, "f");
  EXPECT_EQ(r.session, "a-1");
  EXPECT_EQ(r.frames.at(0).position, 3);
  EXPECT_EQ(r.frames.at(0).rows, (std::vector<float>{1.0F, 2.0F}));
  EXPECT_TRUE(r.frames.at(0).same_block);
  EXPECT_FALSE(out.stream);
}

TEST(Decoder, RefusesEveryNumberOutsideItsRange) {
  struct Range {
    const char* field;
    std::vector<const char*> good, bad;
  };
  // What no field of this kind takes: a text, a list, true, null, an object.
  const std::vector<const char*> never{R"("1")", "[1]", "true", "null", "{}"};
  const std::vector<Range> ranges{
      {"max_tokens",
       {"1", "512"},
       {"-1", "0", "1.5", "513", "2147483648", "9223372036854775808", "18446744073709551616"}},
      {"temperature", {"0", "1.5", "10"}, {"-1", "-0.001", "10.001", "2147483648"}},
      {"top_p", {"0", "0.5", "1"}, {"-1", "1.0001"}},
      {"top_k", {"0", "2147483647"}, {"-1", "1.5", "2147483648", "18446744073709551615"}},
      {"seed",
       {"0", "9223372036854775807"},
       {"-1", "1.5", "9223372036854775808", "18446744073709551616"}},
      {"eot_bias", {"-100", "0", "100"}, {"100.1", "-100.1", "1e38", "-1e38"}},
      {"raw_logits", {"0", "1000"}, {"-1", "1001", "1.5"}},
      {"logprobs", {"0", "20"}, {"-1", "21", "1.5"}},
  };
  for (const Range& r : ranges) {
    const std::string key = "\"" + std::string(r.field) + "\":";
    for (const char* v : r.good) EXPECT_EQ(with(key + v), "ok") << key << v;
    for (const char* v : r.bad)
      EXPECT_EQ(with(key + v), "bad_request " + std::string(r.field)) << key << v;
    for (const char* v : never)
      EXPECT_EQ(with(key + v), "bad_request " + std::string(r.field)) << key << v;
    for (const char* v : {"1e400", "-1e400", "NaN", "Infinity", "01", "+1"}) {
      EXPECT_EQ(with(key + v), "bad_json ") << key << v;
    }
  }
}

TEST(Decoder, RefusesByCodeAndField) {
  const std::string tool = R"({"type":"function","function":{"name":"f"}})";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "bad_json "},
      {"[]", "bad_request the request"},
      {"{}", "bad_request messages"},
      {R"({"messages":[]})", "bad_request messages"},
      {R"({"messages":"hi"})", "bad_request messages"},
      {R"({"messages":[3]})", "bad_request messages[0]"},
      {R"({"messages":[{"content":"x"}]})", "bad_request messages[0].role"},
      {R"({"messages":[{"role":"wizard","content":"x"}]})", "bad_request messages[0].role"},
      {R"({"messages":[{"role":"user","content":3}]})", "bad_request messages[0].content"},
      {"{" + kMessages.substr(0, kMessages.size() - 1) + R"(,{"role":"user"}]})",
       "bad_request messages[1].content"},
      {R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f"}}]}]})",
       "ok"},
      {R"({"messages":[{"role":"user","content":"x","mood":1}]})",
       "unknown_field messages[0].mood"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]})",
       "unsupported messages[0].content[0]"},
      {R"({"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}]})",
       "unsupported messages[0].content[0]"},
      {R"({"ids":[]})", "bad_request ids"},
      {R"({"ids":[1,2]})", "ok"},
      {R"({"ids":[-1]})", "token_out_of_range ids[0]"},
      {R"({"ids":[0,1000]})", "token_out_of_range ids[1]"},
      {R"({"ids":[2147483647]})", "token_out_of_range ids[0]"},
      {R"({"ids":[1.0]})", "bad_request ids[0]"},
      {R"({"ids":[1],"messages":[{"role":"user","content":"x"}]})", "bad_request ids"},
      {R"({"ids":[1],"thinking":true})", "bad_request thinking"},
      {"{" + kMessages + R"(,"mood":1})", "unknown_field mood"},
      {"{" + kMessages + R"(,"stop":["a","b","c","d","e","f","g","h","i"]})", "bad_request stop"},
      {"{" + kMessages + R"(,"stop":[""]})", "bad_request stop[0]"},
      {"{" + kMessages + R"(,"stop":"x"})", "ok"},
      {"{" + kMessages + R"(,"session":"../../etc/passwd"})", "bad_request session"},
      {"{" + kMessages + R"(,"session":".hidden"})", "bad_request session"},
      {"{" + kMessages + R"(,"prefix":""})", "bad_request prefix"},
      {"{" + kMessages + R"(,"prefix":"a\u0000b"})", "bad_request prefix"},
      {"{" + kMessages + R"(,"byte_exact":1})", "bad_request byte_exact"},
      {"{" + kMessages + R"(,"stream":"yes"})", "bad_request stream"},
      {"{" + kMessages + R"(,"tools":[{"type":"function"}]})", "bad_request tools[0].function"},
      {"{" + kMessages + R"(,"tools":[)" + tool + "," + tool + "]}",
       "bad_request tools[1].function.name"},
      {"{" + kMessages + R"(,"tool_choice":"required"})", "bad_request tool_choice"},
      {"{" + kMessages + R"(,"tools":[)" + tool + R"(],"tool_choice":{"function":{"name":"g"}}})",
       "bad_request tool_choice.function.name"},
      {"{" + kMessages + R"(,"grammar":""})", "bad_grammar grammar"},
      {"{" + kMessages + R"(,"grammar":")" + std::string(65537, 'a') + "\"}",
       "bad_grammar grammar"},
      {"{" + kMessages + R"(,"grammar":{"json_schema":{"type":"object"}}})", "ok"},
      {"{" + kMessages + R"(,"frames":[{"position":0,"rows":"AAAA"}]})",
       "bad_request frames[0].rows"},
      {"{" + kMessages + R"(,"frames":[{"position":0,"rows":"AACAfwAAAAA="}]})",
       "bad_request frames[0].rows"},  // inf
      {"{" + kMessages + R"(,"frames":[{"position":512,"rows":"AACAPwAAAEA="}]})",
       "bad_request frames[0].position"},
      {R"({"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]})",
       "bad_json "},
      {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xFF\"}]}", "bad_json "},
      {R"({"messages":[{"role":"user","content":"\ud800"}]})", "bad_json "},
  };
  for (const auto& [body, want] : cases) EXPECT_EQ(verdict(body), want) << body.substr(0, 200);
  EXPECT_EQ(with(R"("session":"s")", TurnRoute::kOneshot), "unknown_field session");
  EXPECT_EQ(with(R"("prefix":"s")", TurnRoute::kOneshot), "unknown_field prefix");
}

TEST(Decoder, NamesBothNumbersOfAPromptThatIsTooLong) {
  std::string ids = "1";
  for (int i = 0; i < 99'999; ++i) ids += ",1";
  DecodedTurn out;
  const auto error = decode_turn("{\"ids\":[" + ids + "]}", TurnRoute::kChat, model(), out);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, TurnCode::kContextExceeded);
  EXPECT_NE(error->message.find("100000"), std::string::npos);
  EXPECT_NE(error->message.find("512"), std::string::npos);
}

TEST(Decoder, RefusesDepthBeforeAValueExists) {
  for (const std::size_t depth : {33U, 1000U, 100'000U}) {
    const std::string deep = std::string(depth, '[') + std::string(depth, ']');
    std::string objects;
    for (std::size_t i = 0; i < depth; ++i) objects += "{\"a\":";
    objects += "1" + std::string(depth, '}');
    EXPECT_EQ(verdict(deep), "bad_json ");
    EXPECT_EQ(with("\"unknown\":" + deep), "bad_json ");
    EXPECT_EQ(with("\"tools\":" + deep), "bad_json ");
    EXPECT_EQ(with("\"grammar\":{\"json_schema\":" + objects + "}"), "bad_json ");
    // JSON inside a string has its own depth.
    const json inner = objects;
    EXPECT_EQ(
        verdict(
            R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" +
            inner.dump() + "}}]}]}"),
        "bad_request messages[0].tool_calls[0].function.arguments");
  }
  json value;
  EXPECT_EQ(read_json(std::string(32, '[') + std::string(32, ']'), value).fault, JsonFault::kNone);
}

TEST(Decoder, BoundsTheNumberOfValues) {
  std::string many = "[0";
  for (int i = 0; i < (1 << 20); ++i) many += ",0";
  json value;
  EXPECT_EQ(read_json(many + "]", value).fault, JsonFault::kValues);
}

TEST(Decoder, ListsWhatTheOpenAiShapeIgnores) {
  DecodedTurn out;
  const auto error = decode_turn(
      R"({"model":"gpt","messages":[{"role":"user","content":"x","mood":1}],"user":"u","frequency_penalty":0.5,
          "temperature":null,"logprobs":true,"top_logprobs":3,"stream":true,"stream_options":{"include_usage":true},
          "max_completion_tokens":7,"seed":-5,"response_format":{"type":"json_schema","json_schema":{"schema":{}}}})",
      TurnRoute::kOpenAi,
      model(),
      out);
  ASSERT_FALSE(error) << error->message;
  EXPECT_EQ(out.ignored, (std::vector<std::string>{"frequency_penalty", "user"}));
  EXPECT_EQ(out.request.logprobs, 3);
  EXPECT_EQ(out.request.max_tokens, 7);
  EXPECT_EQ(out.request.grammar_kind, GrammarKind::kJsonSchema);
  EXPECT_TRUE(out.include_usage);
  EXPECT_EQ(with("\"n\":2", TurnRoute::kOpenAi), "bad_request n");
  EXPECT_EQ(with("\"top_logprobs\":3", TurnRoute::kOpenAi), "bad_request top_logprobs");
  EXPECT_EQ(verdict(R"({"messages":null})", TurnRoute::kOpenAi), "bad_request messages");
}

TEST(Decoder, SurvivesFiveHundredMutatedBodies) {
  const std::vector<std::string> seeds{
      R"({"messages":[{"role":"user","content":"h\u00e9llo"}],"max_tokens":5,"stop":["a"],"seed":3,"temperature":0.5})",
      R"({"ids":[1,2,3],"raw_logits":5,"logprobs":2,"eot_bias":-1.5e1,"byte_exact":true})",
      R"({"messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"a\":[1]}"}}]},
          {"role":"tool","tool_call_id":"c","content":"ok"}],"tools":[{"type":"function","function":{"name":"f"}}]})",
      R"({"input":["a","b"],"a":{"space":"s","vector":[1,2]},"b":{"space":"s","vector":[1,2]},"id":"turn-1","tokens":[1]})",
  };
  const std::string pieces[] = {"{",
                                "}",
                                "[",
                                "]",
                                "\"",
                                ",",
                                ":",
                                "\\u",
                                "1e999",
                                "-",
                                "null",
                                "\xFF",
                                std::string(1, '\0'),
                                "9e18"};
  Rng rng(20'240'601);
  const auto below = [&](std::size_t n) {
    return static_cast<std::size_t>(rng.uniform() * static_cast<double>(n));
  };
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    std::string body = seeds[below(4)];
    for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
      const std::size_t at = below(body.size());
      switch (below(4)) {
        case 0:
          body.erase(at, 1 + below(8));
          break;
        case 1:
          body.insert(at, pieces[below(14)]);
          break;
        case 2:
          body[at] = static_cast<char>(below(256));
          break;
        default:
          body.insert(at, body.substr(at, below(20)));
          break;
      }
      if (body.empty()) body = "{";
    }
    for (const TurnRoute route : {TurnRoute::kChat, TurnRoute::kOneshot, TurnRoute::kOpenAi}) {
      DecodedTurn out;
      const auto error = decode_turn(body, route, model(), out);
      refused += error ? 1 : 0;
      if (error) {
        EXPECT_EQ(turn_code_status(error->code) / 100,
                  error->code == TurnCode::kUnsupported ? 5 : 4)
            << body;
        EXPECT_FALSE(error_answer(*error).body.empty());
      }
    }
    EmbedRequest embed;
    Similarity pair;
    TokenizeRequest tokenize;
    DetokenizeRequest detokenize;
    std::string id;
    decode_embed(body, model(), embed);
    decode_similarity(body, pair);
    decode_abort(body, id);
    decode_tokenize(body, tokenize);
    decode_detokenize(body, model(), detokenize);
  }
  EXPECT_GT(refused, 700);  // of 1500
  EXPECT_LT(refused, 1500);
}

TEST(HeaderGuard, RefusesWhatTwoReadersReadDifferently) {
  const std::string ok = "POST /v1/chat HTTP/1.1\r\nHost: h\r\n";
  EXPECT_EQ(check_head(ok + "Content-Length: 2\r\n\r\n{}").state, HeadCheck::kWhole);
  EXPECT_EQ(check_head(ok + "Content-Length: 2\r\n\r\n{}").bytes, ok.size() + 21);
  EXPECT_EQ(check_head(ok + "Transfer-Encoding: chunked\r\n\r\n").state, HeadCheck::kWhole);
  EXPECT_EQ(check_head("GET / HTTP/1.0\r\n\r\n").state, HeadCheck::kWhole);
  EXPECT_EQ(check_head(ok.substr(0, 10)).state, HeadCheck::kMore);
  EXPECT_EQ(check_head("").state, HeadCheck::kMore);
  const std::vector<std::string> bad{
      ok + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
      ok + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n",
      ok + "Content-Length: 2, 2\r\n\r\n",
      ok + "Content-Length: +2\r\n\r\n",
      ok + "Content-Length: 0x2\r\n\r\n",
      ok + "Content-Length:\r\n\r\n",
      ok + "Transfer-Encoding: xchunked\r\n\r\n",
      ok + "Transfer-Encoding: chunked, chunked\r\n\r\n",
      ok + "Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n",
      ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
      "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
      "GET / HTTP/1.1\r\n\r\n",
      ok + "Host: other\r\n\r\n",
      ok + "A: b\r\n folded\r\n\r\n",
      ok + "A : b\r\n\r\n",
      ok + ": b\r\n\r\n",
      ok + "A: b\n\r\n",
      ok + "A: b\rC: d\r\n\r\n",
      ok + "A: " + std::string(1, '\0') + "\r\n\r\n",
      ok + "Expect: magic\r\n\r\n",
      "GET /\r\n",
      "GET / HTTP/2.0\r\n",
      "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
      "GET /\xC3\xA9 HTTP/1.1\r\nHost: h\r\n\r\n",
      "\x16\x03\x01",
      " GET / HTTP/1.1\r\n",
      "\r\nGET / HTTP/1.1\r\n",
  };
  for (const std::string& head : bad) EXPECT_EQ(check_head(head).state, HeadCheck::kBad) << head;
}

TEST(HeaderGuard, BoundsTheHead) {
  const std::string start = "GET / HTTP/1.1\r\nHost: h\r\n";
  const std::string fits =
      start + "A: " + std::string(kHeadBytes - start.size() - 7, 'a') + "\r\n\r\n";
  ASSERT_EQ(fits.size(), kHeadBytes);
  EXPECT_EQ(check_head(fits).state, HeadCheck::kWhole);
  const HeadCheck over =
      check_head(start + "A: " + std::string(kHeadBytes - start.size() - 6, 'a') + "\r\n\r\n");
  EXPECT_EQ(over.state, HeadCheck::kBad);
  EXPECT_EQ(over.error.code, TurnCode::kHeaderTooLarge);
  std::string many = start;
  for (std::size_t i = 0; i < kHeadFields; ++i) many += "A: b\r\n";
  EXPECT_EQ(check_head(many + "\r\n").error.code, TurnCode::kHeaderTooLarge);
  EXPECT_EQ(check_head("GET /" + std::string(1 << 20, 'a')).error.code, TurnCode::kHeaderTooLarge);
}

TEST(Frames, StayOneLineWhateverTheTextHolds) {
  const std::string hostile =
      std::string("\n\ndata: x\r\nevent: done\n\n\xFF") + std::string(1, '\0');
  const std::string frame = sse_frame("delta", {{"text", hostile}});
  EXPECT_EQ(frame.find('\n'), frame.find("\ndata: "));
  EXPECT_EQ(frame.find("\n\n"), frame.size() - 2);
  EXPECT_EQ(frame.find('\r'), std::string::npos);
  const json data = json::parse(frame.substr(frame.find('{')));
  EXPECT_EQ(data["text"].get<std::string>().substr(0, 24), hostile.substr(0, 24));
}

TEST(Frames, VerdictOfTheMargin) {
  EXPECT_EQ(verdict_of(13.10), Verdict::kFinished);
  EXPECT_EQ(verdict_of(-28.43), Verdict::kSevered);
  EXPECT_EQ(verdict_of(-18.50), Verdict::kFinished);  // the boundary is not below itself
  EXPECT_EQ(verdict_of(-18.51), Verdict::kSevered);
  EXPECT_EQ(verdict_of(-20.0, -25.0), Verdict::kFinished);
  EXPECT_EQ(verdict_of(std::nullopt), Verdict::kUnknown);
  EXPECT_EQ(verdict_of(std::numeric_limits<double>::quiet_NaN()), Verdict::kUnknown);
  EXPECT_EQ(verdict_of(-std::numeric_limits<double>::infinity()), Verdict::kUnknown);
}

TEST(Frames, NumbersThatAreNoneBecomeNull) {
  const auto encoder = make_encoder({.id = "turn-1"});
  const std::string frame =
      encoder->kairos({.eot_margin = std::numeric_limits<double>::infinity()});
  EXPECT_NE(frame.find("\"eot_margin\":null"), std::string::npos);
  EXPECT_NE(frame.find("\"verdict\":\"unknown\""), std::string::npos);
}

TEST(Base64, RoundTripsAndRefuses) {
  for (const std::string bytes : {"", "a", "ab", "abc", "\xFF\x00\x7F"}) {
    EXPECT_EQ(base64_decode(base64_encode(bytes)), bytes);
  }
  for (const char* bad : {"A", "A===", "AA=A", "====", "AA*=", "AAAA="})
    EXPECT_FALSE(base64_decode(bad)) << bad;
}

TEST(Exchange, BoundsWhatWaitsForASlowReader) {
  int wakes = 0;
  Exchange exchange([&] { ++wakes; });
  exchange.begin_stream({});
  const auto frame = std::make_shared<const std::string>(64 * 1024, 'x');
  const std::chrono::milliseconds none(0);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(exchange.push(frame, none));
  EXPECT_FALSE(exchange.push(frame, none));
  EXPECT_TRUE(exchange.push(std::make_shared<const std::string>("end"), none, true));  // terminal
  EXPECT_EQ(wakes, 1);  // one is enough until it is taken
  EXPECT_EQ(exchange.take().frames.size(), 5U);
  EXPECT_FALSE(exchange.push(frame, none));  // taken is not written
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    exchange.written(256 * 1024);
  });
  EXPECT_TRUE(exchange.push(frame, std::chrono::milliseconds(5'000)));
  reader.join();
  bool told = false;
  exchange.on_gone([&] { told = true; });
  exchange.leave();
  EXPECT_TRUE(told);
  EXPECT_FALSE(exchange.push(frame, none));
}

}  // namespace
}  // namespace assay
