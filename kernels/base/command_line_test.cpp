#include "kernels/base/command_line.h"

#include <gtest/gtest.h>

#include "kernels/base/error.h"

namespace assay {
namespace {

// Every kind of option, parsed from one list of words; the message of the refusal, or "".
struct Parsed {
  int whole = -1;
  std::uint64_t large = 7;
  double real = 0.5;
  std::vector<unsigned> list;
  std::string text = "stock";
  bool flag = false;
  std::string refused;

  explicit Parsed(std::vector<const char*> words) {
    words.insert(words.begin(), "program");
    CommandLine line("Tests", "program", "program --whole 1");
    line.add_option("--whole", whole, "a number").range(-5, 100);
    line.add_option("--large", large, "a number");
    line.add_option("--real", real, "a number");
    line.add_option("--list", list, "numbers").delimiter(',');
    const auto given = line.add_option("--text", text, "words").one_of({"stock", "avx2"});
    line.add_flag("--flag", flag, "on").excludes(given);
    try {
      line.parse(static_cast<int>(words.size()), words.data());
    } catch (const UserError& e) {
      refused = e.what();
    }
  }
};

TEST(CommandLine, TakesNumbersAsTheyAreWritten) {
  const Parsed p(
      {"--whole", "010", "--large=18446744073709551615", "--real", "1e-3", "--list", "1,02,3"});
  EXPECT_EQ(p.refused, "");
  EXPECT_EQ(p.whole, 10);
  EXPECT_EQ(p.large, UINT64_MAX);
  EXPECT_EQ(p.real, 1e-3);
  EXPECT_EQ(p.list, (std::vector<unsigned>{1, 2, 3}));
  EXPECT_EQ(Parsed({"--whole", "-5"}).whole, -5);
}

TEST(CommandLine, RefusesByName) {
  const struct {
    std::vector<const char*> words;
    const char* says;
  } cases[] = {
      {{"--whole", "0x10"}, "--whole: '0x10' is not a whole number"},
      {{"--whole", "1.5"}, "--whole: '1.5' is not a whole number"},
      {{"--whole", ""}, "--whole"},
      {{"--whole", "101"}, "--whole: '101' is outside -5 to 100"},
      {{"--whole", "2147483648"}, "--whole: '2147483648' is out of range"},
      {{"--large", "-1"}, "--large: '-1' is not a whole number"},
      {{"--large", "18446744073709551616"}, "--large: '18446744073709551616' is out of range"},
      {{"--real", "nan"}, "--real: 'nan' is not a finite number"},
      {{"--real", "1e999"}, "--real: '1e999' is out of range"},
      {{"--real", "1,5"}, "--real: '1,5' is not a number"},
      {{"--list", "1,x"}, "--list: 'x' is not a whole number"},
      {{"--text", "avx3"}, "--text"},
      {{"--text", "avx2", "--flag"}, "excludes"},
      {{"--hole", "1"}, "--hole"},
      {{"stray"}, "stray"},
  };
  for (const auto& c : cases) {
    const Parsed p(c.words);
    EXPECT_NE(p.refused.find(c.says), std::string::npos) << c.says << " | " << p.refused;
  }
}

TEST(CommandLine, CommandsAndGroupsAskForOne) {
  const auto refused = [](std::vector<const char*> words) -> std::string {
    words.insert(words.begin(), "program");
    CommandLine line("Tests", "program", "program go");
    CommandLine& go = line.add_command("go", "goes", "program go");
    CommandLine& stay = line.add_command("stay", "stays", "program stay");
    CommandLine& source = go.exactly_one_of("source");
    std::optional<std::string> a;
    std::optional<std::string> b;
    source.add_option("--a", a, "one");
    source.add_option("--b", b, "other");
    try {
      line.parse(static_cast<int>(words.size()), words.data());
    } catch (const UserError& e) {
      return e.what();
    }
    EXPECT_NE(go.given(), stay.given());
    EXPECT_EQ(go.given(), a.has_value() != b.has_value());
    EXPECT_EQ(source.given("--a"), a.has_value());
    return "";
  };
  EXPECT_EQ(refused({"go", "--a", "x"}), "");
  EXPECT_EQ(refused({"stay"}), "");
  EXPECT_NE(refused({}).find("valid commands: go stay"), std::string::npos);
  EXPECT_NE(refused({"go"}), "");
  EXPECT_NE(refused({"go", "--a", "x", "--b", "y"}), "");
}

TEST(CommandLine, HelpIsNotAnError) {
  CommandLine line("Tests", "program", "program --whole 1");
  const char* words[] = {"program", "--help"};
  testing::internal::CaptureStdout();
  EXPECT_THROW(line.parse(2, words), HelpShown);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("Example: program --whole 1"),
            std::string::npos);
}

}  // namespace
}  // namespace assay
