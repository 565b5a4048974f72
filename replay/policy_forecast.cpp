// Belady's rule on a forecast that is sometimes wrong. For every use inside the window the forecaster names the object with
// probability `recall`; for every true name it gives on average (1 - precision) / precision wrong ones, random experts of that
// layer that the step does not use. So recall and precision hold by construction, and forecast:N:1:1 is belady:N. The draws are
// hashes of the place, the same in every run.
#include <algorithm>
#include <deque>

#include "replay/policy.h"
#include "replay/serve_hits.h"

namespace assay::replay {
namespace {

using expert_policy::RecencyList;

std::uint64_t mix(std::uint64_t x) {  // the finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}
double share(std::uint64_t hash) { return static_cast<double>(hash >> 11) * 0x1p-53; }

// The claims of one sequence, read ahead of the replay and shared by its caches.
class Forecaster {
 public:
  Forecaster(
      Sequence& sequence, std::uint64_t horizon, double recall, double precision, const Setup& s)
      : sequence_(&sequence),
        horizon_(horizon),
        recall_(recall),
        wrong_((1.0 - precision) / precision),
        setup_(s),
        claims_(sequence.objects()) {}

  // The nearest claimed use of an object of the sequence after `place`, or kNeverAgain's 64-bit twin.
  static constexpr std::uint64_t kNoClaim = ~std::uint64_t{0};
  std::uint64_t next(std::uint32_t object, std::uint64_t place) {
    auto& c = claims_[object];
    while (!c.empty() && c.front() <= place) c.pop_front();
    return c.empty() ? kNoClaim : c.front();
  }
  void advance_to(std::uint64_t step) {
    for (; read_ <= step + horizon_ && read_ < sequence_->steps(); ++read_) {
      if (read_ >= block_.first_step + block_.steps) {
        sequence_->decode(read_, sequence_->block_steps(), false, block_);
      }
      claim_step(static_cast<std::size_t>(read_ - block_.first_step));
    }
  }

 private:
  void claim_step(std::size_t s) {
    const std::size_t per_step = block_.groups_per_step;
    for (std::size_t g = s * per_step; g < (s + 1) * per_step; ++g) {
      const std::uint32_t begin = g == 0 ? 0 : block_.group_end[g - 1];
      const std::uint32_t end = block_.group_end[g];
      const std::uint64_t place = (block_.first_step * per_step + g) * setup_.top_k;
      for (std::uint32_t i = begin; i < end; ++i) {
        const std::uint64_t here = place + (i - begin);
        const std::uint64_t h = mix(here + 0x9E3779B97F4A7C15ULL);
        if (share(h) >= recall_) continue;
        claims_[block_.objects[i]].push_back(here);
        double expected = wrong_;
        for (std::uint64_t draw = 1; share(mix(h + draw)) < expected; ++draw, expected -= 1.0)
          claim_wrong(begin, end, i, here, mix(h ^ (draw << 40)));
      }
    }
  }
  void claim_wrong(std::uint32_t begin,
                   std::uint32_t end,
                   std::uint32_t truth,
                   std::uint64_t here,
                   std::uint64_t h) {
    if (end - begin >= setup_.experts) return;
    const std::uint32_t base = sequence_->layer_of(block_.objects[truth]) * setup_.experts;
    for (;; h = mix(h + 1)) {
      const std::uint32_t o = base + static_cast<std::uint32_t>(h % setup_.experts);
      const auto* members = block_.objects.data();
      if (o >= claims_.size() || std::find(members + begin, members + end, o) != members + end)
        continue;
      auto& c = claims_[o];
      if (c.empty() || c.back() < here) c.push_back(here);
      return;
    }
  }

  Sequence* sequence_;
  std::uint64_t horizon_;
  double recall_;
  double wrong_;  // wrong names per true one
  Setup setup_;
  std::vector<std::deque<std::uint64_t>> claims_;  // [objects of the sequence] places, rising
  Block block_;
  std::uint64_t read_ = 0;  // first step not read
};

class Forecast {
 public:
  Forecast(const Setup& s, std::uint32_t cache, std::shared_ptr<Forecaster> forecaster)
      : order_(s.objects),
        base_(cache * s.objects),
        free_(s.capacity),
        forecaster_(std::move(forecaster)) {}

  template <class Sink>
  std::uint32_t lookup_and_admit(const OracleGroup& g, Sink&& sink) {
    forecaster_->advance_to(g.step);
    const Missing missing = serve_hits(g, sink, [&](std::uint32_t o) {
      if (!order_.contains(o)) return false;
      order_.remove(o);
      return true;
    });
    missing.ranks.for_each([&](std::uint32_t r) {
      std::uint32_t victim = kNone;
      if (free_ != 0) {
        --free_;
      } else {
        victim = find_victim(g.place + g.size - 1);
        order_.remove(victim);
      }
      sink.admit(r, victim);
    });
    for (std::uint32_t r = 0; r < g.size; ++r) order_.push_newest(g.objects[r]);
    return missing.count;
  }

 private:
  std::uint32_t find_victim(std::uint64_t place) {
    std::uint32_t best = kNone;
    std::uint64_t farthest = 0;
    for (std::uint32_t o = order_.oldest(); o != kNone; o = order_.newer(o)) {
      const std::uint64_t next = forecaster_->next(base_ + o, place);
      if (next == Forecaster::kNoClaim) return o;
      if (next > farthest) {
        farthest = next;
        best = o;
      }
    }
    return best;
  }

  RecencyList order_;
  std::uint32_t base_;
  std::uint32_t free_;
  std::shared_ptr<Forecaster> forecaster_;
};

std::optional<PolicyChoice> parse(const std::vector<std::string>& f) {
  if (f[0] != "forecast" || f.size() != 4) return std::nullopt;
  const std::uint64_t horizon = parse_parameter(f, 1, 0, 4096);
  const double recall = parse_share(f, 2);
  const double precision = parse_share(f, 3);
  return PolicyChoice{
      .name = "forecast:" + f[1] + ":" + f[2] + ":" + f[3],
      .in_sample = true,
      .make = [=](const Setup& s) {
        auto forecaster = std::make_shared<Forecaster>(*s.sequence, horizon, recall, precision, s);
        return simulate(s, [&](std::uint32_t cache) { return Forecast(s, cache, forecaster); });
      }};
}

}  // namespace

extern const PolicyEntry policy_forecast;
const PolicyEntry policy_forecast{
    "forecast:N:RECALL:PRECISION",
    "Belady's rule on a forecast of N steps that misses some uses and invents others",
    parse};

}  // namespace assay::replay
