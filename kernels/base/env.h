// The environment, read once at start. The only caller of getenv is env.cpp (a host test greps).
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

// A switch's value, parsed.
struct SwitchValue {
  std::string variant = "stock";
  bool parity = false;  // parity:<variant>: run both, serve stock, report the difference
};

// All ASSAY_* variables of the process.
class Env {
 public:
  // Reads `environ`. Throws UserError for an ASSAY_* name that is neither an op's switch nor one of the general
  // variables (ASSAY_STRICT, ASSAY_SYNC, ASSAY_LOG_LEVEL), and for a value that no variant of the op has; the message
  // lists the valid ones.
  static Env read();
  // For tests: the same rules on given variables.
  static Env from(const std::map<std::string, std::string>& variables);

  // The variable's text, or nothing.
  std::optional<std::string> get(std::string_view name) const;
  // ASSAY_STRICT=1: an ineligible variant is an error instead of a fallback.
  bool strict() const { return flag("ASSAY_STRICT"); }
  // Whether the op's switch is set at all (a set switch overrides a profile, `stock` included).
  bool has_switch(std::string_view op_name) const;
  SwitchValue switch_for(std::string_view op_name) const;

 private:
  bool flag(std::string_view name) const;
  std::map<std::string, std::string, std::less<>> values_;
};

// Outside variables the programs look at (HOME, NO_COLOR, ..): same single reader.
std::optional<std::string> outside_variable(const char* name);

}  // namespace assay
