// Needle checks: nine facts hidden at nine depths of a long text, then asked for. What is compared is what a whole engine makes
// of them in two arms: a variant that is fast because it loses what lies far back gives other answers there.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace assay {

struct NeedleCheck {
  std::string id;
  int tokens = 0;  // of the text with its needles, read at once
};
const std::vector<NeedleCheck>& needle_checks();
// UserError listing the valid names.
const NeedleCheck& needle_check(std::string_view id);

// `ask` and `answer` follow each other in the text; `ask` alone is the question. From bench/tiers/needles.txt.
struct Needle {
  std::string ask;
  std::string answer;
};
const std::vector<Needle>& needles();

// Nats by which a token of an answer may differ between arms. 0.01 where both compute the same but for the order of float sums:
// in the exact lane, and on the host, whose stock quantises as its variants do. 2 on a card in the fast lane, which permits
// int8 activations beside stock's floats: near-ties of the router fall the other way.
double needle_bound(const std::string& numerics, const std::string& backend);

// What two arms said, by check: [{logprobs, found, margin, without}] for each needle. Returns {checks, agree, worst, bound, seen,
// found_stock, found_stack}. A needle agrees when every token's log-probability does; a value that is not finite never does. It is
// seen when the same answer without its needle (`without`) is further off than the bound in the stock arm: only there the
// model itself looks so far back.
nlohmann::json judge_needles(const nlohmann::json& stock,
                             const nlohmann::json& stack,
                             double bound);

}  // namespace assay
