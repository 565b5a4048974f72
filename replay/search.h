// Search for the rules of a policy family: candidates are drawn, screened on the first steps of the train split, refined
// around the best, and the finalists run over the whole train split. Held-out conversations are not read here.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "replay/replay.h"

namespace assay::replay {

// One parameter of the family as a field of the policy's name: the range that is searched.
struct SearchAxis {
  const char* name;
  double low;
  double high;
  bool logarithmic;  // drawn evenly in the logarithm
};
// The family searched: `successor` with one field for each axis, in order.
const std::vector<SearchAxis>& search_axes();

struct SearchOptions {
  std::vector<std::uint64_t>
      slots;                       // of the whole cache; a candidate's score is its mean over these
  int candidates = 0;              // screened, at least kFinalists
  std::uint64_t screen_steps = 0;  // of the train split, from its start
  std::uint64_t warmup = 0;
  std::uint64_t seed = 1;
};
inline constexpr int kFinalists = 8;

struct Candidate {
  std::string policy;
  std::vector<double> closed;  // share of the gap between LRU and Belady, for each size
  double score = 0.0;          // their mean
};

struct SearchResult {
  std::vector<Candidate> screened;   // in the order drawn, none twice
  std::vector<Candidate> finalists;  // on the whole train split, best first
  const Candidate& winner() const { return finalists.front(); }
};

// The same result for the same inputs and options. UserError: fewer candidates than finalists, no sizes.
SearchResult search_policies(const std::vector<std::string>& paths,
                             const SearchOptions& options,
                             const ProgressFn& progress = {});

}  // namespace assay::replay
