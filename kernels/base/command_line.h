// The command line of a program: options described once, parsed strictly, help on one screen. The only door to CLI11,
// whose templates are costly: a program that includes this header compiles in a fraction of the time.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace assay {

// --help or --version was given and has printed: run_program ends the program with exit code 0.
struct HelpShown {};

class CommandLine {
 public:
  // An option that was added; what follows refines it. Valid as long as its command line.
  class Option {
   public:
    explicit Option(CLI::Option* option) : option_(option) {}
    Option required();
    Option type_name(const char* name);  // what --help shows for the value: FILE, N, ..
    Option show_default();               // --help shows the value that the variable has now
    Option delimiter(char between);      // of a list in one word
    Option excludes(Option other);
    Option one_of(const std::vector<std::string>& words);
    Option range(double least, double most);

   private:
    CLI::Option* option_;
  };

  // what: a sentence or two; program: as it is typed; example: the last line of --help.
  CommandLine(const std::string& what, const std::string& program, const std::string& example);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // `names`: "--flag", or a bare word for a positional argument. The variable keeps its value where the option is not
  // given. Whole numbers are decimal and must fit their type; other numbers must be finite.
  Option add_option(std::string_view names, std::string& value, std::string_view help = {});
  Option add_option(std::string_view names,
                    std::optional<std::string>& value,
                    std::string_view help);
  Option add_option(std::string_view names, std::vector<std::string>& value, std::string_view help);
  Option add_option(std::string_view names, int& value, std::string_view help);
  Option add_option(std::string_view names, unsigned& value, std::string_view help);
  Option add_option(std::string_view names, std::int64_t& value, std::string_view help);
  Option add_option(std::string_view names, std::uint64_t& value, std::string_view help);
  Option add_option(std::string_view names, double& value, std::string_view help);
  Option add_option(std::string_view names, float& value, std::string_view help);
  Option add_option(std::string_view names, std::vector<int>& value, std::string_view help);
  Option add_option(std::string_view names, std::vector<unsigned>& value, std::string_view help);
  Option add_option(std::string_view names,
                    std::vector<std::uint64_t>& value,
                    std::string_view help);
  Option add_option(std::string_view names, std::vector<double>& value, std::string_view help);
  Option add_flag(std::string_view names, bool& value, std::string_view help);

  // Options added to the result exclude each other, and one of them must be given. Lives as long as this.
  CommandLine& exactly_one_of(const std::string& name);
  // A subcommand; where there are any, one must be given. Lives as long as this.
  CommandLine& add_command(const std::string& name,
                           const std::string& what,
                           const std::string& example);
  bool given() const;                           // this subcommand was the one
  bool given(const std::string& option) const;  // this option was

  // UserError naming the bad flag and, where there are subcommands, the valid ones. HelpShown after --help, --version.
  void parse(int argc, const char* const* argv);

 private:
  explicit CommandLine(CLI::App* part);
  void house_style(const std::string& example);
  template <typename T>
  Option add_value(std::string_view names, T& value, std::string_view help);

  std::unique_ptr<CLI::App> owned_;  // empty for a part of another
  CLI::App* app_;
  std::vector<std::unique_ptr<CommandLine>> parts_;
};

}  // namespace assay
