#include "kernels/base/json_schema.h"

#include <map>
#include <stdexcept>

#include <nlohmann/json.hpp>
#include <re2/re2.h>

#include "schema_data.h"

namespace assay {
namespace {

using nlohmann::json;

bool has_type(const json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_number_integer();
  throw std::logic_error("schema: unknown type " + type);
}

std::string pointer_token(std::string key) {
  for (std::size_t at = 0; (at = key.find_first_of("~/", at)) != std::string::npos; at += 2) {
    key.replace(at, 1, key[at] == '~' ? "~0" : "~1");
  }
  return key;
}

class Checker {
 public:
  explicit Checker(const json& root) : root_(root) {}
  std::vector<std::string> faults;

  void check(const json& schema, const json& value, const std::string& at) {
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) fault(at, "nothing is allowed here");
      return;
    }
    for (const auto& [keyword, rule] : schema.items()) apply(schema, keyword, rule, value, at);
  }

 private:
  void fault(const std::string& at, const std::string& what) {
    faults.push_back((at.empty() ? "/" : at) + ": " + what);
  }

  void apply(const json& schema,
             const std::string& keyword,
             const json& rule,
             const json& value,
             const std::string& at) {
    if (keyword == "$schema" || keyword == "$id" || keyword == "$defs" || keyword == "title" ||
        keyword == "description") {
      return;
    }
    if (keyword == "$ref") {
      const auto target = rule.get<std::string>();
      if (!target.starts_with("#/"))
        throw std::logic_error("schema: $ref outside the document: " + target);
      check(root_.at(json::json_pointer(target.substr(1))), value, at);
    } else if (keyword == "type") {
      const json types = rule.is_array() ? rule : json::array({rule});
      std::string names;
      for (const auto& t : types) {
        if (has_type(value, t.get<std::string>())) return;
        names += (names.empty() ? "" : " or ") + t.get<std::string>();
      }
      fault(at, "expected " + names + ", got " + value.type_name());
    } else if (keyword == "enum") {
      for (const auto& allowed : rule) {
        if (allowed == value) return;
      }
      fault(at, value.dump() + " is not one of " + rule.dump());
    } else if (keyword == "const") {
      if (rule != value) fault(at, "expected " + rule.dump() + ", got " + value.dump());
    } else if (keyword == "required") {
      if (!value.is_object()) return;
      for (const auto& name : rule) {
        if (!value.contains(name.get<std::string>())) fault(at, "lacks the key " + name.dump());
      }
    } else if (keyword == "properties") {
      if (!value.is_object()) return;
      for (const auto& [name, sub] : rule.items()) {
        if (value.contains(name)) check(sub, value.at(name), at + "/" + pointer_token(name));
      }
    } else if (keyword == "additionalProperties") {
      if (!value.is_object()) return;
      const json known = schema.value("properties", json::object());
      for (const auto& [name, item] : value.items()) {
        if (known.contains(name)) continue;
        if (rule.is_boolean() && !rule.get<bool>()) {
          fault(at + "/" + pointer_token(name), "unknown key");
        } else {
          check(rule, item, at + "/" + pointer_token(name));
        }
      }
    } else if (keyword == "items") {
      if (!value.is_array()) return;
      for (std::size_t i = 0; i < value.size(); ++i)
        check(rule, value[i], at + "/" + std::to_string(i));
    } else if (keyword == "minItems") {
      if (value.is_array() && value.size() < rule.get<std::size_t>()) {
        fault(at, "fewer than " + rule.dump() + " items");
      }
    } else if (keyword == "minimum") {
      if (value.is_number() && !(value.get<double>() >= rule.get<double>())) {
        fault(at, value.dump() + " is below " + rule.dump());
      }
    } else if (keyword == "minLength") {
      if (value.is_string() &&
          value.get_ref<const std::string&>().size() < rule.get<std::size_t>()) {
        fault(at, "shorter than " + rule.dump());
      }
    } else if (keyword == "pattern") {
      if (value.is_string() &&
          !RE2::PartialMatch(value.get_ref<const std::string&>(), RE2(rule.get<std::string>()))) {
        fault(at, value.dump() + " does not match " + rule.get<std::string>());
      }
    } else {
      throw std::logic_error("schema: keyword not supported: " + keyword);
    }
  }

  const json& root_;
};

const std::map<std::string, json, std::less<>>& schemas() {
  static const auto all = [] {
    std::map<std::string, json, std::less<>> parsed;
    for (const char* text : kSchemaTexts) {
      json schema = json::parse(text);
      auto name = schema.at("properties").at("schema").at("const").get<std::string>();
      parsed.emplace(std::move(name), std::move(schema));
    }
    return parsed;
  }();
  return all;
}

}  // namespace

std::vector<std::string> schema_faults(const json& schema, const json& document) {
  Checker checker(schema);
  checker.check(schema, document, "");
  return std::move(checker.faults);
}

const json* schema_named(std::string_view name) {
  const auto it = schemas().find(name);
  return it == schemas().end() ? nullptr : &it->second;
}

std::vector<std::string> schema_names() {
  std::vector<std::string> names;
  for (const auto& [name, schema] : schemas()) names.push_back(name);
  return names;
}

}  // namespace assay
