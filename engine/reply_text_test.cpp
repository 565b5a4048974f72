#include "engine/reply_text.h"

#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace assay {
namespace {

// The text as deltas when `bytes` arrive cut at every place of `cuts`.
std::string joined(ReplyText& text, const std::string& bytes, std::size_t piece) {
  std::string out;
  for (std::size_t at = 0; at < bytes.size(); at += piece)
    out += text.push(bytes.substr(at, piece));
  return out + text.finish();
}

TEST(ReplyText, StopsAcrossThreeTokensAndASplitCharacter) {
  ReplyText text({"\xC3\xA9nd!"});
  EXPECT_EQ(text.push("a\xC3"), "a");
  EXPECT_EQ(text.push("\xA9n"), "");  // may begin the stop string
  EXPECT_EQ(text.push("d"), "");
  EXPECT_FALSE(text.stopped());
  EXPECT_EQ(text.push("! more"), "");
  EXPECT_TRUE(text.stopped());
  EXPECT_EQ(text.stop(), "\xC3\xA9nd!");
  EXPECT_EQ(text.push("x"), "");
  EXPECT_EQ(text.finish(), "");
}

TEST(ReplyText, GivesBackWhatOnlyLookedLikeAStop) {
  ReplyText text({"aab"});
  EXPECT_EQ(text.push("xaa"), "x");
  EXPECT_EQ(text.push("a"), "a");
  EXPECT_EQ(text.push("c"), "aac");
  EXPECT_EQ(text.push("aa"), "");
  EXPECT_EQ(text.finish(), "aa");
  EXPECT_FALSE(text.stopped());
}

TEST(ReplyText, TheEarliestStopWins) {
  ReplyText text({"end", "b"});
  EXPECT_EQ(text.push("abend"), "a");
  EXPECT_EQ(text.stop(), "b");
}

TEST(ReplyText, IsTheSameForEveryCutOfTheBytes) {
  const std::string bytes =
      "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80 STOP tail";
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    ReplyText text({"STOP"});
    EXPECT_EQ(joined(text, bytes, piece), bytes.substr(0, bytes.find("STOP"))) << piece;
  }
}

TEST(ReplyText, ReplacesBytesThatAreNoCharacter) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"\x80", "\xEF\xBF\xBD"},                                  // lone continuation
      {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},                  // overlong
      {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},  // surrogate
      {"\xFF", "\xEF\xBF\xBD"},
      {"ab\xE2\x82", "ab\xEF\xBF\xBD"},  // unfinished at the end
  };
  for (const auto& [bytes, text] : cases) {
    ReplyText reply;
    EXPECT_EQ(joined(reply, bytes, 1), text);
  }
}

}  // namespace
}  // namespace assay
