#include "engine/tool_call.h"

#include <string>

#include "gtest/gtest.h"
#include <nlohmann/json.hpp>

namespace assay {
namespace {

using nlohmann::json;

TEST(ParseReply, SplitsThoughtAndAnswer) {
  const auto r = parse_reply("<|channel>thought\nhm\n<channel|>It is 97.<turn|>");
  EXPECT_EQ(r.reasoning, "hm");
  EXPECT_EQ(r.content, "It is 97.");
  EXPECT_TRUE(r.error.empty());
}

TEST(ParseReply, ToleratesEmptyRepeatedStrayAndUnclosedThoughts) {
  EXPECT_EQ(parse_reply("<|channel>thought<channel|>a").content, "a");
  EXPECT_EQ(parse_reply("<|channel>thought\n<channel|><|channel>thought\nx\n<channel|>a").reasoning,
            "x");
  EXPECT_EQ(parse_reply("a<channel|>b").content, "ab");
  EXPECT_EQ(parse_reply("<|channel>thought\ncut off").reasoning, "cut off");
}

TEST(ParseReply, ReadsCallsWithNestedValues) {
  const auto r = parse_reply(
      "ok<|tool_call>call:f{a:<|\"|>x,}]<|\"|>,b:-1.5e2,c:[true,null,{d:<|\"|><|\"|>}],e:{}}<tool_"
      "call|><|tool_call>call:g{}"
      "<tool_call|><|tool_response>");
  ASSERT_EQ(r.tool_calls.size(), 2U) << r.error;
  EXPECT_EQ(r.tool_calls[0].name, "f");
  EXPECT_EQ(r.tool_calls[0].arguments,
            json::parse(R"({"a": "x,}]", "b": -150.0, "c": [true, null, {"d": ""}], "e": {}})"));
  EXPECT_EQ(r.tool_calls[1].name, "g");
  EXPECT_EQ(r.content, "ok");
}

TEST(ParseReply, KeepsTheRawTextOfABrokenCallAndSaysWhy) {
  for (const char* text : {"<|tool_call>call:f{a:<|\"|>open",
                           "<|tool_call>call:f{a:1}",
                           "<|tool_call>call:f{a:zz}<tool_call|>",
                           "<|tool_call>f{}<tool_call|>",
                           "<|tool_call>call:f{:1}<tool_call|>",
                           "<|tool_call>call:f{a:[1<tool_call|>"}) {
    const auto r = parse_reply(text);
    EXPECT_TRUE(r.tool_calls.empty()) << text;
    EXPECT_FALSE(r.error.empty()) << text;
    EXPECT_EQ(r.content, text);
  }
  std::string deep = "<|tool_call>call:f{a:";
  for (int i = 0; i < 100000; ++i) deep += '[';
  EXPECT_FALSE(parse_reply(deep).error.empty());
}

TEST(ParseReply, GivesBackWhatTheTemplateWrote) {
  const json arguments =
      json::parse(R"({"a": [1, "two", {"b": null}], "c": {"d": 1.25, "e": false}})");
  ChatRequest request;
  request.messages.push_back({.role = "user", .content = "u"});
  request.messages.push_back(
      {.role = "assistant", .tool_calls = {{.name = "f", .arguments = arguments}}});
  const std::string text = render_chat_text(request);
  const auto r = parse_reply(std::string_view(text).substr(text.find("<|tool_call>")));
  ASSERT_EQ(r.tool_calls.size(), 1U) << r.error;
  EXPECT_EQ(r.tool_calls[0].arguments, arguments);
}

// Cut off anywhere, a call is an error with its raw text, never silence.
TEST(ParseReply, SaysSoForEveryCutOfACall) {
  const std::string whole =
      "Wait.<|tool_call>call:f{a:<|\"|>x <b> {y}: [z]<|\"|>,b:[1,{c:true}],d:-2.5e3}<tool_call|>";
  ASSERT_EQ(parse_reply(whole).error, "");
  ASSERT_EQ(parse_reply(whole).tool_calls.at(0).arguments.at("a"), "x <b> {y}: [z]");
  const std::size_t mark = whole.find("<|tool_call>") + 12;
  for (std::size_t n = mark; n < whole.size(); ++n) {
    const auto r = parse_reply(std::string_view(whole).substr(0, n));
    EXPECT_NE(r.error, "") << whole.substr(0, n);
    EXPECT_EQ(r.raw, whole.substr(mark - 12, n - mark + 12));
    EXPECT_TRUE(r.tool_calls.empty());
    EXPECT_EQ(r.content, whole.substr(0, n));
  }
}

TEST(ParseReply, ReadsOnAfterABrokenCallAndReportsTheFirst) {
  const auto r = parse_reply("<|tool_call>call:f{a}<tool_call|><|tool_call>call:g{}<tool_call|>");
  ASSERT_EQ(r.tool_calls.size(), 1U);
  EXPECT_EQ(r.tool_calls[0].name, "g");
  EXPECT_EQ(r.raw, "<|tool_call>call:f{a}<tool_call|><|tool_call>call:g{}<tool_call|>");
}

TEST(ParseReply, ACallsEndWithoutItsBeginningIsAnError) {
  const auto r = parse_reply("call:f{a:1}<tool_call|>");
  EXPECT_NE(r.error.find("without its beginning"), std::string::npos);
  EXPECT_EQ(r.raw, "call:f{a:1}<tool_call|>");
  EXPECT_EQ(r.content, "call:f{a:1}<tool_call|>");
}

}  // namespace
}  // namespace assay
