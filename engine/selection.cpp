#include "engine/selection.h"

#include <nlohmann/json.hpp>

#include "kernels/attention_block/op.h"
#include "kernels/base/error.h"
#include "kernels/base/op_info.h"
#include "kernels/decode_token/op.h"
#include "kernels/ffn_block/op.h"

namespace assay {
namespace {

template <class Op>
Composite composite_of() {
  Composite c{Op::kName, {}};
  for (const char* part : Op::kParts) c.parts.emplace_back(part);
  return c;
}

std::string named(const std::string& op, const Choice& choice) {
  return choice.variant == "stock" ? op : op + "=" + choice.variant;
}

}  // namespace

Profile parse_profile(const std::string& path, const std::string& text) {
  nlohmann::json document;
  try {
    document = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    throw InputError(path + ": not JSON at byte " + std::to_string(e.byte));
  }
  const auto refuse = [&](const std::string& why) { throw InputError(path + ": " + why); };
  if (!document.is_object()) refuse("a profile is a JSON object");
  for (const auto& [key, value] : document.items()) {
    if (key != "schema" && key != "schema_version" && key != "ops") {
      refuse("unknown key '" + key + "': valid are schema, schema_version, ops");
    }
  }
  if (document.value("schema", nlohmann::json()) != "assay-profile") {
    refuse("key 'schema' must be \"assay-profile\"");
  }
  if (document.contains("schema_version") && document["schema_version"] != 1) {
    refuse("key 'schema_version' must be 1");
  }
  if (!document.contains("ops") || !document["ops"].is_object()) {
    refuse("key 'ops' must be an object of op: variant");
  }
  Profile profile;
  for (const auto& [op, variant] : document["ops"].items()) {
    if (!variant.is_string()) refuse("key 'ops." + op + "' must be a variant's name");
    const OpInfo& info = find_op(op);
    const auto name = variant.get<std::string>();
    if (info.find(name) < 0) {
      std::string valid;
      for (const auto& v : info.variants) valid += (valid.empty() ? "" : ", ") + v.name;
      throw UserError(path + ": " + op + " has no variant '" + name + "': valid are " + valid);
    }
    profile[op] = name;
  }
  return profile;
}

const Choice& Selection::of(std::string_view op) const {
  const auto it = choices.find(std::string(op));
  if (it == choices.end()) throw std::logic_error("no choice for op " + std::string(op));
  return it->second;
}

std::vector<Composite> composites() {
  return {composite_of<AttentionBlock>(), composite_of<FfnBlock>(), composite_of<DecodeToken>()};
}

std::vector<HiddenChoice> hidden_choices(const std::map<std::string, Choice>& choices,
                                         const std::vector<Composite>& composites) {
  std::vector<HiddenChoice> hidden;
  for (const auto& composite : composites) {
    const auto armed = choices.find(composite.op);
    if (armed == choices.end() || armed->second.variant == "stock" || armed->second.parity)
      continue;
    for (const auto& part : composite.parts) {
      const auto it = choices.find(part);
      if (it == choices.end()) continue;  // an op of another backend's build
      if (it->second.source == "switch") {
        throw UserError(composite.op + "=" + armed->second.variant + " (" + armed->second.source +
                        ") hides " + part +
                        ", so its switch would have no effect: unset one of the two");
      }
      hidden.push_back({named(composite.op, armed->second), named(part, it->second)});
    }
  }
  return hidden;
}

Selection select(const Env& env, const Profile& profile) {
  Selection s;
  for (const OpInfo* op : all_ops()) s.choices[op->name] = choose(op->name, env, profile);
  s.hidden = hidden_choices(s.choices, composites());
  return s;
}

}  // namespace assay
