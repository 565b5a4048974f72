#include "engine/daemon/json_reader.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace assay {
namespace {

using nlohmann::json;

class Builder : public nlohmann::json_sax<json> {
 public:
  Builder(json& root, const JsonLimits& limits) : root_(&root), limits_(limits) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(v); }
  bool number_unsigned(number_unsigned_t v) override { return put(v); }
  bool number_float(number_float_t v, const string_t& /*text*/) override { return put(v); }
  bool string(string_t& v) override { return put(std::move(v)); }
  bool binary(binary_t& /*v*/) override { return false; }
  bool start_object(std::size_t /*size*/) override { return open(json::object()); }
  bool start_array(std::size_t /*size*/) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& v) override {
    json& object = *open_.back();
    if (object.contains(v)) {
      problem = {JsonFault::kDuplicateKey,
                 "the key '" + printable(v) + "' appears twice in one object"};
      return false;
    }
    slot_ = &object[std::move(v)];
    return true;
  }
  bool parse_error(std::size_t position,
                   const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    // The library's text quotes the input; only its kind and place go out.
    const bool range = error.id == 406;
    problem = {JsonFault::kSyntax,
               (range ? "a number that no double holds, at byte "
                      : "not valid JSON (or not UTF-8) at byte ") +
                   std::to_string(position)};
    return false;
  }

  JsonProblem problem;

 private:
  static std::string printable(const std::string& key) {
    std::string out;
    for (const char c : key.substr(0, 40)) out += c >= 0x20 && c < 0x7F ? c : '?';
    return out;
  }
  json* place(json&& value) {
    if (++values_ > limits_.values) {
      problem = {JsonFault::kValues, "more than " + std::to_string(limits_.values) + " values"};
      return nullptr;
    }
    if (open_.empty()) {
      *root_ = std::move(value);
      return root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *slot_ = std::move(value);
    return slot_;
  }
  bool put(json value) { return place(std::move(value)) != nullptr; }
  bool open(json value) {
    if (static_cast<int>(open_.size()) >= limits_.depth) {
      problem = {JsonFault::kDepth,
                 "nested deeper than " + std::to_string(limits_.depth) + " levels"};
      return false;
    }
    // The address stays good: a container grows only while it is the innermost open one.
    json* at = place(std::move(value));
    if (at != nullptr) open_.push_back(at);
    return at != nullptr;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  json* root_;
  JsonLimits limits_;
  std::vector<json*> open_;
  json* slot_ = nullptr;  // of the key read last
  std::size_t values_ = 0;
};

}  // namespace

JsonProblem read_json(std::string_view text, json& out, const JsonLimits& limits) {
  json value;
  Builder builder(value, limits);
  if (!json::sax_parse(text, &builder)) {
    if (builder.problem.fault == JsonFault::kNone)
      builder.problem = {JsonFault::kSyntax, "not valid JSON"};
    return builder.problem;
  }
  out = std::move(value);
  return {};
}

}  // namespace assay
