#include "engine/tokenizer.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "engine/gguf_writer.h"
#include "kernels/base/error.h"
#include "kernels/base/rng.h"

namespace assay {
namespace {

const std::string kSource = ASSAY_SOURCE_DIR;

const Tokenizer& shipped() {
  static const Tokenizer t =
      Tokenizer::load(GgufFile::open(kSource + "/engine/models/tiny-gemma4-moe-q4_0.gguf"));
  return t;
}

TEST(Tokenizer, GivesTheStoredIdsOfAllGoldenCases) {
  std::ifstream in(kSource + "/engine/testdata/tokenizer.json");
  const auto cases = nlohmann::json::parse(in);
  ASSERT_GE(cases.size(), 21U);
  for (const auto& c : cases) {
    const std::string special = c.value("special", "all");
    const auto text = c.at("text").get<std::string>();
    const auto mode = special == "all" ? SpecialMode::kAll : SpecialMode::kUserDefined;
    EXPECT_EQ(shipped().encode(text, false, mode), c.at("ids").get<std::vector<TokenId>>())
        << c.dump();
    EXPECT_EQ(shipped().decode(shipped().encode(text, false, mode), true), text);
  }
}

TEST(Tokenizer, PutsBosFirstOnlyWhenAsked) {
  const TokenId bos = shipped().bos().value();
  EXPECT_EQ(bos, 2);
  EXPECT_EQ(shipped().encode("", true, SpecialMode::kAll), std::vector<TokenId>{bos});
  EXPECT_EQ(shipped().encode("", false, SpecialMode::kAll), std::vector<TokenId>{});
}

// Random bytes, random printable text, valid UTF-8 of every length, specials, and the space's stand-in U+2581.
std::string random_text(Rng& rng) {
  static const char* const kParts[] = {" ",
                                       "  ",
                                       "\n",
                                       "\n\n\n",
                                       "\t",
                                       "\r\n",
                                       "a",
                                       "the ",
                                       "<",
                                       "|>",
                                       "<|turn>",
                                       "<0x41>",
                                       "<|tool_call>",
                                       "<|\"|>",
                                       "\xE2\x96\x81",
                                       "\xE2",
                                       "\x96\x81",
                                       "\xC3\xA9",
                                       "\xF0\x9F\x99\x82",
                                       "\xED\xA0\x80",
                                       "\xC0\x80",
                                       "<bos>",
                                       "<unk>",
                                       "</s>",
                                       "\xF4\x90\x80\x80",
                                       "\xFF"};
  std::string out;
  const std::uint64_t n = rng.below(40);
  for (std::uint64_t i = 0; i < n; ++i) {
    switch (rng.below(4)) {
      case 0:
        out += static_cast<char>(rng.below(256));
        break;
      case 1:
        out += static_cast<char>(32 + rng.below(95));
        break;
      default:
        out += kParts[rng.below(std::size(kParts))];
    }
  }
  return out;
}

TEST(Tokenizer, DecodeGivesBackEveryByteString) {
  Rng rng(seed_from_name("DecodeGivesBackEveryByteString"));
  for (int i = 0; i < 20000; ++i) {
    const std::string text = random_text(rng);
    for (const auto mode : {SpecialMode::kAll, SpecialMode::kUserDefined, SpecialMode::kNone}) {
      const auto ids = shipped().encode(text, false, mode);
      ASSERT_EQ(shipped().decode(ids, true), text) << "case " << i;
      if (mode == SpecialMode::kNone) {
        ASSERT_EQ(shipped().decode(ids, false), text) << "case " << i;
      }
    }
  }
}

TEST(Tokenizer, UntrustedTextNeverBecomesAControlOrMarkerToken) {
  Rng rng(seed_from_name("UntrustedText"));
  for (int i = 0; i < 20000; ++i) {
    for (const TokenId id : shipped().encode(random_text(rng), false, SpecialMode::kNone)) {
      const TokenType type = shipped().token_type(id);
      ASSERT_TRUE(type == TokenType::kNormal || type == TokenType::kByte)
          << shipped().token_text(id);
    }
  }
}

TEST(Tokenizer, UserDefinedModeSplitsMarkersButNotControlTokens) {
  const auto id = [](const char* text) { return shipped().find(text).value(); };
  const auto has = [](const std::vector<TokenId>& ids, TokenId want) {
    return std::find(ids.begin(), ids.end(), want) != ids.end();
  };
  const auto ids =
      shipped().encode("x<|tool_call>y<|turn>z<|tool_response>", false, SpecialMode::kUserDefined);
  EXPECT_TRUE(has(ids, id("<|tool_call>")));
  EXPECT_FALSE(has(ids, id("<|turn>")));
  EXPECT_FALSE(has(ids, id("<|tool_response>"))) << "ends a turn, so it is a control token";
}

TEST(Tokenizer, TrustChangesWhatIsSpecialButNotHowTextIsCut) {
  const std::string whole = "<|turn>user\nHello there, world<turn|>\n";
  const TextPiece pieces[] = {{"<|turn>user\nHel", SpecialMode::kAll},
                              {"lo there, wor", SpecialMode::kNone},
                              {"ld<turn|>\n", SpecialMode::kAll}};
  EXPECT_EQ(shipped().encode(pieces, false), shipped().encode(whole, false, SpecialMode::kAll));

  // A marker written partly by the template and partly by the user is no marker.
  const TextPiece split[] = {{"<|tu", SpecialMode::kAll}, {"rn>", SpecialMode::kAll}};
  EXPECT_EQ(shipped().encode(split, false), shipped().encode("<|turn>", false, SpecialMode::kNone));
}

TEST(Tokenizer, StopsAtTurnEndsByText) {
  EXPECT_TRUE(shipped().is_stop(shipped().find("<turn|>").value()));
  EXPECT_TRUE(shipped().is_stop(shipped().find("<eos>").value()));
  EXPECT_TRUE(shipped().is_stop(shipped().find("<|tool_response>").value()));
  EXPECT_FALSE(shipped().is_stop(shipped().find("<|turn>").value()));
  EXPECT_EQ(shipped().stop_ids().size(), 3U);
}

TEST(Tokenizer, HidesControlTokensUnlessAsked) {
  const auto ids = shipped().encode("<|turn>a<|tool_call>", false, SpecialMode::kAll);
  EXPECT_EQ(shipped().decode(ids), "a<|tool_call>");
  EXPECT_EQ(shipped().decode(ids, true), "<|turn>a<|tool_call>");
}

TEST(Tokenizer, RefusesIdsOutsideTheVocabulary) {
  for (const TokenId id : {-1, 4096, 2147483647}) {
    try {
      (void)shipped().decode(std::span(&id, 1));
      FAIL() << id;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(std::to_string(id)), std::string::npos);
    }
  }
}

TEST(Tokenizer, TakesALineOfAMegabyteInOneGo) {
  Rng rng(1);
  std::string text;
  while (text.size() < 1000000) text += static_cast<char>('a' + rng.below(26));
  const auto start = std::chrono::steady_clock::now();
  const auto ids = shipped().encode(text, false, SpecialMode::kAll);
  const auto s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(shipped().decode(ids), text);
  EXPECT_LT(s, 20.0) << "a quadratic merge loop would need minutes";
}

// ---- merge order ----

Tokenizer small_vocabulary(const std::vector<std::string>& words,
                           const std::vector<std::string>& merges) {
  std::vector<std::string> tokens = {"<|turn>", "<turn|>"};
  tokens.insert(tokens.end(), words.begin(), words.end());
  std::vector<std::int32_t> types(tokens.size(), 1);
  types[0] = types[1] = 3;
  GgufWriter w;
  w.add_text("tokenizer.ggml.model", "gemma4");
  w.add_texts("tokenizer.ggml.tokens", tokens);
  w.add_i32s("tokenizer.ggml.token_type", types);
  w.add_texts("tokenizer.ggml.merges", merges);
  const std::string path = (std::filesystem::path(testing::TempDir()) /
                            ("assay_vocabulary_" + std::to_string(::getpid())))
                               .string();
  std::ofstream(path, std::ios::binary) << w.head();
  Tokenizer t = Tokenizer::load(GgufFile::open(path));
  std::filesystem::remove(path);
  return t;
}

std::string cut(const Tokenizer& t, const std::string& text) {
  std::string out;
  for (const TokenId id : t.encode(text, false, SpecialMode::kNone)) {
    out += (out.empty() ? "" : " ") + std::string(t.token_text(id));
  }
  return out;
}

TEST(TokenizerMerges, TakeTheLeftmostOfEqualRank) {
  const Tokenizer t = small_vocabulary({"a", "aa"}, {"a a"});
  EXPECT_EQ(cut(t, "aaa"), "aa a");
  EXPECT_EQ(cut(t, "aaaaa"), "aa aa a");
  EXPECT_EQ(cut(t, "aaaaaaaaa"), "aa aa aa aa a");
}

TEST(TokenizerMerges, TakeTheLowestRankFirstWhereverItStands) {
  const Tokenizer t = small_vocabulary({"a", "b", "c", "ab", "bc", "abc"}, {"b c", "a b", "a bc"});
  EXPECT_EQ(cut(t, "abc"), "abc");
  EXPECT_EQ(cut(t, "abb"), "ab b");
  const Tokenizer u = small_vocabulary({"a", "b", "c", "ab", "bc"}, {"b c", "a b"});
  EXPECT_EQ(cut(u, "abc"), "a bc") << "b c has the lower rank, though a b stands further left";
}

// The rule as it is written: look at all pairs, merge the best, begin again.
TEST(TokenizerMerges, AgreeWithThePlainQuadraticRule) {
  Rng rng(seed_from_name("AgreeWithThePlainQuadraticRule"));
  for (int vocabulary = 0; vocabulary < 40; ++vocabulary) {
    std::vector<std::string> words = {"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> rules;
    std::vector<std::string> merges;
    while (rules.size() < 12) {
      const std::string left = words[rng.below(words.size())];
      const std::string right = words[rng.below(words.size())];
      if (std::find(rules.begin(), rules.end(), std::pair(left, right)) != rules.end()) continue;
      rules.emplace_back(left, right);
      merges.push_back(left + " " + right);
      if (std::find(words.begin(), words.end(), left + right) == words.end())
        words.push_back(left + right);
    }
    const Tokenizer t = small_vocabulary(words, merges);
    for (int i = 0; i < 50; ++i) {
      std::string text;
      std::vector<std::string> symbols;
      for (std::uint64_t n = 1 + rng.below(40); n > 0; --n) {
        symbols.emplace_back(1, static_cast<char>('a' + rng.below(3)));
        text += symbols.back();
      }
      for (;;) {
        std::size_t best = rules.size();
        std::size_t at = 0;
        for (std::size_t k = 0; k + 1 < symbols.size(); ++k) {
          const auto found =
              std::find(rules.begin(), rules.end(), std::pair(symbols[k], symbols[k + 1]));
          const auto rank = static_cast<std::size_t>(found - rules.begin());
          if (rank < best) {
            best = rank;
            at = k;
          }
        }
        if (best == rules.size()) break;
        symbols[at] += symbols[at + 1];
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      }
      std::string expected;
      for (const std::string& s : symbols) expected += (expected.empty() ? "" : " ") + s;
      ASSERT_EQ(cut(t, text), expected) << text << ", vocabulary " << vocabulary;
    }
  }
}

// ---- streaming ----

TEST(Utf8Stream, NeverEmitsAPartOfACharacter) {
  const std::string text = "a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80z";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Utf8Stream s;
    const std::string first = s.push(std::string_view(text).substr(0, cut));
    const std::string second = s.push(std::string_view(text).substr(cut));
    EXPECT_EQ(first + second, text);
    EXPECT_EQ(s.finish(), "");
    if (!second.empty()) {
      EXPECT_NE(static_cast<unsigned char>(second[0]) & 0xC0U, 0x80U)
          << "split inside, cut " << cut;
    }
  }
}

// Expected values of the Unicode standard 15, table 3-8 and the text before it: one U+FFFD a maximal subpart.
TEST(Utf8Stream, ReplacesEachMaximalInvalidPartOnce) {
  const std::string r = "\xEF\xBF\xBD";
  const auto all = [](std::string_view bytes) {
    Utf8Stream whole;
    std::string out = whole.push(bytes);
    out += whole.finish();
    Utf8Stream single;  // byte by byte gives the same
    std::string again;
    for (const char c : bytes) again += single.push(std::string_view(&c, 1));
    again += single.finish();
    EXPECT_EQ(out, again);
    return out;
  };
  EXPECT_EQ(all("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(all("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(all("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(all("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(all("\xE2\x82"), r);
}

TEST(StreamingDecoder, HoldsByteTokensUntilTheCharacterIsWhole) {
  const auto ids = shipped().encode("\xF0\x9F\x98\x80", false, SpecialMode::kAll);
  ASSERT_EQ(ids.size(), 4U);
  StreamingDecoder d(shipped());
  EXPECT_EQ(d.push(ids[0]), "");
  EXPECT_EQ(d.push(ids[1]), "");
  EXPECT_EQ(d.push(ids[2]), "");
  EXPECT_EQ(d.push(ids[3]), "\xF0\x9F\x98\x80");
  EXPECT_EQ(d.push(ids[0]), "");
  EXPECT_EQ(d.push(shipped().find("a").value()),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(d.push(ids[0]), "");
  EXPECT_EQ(d.finish(), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace assay
