// The first pass of a policy over a group: hits before misses, in rank order.
#pragma once
#include <cstdint>

#include "replay/policy.h"

namespace assay::replay {

struct Missing {
  expert_policy::MissSet ranks;
  std::uint32_t count = 0;
};

// use(object): whether it is resident; then its use is noted.
template <class Sink, class Use>
Missing serve_hits(const OracleGroup& g, Sink&& sink, Use&& use) {
  Missing missing;
  for (std::uint32_t r = 0; r < g.size; ++r) {
    if (use(g.objects[r])) {
      sink.hit(r);
    } else {
      missing.ranks.add(r);
      ++missing.count;
    }
  }
  return missing;
}

}  // namespace assay::replay
