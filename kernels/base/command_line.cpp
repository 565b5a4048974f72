#include "kernels/base/command_line.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <type_traits>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "kernels/base/build_id.h"
#include "kernels/base/error.h"

namespace assay {
namespace {

template <typename T>
struct ElementOf {
  using Type = T;
};
template <typename T>
struct ElementOf<std::vector<T>> {
  using Type = T;
};
template <typename T>
struct ElementOf<std::optional<T>> {
  using Type = T;
};

// CLI11 takes 010 for eight and 2^64 for its largest number: what a person typed must be what is used. Returns what is
// wrong with the word, or leaves the number as CLI11 reads it right.
template <typename T>
std::string plain_number(std::string& word) {
  T value{};
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  const std::string quoted = "'" + word.substr(0, 40) + "'";
  if (error == std::errc::result_out_of_range) return quoted + " is out of range";
  if (error != std::errc() || stop != end)
    return quoted + (std::is_integral_v<T> ? " is not a whole number" : " is not a number");
  if constexpr (std::is_integral_v<T>) {
    word = std::to_string(value);
  } else if (!std::isfinite(value)) {
    return quoted + " is not a finite number";
  }
  return {};
}

}  // namespace

CommandLine::Option CommandLine::Option::required() {
  option_->required();
  return *this;
}
CommandLine::Option CommandLine::Option::type_name(const char* name) {
  option_->type_name(name);
  return *this;
}
CommandLine::Option CommandLine::Option::show_default() {
  option_->capture_default_str();
  return *this;
}
CommandLine::Option CommandLine::Option::delimiter(char between) {
  option_->delimiter(between);
  return *this;
}
CommandLine::Option CommandLine::Option::excludes(Option other) {
  option_->excludes(other.option_);
  return *this;
}
CommandLine::Option CommandLine::Option::one_of(const std::vector<std::string>& words) {
  option_->check(CLI::IsMember(words));
  return *this;
}
CommandLine::Option CommandLine::Option::range(double least, double most) {
  option_->check(CLI::Validator(
      [least, most](std::string& word) {
        const double value = std::strtod(word.c_str(), nullptr);
        return value >= least && value <= most
                   ? std::string()
                   : fmt::format("'{}' is outside {} to {}", word, least, most);
      },
      ""));
  return *this;
}

CommandLine::CommandLine(const std::string& what,
                         const std::string& program,
                         const std::string& example)
    : owned_(std::make_unique<CLI::App>(what, program)), app_(owned_.get()) {
  app_->set_version_flag("--version", [] { return "assay " + build_line(); });
  house_style(example);
}
CommandLine::CommandLine(CLI::App* part) : app_(part) {}
CommandLine::~CommandLine() = default;

void CommandLine::house_style(const std::string& example) {
  app_->footer("Example: " + example);
  app_->get_formatter()->column_width(34);
}

template <typename T>
CommandLine::Option CommandLine::add_value(std::string_view names,
                                           T& value,
                                           std::string_view help) {
  CLI::Option* option = app_->add_option(std::string(names), value, std::string(help));
  using Element = typename ElementOf<T>::Type;
  if constexpr (std::is_arithmetic_v<Element>)
    option->transform(CLI::Validator(plain_number<Element>, ""));
  return Option(option);
}

#define ASSAY_ADD_OPTION(...)                                              \
  CommandLine::Option CommandLine::add_option(                             \
      std::string_view names, __VA_ARGS__& value, std::string_view help) { \
    return add_value(names, value, help);                                  \
  }
ASSAY_ADD_OPTION(std::string)
ASSAY_ADD_OPTION(std::optional<std::string>)
ASSAY_ADD_OPTION(std::vector<std::string>)
ASSAY_ADD_OPTION(int)
ASSAY_ADD_OPTION(unsigned)
ASSAY_ADD_OPTION(std::int64_t)
ASSAY_ADD_OPTION(std::uint64_t)
ASSAY_ADD_OPTION(double)
ASSAY_ADD_OPTION(float)
ASSAY_ADD_OPTION(std::vector<int>)
ASSAY_ADD_OPTION(std::vector<unsigned>)
ASSAY_ADD_OPTION(std::vector<std::uint64_t>)
ASSAY_ADD_OPTION(std::vector<double>)
#undef ASSAY_ADD_OPTION

CommandLine::Option CommandLine::add_flag(std::string_view names,
                                          bool& value,
                                          std::string_view help) {
  return Option(app_->add_flag(std::string(names), value, std::string(help)));
}

CommandLine& CommandLine::exactly_one_of(const std::string& name) {
  CLI::App* group = app_->add_option_group(name, "exactly one");
  group->require_option(1);
  return *parts_.emplace_back(new CommandLine(group));
}

CommandLine& CommandLine::add_command(const std::string& name,
                                      const std::string& what,
                                      const std::string& example) {
  app_->require_subcommand(1);
  CommandLine& command = *parts_.emplace_back(new CommandLine(app_->add_subcommand(name, what)));
  command.house_style(example);
  return command;
}

bool CommandLine::given() const { return app_->parsed(); }
bool CommandLine::given(const std::string& option) const { return app_->count(option) > 0; }

void CommandLine::parse(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& e) {
    app_->exit(e);  // prints help or version to stdout
    throw HelpShown{};
  } catch (const CLI::ParseError& e) {
    std::string text = e.what();
    std::string commands;  // an option group is a subcommand without a name
    for (const auto* s : app_->get_subcommands([](CLI::App* s) { return !s->get_name().empty(); }))
      commands += " " + s->get_name();
    if (!commands.empty() && app_->get_subcommands().empty())
      text += "; valid commands:" + commands;
    throw UserError(text + " (--help lists what is valid)");
  }
}

}  // namespace assay
