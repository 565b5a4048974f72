// Which variant of every op a process runs: switches over a profile over stock, checked for contradictions.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/dispatch.h"
#include "kernels/base/env.h"

namespace assay {

// {"schema":"assay-profile","schema_version":1,"ops":{"gemv_quant":"avx2"}}. InputError naming file, byte or key when it
// is not that, UserError listing what is valid for an op or variant that this build does not have.
Profile parse_profile(const std::string& path, const std::string& text);

// An op that an armed composite keeps from running as chosen.
struct HiddenChoice {
  std::string composite;  // "attention_block=fused"
  std::string part;       // "attention_decode=coalesced", or only the op's name when it is stock
};

struct Selection {
  std::map<std::string, Choice> choices;  // every op of the build
  std::vector<HiddenChoice> hidden;

  const Choice& of(std::string_view op) const;
};

// A composite op and the ops whose choice its variants hide.
struct Composite {
  std::string op;
  std::vector<std::string> parts;
};
// Those of this build.
std::vector<Composite> composites();

// UserError when a switch is set for an op that an armed composite hides. parity:<composite> hides nothing: stock's chain
// is what is served. Parts that a profile chooses, and parts left at stock, are listed in `hidden`.
Selection select(const Env& env, const Profile& profile);
// The same rule on given data (tests): choices by op.
std::vector<HiddenChoice> hidden_choices(const std::map<std::string, Choice>& choices,
                                         const std::vector<Composite>& composites);

}  // namespace assay
