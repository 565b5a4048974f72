#include "kernels/base/env.h"

#include <cstdlib>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/op_info.h"

extern char** environ;

namespace assay {
namespace {

constexpr std::string_view kPrefix = "ASSAY_";
constexpr std::string_view kGeneral[] = {"ASSAY_LOG_LEVEL", "ASSAY_STRICT", "ASSAY_SYNC"};

SwitchValue parse_switch(const std::string& text) {
  constexpr std::string_view kParity = "parity:";
  if (text.starts_with(kParity)) return {text.substr(kParity.size()), true};
  return {text, false};
}

const OpInfo* op_of_switch(std::string_view name) {
  for (const OpInfo* op : all_ops()) {
    if (name == op->switch_name) return op;
  }
  return nullptr;
}

std::string valid_names() {
  std::string text;
  for (const auto name : kGeneral)
    text += std::string(text.empty() ? "" : ", ") + std::string(name);
  for (const OpInfo* op : all_ops()) text += std::string(", ") + op->switch_name;
  return text;
}

std::string valid_values(const OpInfo& op) {
  std::string text;
  for (const auto& v : op.variants) text += (text.empty() ? "" : ", ") + v.name;
  return text + ", and parity:<variant>";
}

}  // namespace

Env Env::from(const std::map<std::string, std::string>& variables) {
  Env env;
  for (const auto& [name, value] : variables) {
    if (!name.starts_with(kPrefix)) continue;
    bool general = false;
    for (const auto known : kGeneral) general = general || name == known;
    if (!general) {
      const OpInfo* op = op_of_switch(name);
      if (op == nullptr) {
        throw UserError("unknown variable " + name + ": valid ASSAY_ names are " + valid_names());
      }
      const SwitchValue parsed = parse_switch(value);
      if (op->find(parsed.variant) < 0 || (parsed.parity && parsed.variant == "stock")) {
        throw UserError(name + "=" + value + ": " + op->name +
                        " has no such variant; valid values are " + valid_values(*op));
      }
    } else if (name != "ASSAY_LOG_LEVEL" && value != "0" && value != "1") {
      throw UserError(name + "=" + value + ": valid values are 0 and 1");
    }
    env.values_.emplace(name, value);
  }
  return env;
}

Env Env::read() {
  std::map<std::string, std::string> found;
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    const char* eq = std::strchr(*e, '=');
    if (eq != nullptr)
      found.emplace(std::string(*e, static_cast<std::size_t>(eq - *e)), std::string(eq + 1));
  }
  return from(found);
}

std::optional<std::string> Env::get(std::string_view name) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return std::nullopt;
  return it->second;
}

bool Env::flag(std::string_view name) const { return get(name).value_or("0") == "1"; }

bool Env::has_switch(std::string_view op_name) const {
  for (const OpInfo* op : all_ops()) {
    if (op_name == op->name) return values_.contains(op->switch_name);
  }
  return false;
}

SwitchValue Env::switch_for(std::string_view op_name) const {
  for (const OpInfo* op : all_ops()) {
    if (op_name == op->name) {
      const auto text = get(op->switch_name);
      return text ? parse_switch(*text) : SwitchValue{};
    }
  }
  throw UserError("no op named " + std::string(op_name));
}

std::optional<std::string> outside_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

}  // namespace assay
