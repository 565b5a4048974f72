#include "replay/policy.h"

#include <charconv>

#include "kernels/base/error.h"

namespace assay::replay {
namespace {

std::vector<std::string> cut(const std::string& name) {
  std::vector<std::string> fields(1);
  for (const char c : name) {
    if (c == ':') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

std::string joined(const std::vector<std::string>& fields) {
  std::string text;
  for (const auto& f : fields) text += (text.empty() ? "" : ":") + f;
  return text;
}

}  // namespace

const char* to_string(Mode mode) { return mode == Mode::kPlain ? "plain" : "group"; }
const char* to_string(Partition partition) {
  return partition == Partition::kGlobal ? "global" : "layer";
}

PolicyChoice parse_policy(const std::string& name) {
  const auto fields = cut(name);
  std::string forms;
  for (const PolicyEntry* entry : all_policies()) {
    if (auto choice = entry->parse(fields)) return *std::move(choice);
    forms += std::string(forms.empty() ? "" : " ") + entry->forms;
  }
  throw UserError("unknown policy '" + name + "': valid are " + forms);
}

std::uint64_t parse_parameter(const std::vector<std::string>& fields,
                              std::size_t index,
                              std::uint64_t low,
                              std::uint64_t high) {
  std::uint64_t value = 0;
  const std::string text = index < fields.size() ? fields[index] : "";
  const auto r = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || r.ec != std::errc{} || r.ptr != text.data() + text.size() || value < low ||
      value > high) {
    throw UserError("policy '" + joined(fields) + "': parameter " + std::to_string(index) +
                    " must be a whole number from " + std::to_string(low) + " to " +
                    std::to_string(high));
  }
  return value;
}

double parse_share(const std::vector<std::string>& fields, std::size_t index) {
  double value = 0;
  const std::string text = index < fields.size() ? fields[index] : "";
  const auto r = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || r.ec != std::errc{} || r.ptr != text.data() + text.size() ||
      !(value > 0.0 && value <= 1.0)) {
    throw UserError("policy '" + joined(fields) + "': parameter " + std::to_string(index) +
                    " must be a share above 0, at most 1");
  }
  return value;
}

}  // namespace assay::replay
