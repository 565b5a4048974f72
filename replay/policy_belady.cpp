// The oracles: Belady's rule with admission forced, with refusal allowed, and with a forecast that ends some steps ahead.
//
// Known next uses are kept nearest first: the farthest goes. Objects whose next use is unknown (never, or beyond the forecast)
// go before any known one, least recently used first; so a forecast of 0 steps is LRU and an endless one is Belady's rule.
#include "kernels/base/error.h"
#include "replay/next_use_queue.h"
#include "replay/policy.h"

namespace assay::replay {
namespace {

using expert_policy::MissSet;
using expert_policy::RecencyList;

constexpr std::uint64_t kEndless = ~std::uint64_t{0};

class Belady {
 public:
  Belady(std::uint32_t objects,
         std::uint32_t capacity,
         std::uint64_t horizon,
         std::uint64_t step_places,
         bool bypass)
      : unknown_(objects),
        known_(objects),
        next_place_(objects, 0),
        free_(capacity),
        horizon_(horizon),
        step_places_(step_places),
        bypass_(bypass) {}

  template <class Sink>
  std::uint32_t lookup_and_admit(const OracleGroup& g, Sink&& sink) {
    MissSet missing;
    MissSet resident;
    std::uint32_t misses = 0;
    for (std::uint32_t r = 0; r < g.size; ++r) {
      const std::uint32_t o = g.objects[r];
      // Members leave both structures, which then hold the candidates only.
      if (unknown_.contains(o)) {
        unknown_.remove(o);
      } else if (known_.contains(o)) {
        known_.erase(o);
      } else {
        missing.add(r);
        ++misses;
        continue;
      }
      resident.add(r);
      sink.hit(r);
    }
    if (misses != 0) {
      missing.for_each([&](std::uint32_t r) {
        if (free_ != 0) {
          --free_;
          sink.admit(r, kNone);
        } else if (bypass_ && refuses(g, r)) {
          sink.refuse(r);
          return;
        } else {
          sink.admit(r, take_victim(g));
        }
        resident.add(r);
      });
    }
    resident.for_each([&](std::uint32_t r) {
      const std::uint32_t o = g.objects[r];
      const std::uint64_t place = place_after(g, r);
      next_place_[o] = place;
      if (place == kEndless || beyond(g, place)) {
        unknown_.push_newest(o);
      } else {
        known_.insert(o, place, g.place);
      }
    });
    return misses;
  }

 private:
  static std::uint64_t place_after(const OracleGroup& g, std::uint32_t r) {
    return g.next[r] == kNeverAgain ? kEndless : g.place + r + g.next[r];
  }
  bool beyond(const OracleGroup& g, std::uint64_t place) const {
    return horizon_ != kEndless && place / step_places_ > g.step + horizon_;
  }
  // The least recently used object with an unknown next use. Objects that the forecast has reached since they were last used
  // move over; each does so once a use.
  std::uint32_t oldest_unknown(const OracleGroup& g) {
    std::uint32_t o = unknown_.oldest();
    while (o != kNone && next_place_[o] != kEndless && !beyond(g, next_place_[o])) {
      unknown_.remove(o);
      known_.insert(o, next_place_[o], g.place);
      o = unknown_.oldest();
    }
    return o;
  }
  std::uint32_t take_victim(const OracleGroup& g) {
    const std::uint32_t o = oldest_unknown(g);
    if (o == kNone) return known_.take_farthest(g.place);
    unknown_.remove(o);
    return o;
  }
  // With bypass an object used later than every candidate is not worth a slot. (horizon_ is endless there.)
  bool refuses(const OracleGroup& g, std::uint32_t r) {
    if (unknown_.oldest() != kNone) return false;
    const std::uint32_t farthest = known_.farthest(g.place);
    return farthest != kNone && place_after(g, r) > known_.place(farthest);
  }

  RecencyList unknown_;
  NextUseQueue known_;
  std::vector<std::uint64_t> next_place_;  // [objects] of residents
  std::uint32_t free_;
  std::uint64_t horizon_;  // steps
  std::uint64_t step_places_;
  bool bypass_;
};

std::optional<PolicyChoice> parse(const std::vector<std::string>& f) {
  std::uint64_t horizon = kEndless;
  const bool bypass = f[0] == "belady-bypass";
  if ((!bypass && f[0] != "belady") || f.size() > (bypass ? 1U : 2U)) return std::nullopt;
  std::string name = f[0];
  if (f.size() == 2 && f[1] != "full") {
    horizon = parse_parameter(f, 1, 0, 1000000000);
    name += ":" + f[1];
  }
  return PolicyChoice{.name = name, .oracle = true, .in_sample = true, .make = [=](const Setup& s) {
                        return simulate(s, [&](std::uint32_t) {
                          return Belady(s.objects, s.capacity, horizon, s.step_places, bypass);
                        });
                      }};
}

}  // namespace

extern const PolicyEntry policy_belady;
const PolicyEntry policy_belady{
    "belady belady-bypass belady:N",
    "the object used farthest ahead goes; N: the forecast ends after N steps",
    parse};

}  // namespace assay::replay
