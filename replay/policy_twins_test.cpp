// Every policy against its twin: the same rules written for reading, on vectors, with no shared code. They must agree on every
// access: hit or miss, admitted or not, and who was displaced.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "replay/policy.h"
#include "replay/replay.h"
#include "replay/testing.h"

namespace assay::replay {
namespace {

using Objects = std::vector<std::uint32_t>;

bool has(const Objects& v, std::uint32_t o) { return std::find(v.begin(), v.end(), o) != v.end(); }
void drop(Objects& v, std::uint32_t o) { v.erase(std::find(v.begin(), v.end(), o)); }

// All accesses of one cache in order, for the oracles.
struct Future {
  struct Use {
    std::uint32_t object;
    std::uint64_t step;
    std::uint64_t place;
  };
  std::vector<Use> uses;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  // Place of the object's first use after `place` whose step is at most `last_step`.
  std::uint64_t next(std::uint32_t o, std::uint64_t place, std::uint64_t last_step) const {
    for (const auto& u : uses) {
      if (u.place > place && u.object == o) return u.step <= last_step ? u.place : kNever;
    }
    return kNever;
  }
};

struct Twin {
  virtual ~Twin() = default;
  std::size_t capacity = 0;
  const Future* future = nullptr;
  Objects uses_counted;  // for the pinned set: every access, any order
  std::uint32_t objects = 0;
  std::uint32_t experts = 0;  // a layer

  struct Outcome {
    bool hit = false;
    bool admitted = false;
    std::uint32_t victim = kNone;
  };
  // `place` of the first member.
  virtual std::vector<Outcome> group(const Objects& members,
                                     std::uint64_t step,
                                     std::uint64_t place) = 0;
};

struct LruTwin : Twin {
  Objects order;  // oldest first
  std::vector<Outcome> group(const Objects& m, std::uint64_t, std::uint64_t) override {
    std::vector<Outcome> out(m.size());
    for (std::size_t r = 0; r < m.size(); ++r) out[r].hit = has(order, m[r]);
    for (std::size_t r = 0; r < m.size(); ++r) {
      if (out[r].hit) continue;
      out[r].admitted = true;
      if (order.size() == capacity) {
        out[r].victim =
            *std::find_if(order.begin(), order.end(), [&](std::uint32_t o) { return !has(m, o); });
        drop(order, out[r].victim);
      }
      order.push_back(m[r]);
    }
    for (const auto o : m) drop(order, o);
    for (const auto o : m) order.push_back(o);
    return out;
  }
};

struct SecondMissTwin : Twin {
  std::uint64_t window = 0;
  Objects order;
  std::map<std::uint32_t, std::uint64_t> last_miss;
  std::vector<Outcome> group(const Objects& m, std::uint64_t step, std::uint64_t) override {
    std::vector<Outcome> out(m.size());
    for (std::size_t r = 0; r < m.size(); ++r) out[r].hit = has(order, m[r]);
    for (std::size_t r = 0; r < m.size(); ++r) {
      if (out[r].hit) continue;
      const bool again = last_miss.contains(m[r]) && step - last_miss[m[r]] <= window;
      last_miss[m[r]] = step;
      if (order.size() < capacity) {
        out[r].admitted = true;
      } else if (again) {
        out[r].admitted = true;
        out[r].victim =
            *std::find_if(order.begin(), order.end(), [&](std::uint32_t o) { return !has(m, o); });
        drop(order, out[r].victim);
      }
      if (out[r].admitted) order.push_back(m[r]);
    }
    for (const auto o : m) {
      if (!has(order, o)) continue;
      drop(order, o);
      order.push_back(o);
    }
    return out;
  }
};

// FIFO, CLOCK, SIEVE.
struct QueueTwin : Twin {
  char kind = 'f';
  Objects queue;  // oldest insertion first
  std::set<std::uint32_t> visited;
  std::uint32_t hand = kNone;
  std::uint32_t evict(const Objects& m) {
    std::size_t i = 0;
    if (kind == 's' && hand != kNone)
      i = static_cast<std::size_t>(std::find(queue.begin(), queue.end(), hand) - queue.begin());
    for (;; i = i % queue.size()) {
      const std::uint32_t o = queue[i];
      if (has(m, o)) {
        ++i;
      } else if (kind != 'f' && visited.contains(o)) {
        visited.erase(o);
        if (kind == 'c') {
          queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(i));
          queue.push_back(o);
          if (i + 1 == queue.size()) i = 0;
        } else {
          ++i;
        }
      } else {
        hand = i + 1 < queue.size() ? queue[i + 1] : kNone;
        queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(i));
        return o;
      }
    }
  }
  std::vector<Outcome> group(const Objects& m, std::uint64_t, std::uint64_t) override {
    std::vector<Outcome> out(m.size());
    for (std::size_t r = 0; r < m.size(); ++r) {
      out[r].hit = has(queue, m[r]);
      if (out[r].hit) visited.insert(m[r]);
    }
    for (std::size_t r = 0; r < m.size(); ++r) {
      if (out[r].hit) continue;
      out[r].admitted = true;
      if (queue.size() == capacity) out[r].victim = evict(m);
      queue.push_back(m[r]);
      visited.erase(m[r]);
    }
    return out;
  }
};

struct LfuTwin : Twin {
  struct State {
    std::uint64_t count;
    std::uint64_t since;
  };
  std::map<std::uint32_t, State> resident;
  std::uint64_t clock = 0;
  std::vector<Outcome> group(const Objects& m, std::uint64_t, std::uint64_t) override {
    std::vector<Outcome> out(m.size());
    for (std::size_t r = 0; r < m.size(); ++r) {
      out[r].hit = resident.contains(m[r]);
      if (out[r].hit) resident[m[r]] = {resident[m[r]].count + 1, ++clock};
    }
    for (std::size_t r = 0; r < m.size(); ++r) {
      if (out[r].hit) continue;
      out[r].admitted = true;
      if (resident.size() == capacity) {
        for (const auto& [o, s] : resident) {
          if (has(m, o)) continue;
          if (out[r].victim == kNone ||
              std::pair(s.count, s.since) <
                  std::pair(resident[out[r].victim].count, resident[out[r].victim].since))
            out[r].victim = o;
        }
        resident.erase(out[r].victim);
      }
      resident[m[r]] = {1, ++clock};
    }
    return out;
  }
};

struct S3FifoTwin : Twin {
  Objects small, main, ghost;  // oldest first
  std::map<std::uint32_t, int> count;
  std::size_t small_size() const { return std::max<std::size_t>(1, capacity / 10); }
  std::size_t main_size() const { return capacity - small_size(); }
  std::uint32_t evict(const Objects& m) {
    const auto first = [&](const Objects& v) {
      const auto it = std::find_if(v.begin(), v.end(), [&](std::uint32_t o) { return !has(m, o); });
      return it == v.end() ? kNone : *it;
    };
    for (;;) {
      const std::uint32_t s = first(small);
      const std::uint32_t b = first(main);
      const bool from_main = (main.size() > main_size() || s == kNone) && b != kNone;
      if (from_main) {
        drop(main, b);
        if (count[b] == 0) return b;
        --count[b];
        main.push_back(b);
      } else {
        drop(small, s);
        if (count[s] >= 2) {
          count[s] = 0;
          main.push_back(s);
        } else {
          if (main_size() != 0) {
            if (ghost.size() == main_size()) ghost.erase(ghost.begin());
            ghost.push_back(s);
          }
          return s;
        }
      }
    }
  }
  std::vector<Outcome> group(const Objects& m, std::uint64_t, std::uint64_t) override {
    std::vector<Outcome> out(m.size());
    for (std::size_t r = 0; r < m.size(); ++r) {
      out[r].hit = has(small, m[r]) || has(main, m[r]);
      if (out[r].hit) count[m[r]] = std::min(3, count[m[r]] + 1);
    }
    for (std::size_t r = 0; r < m.size(); ++r) {
      if (out[r].hit) continue;
      out[r].admitted = true;
      const bool ghosted = has(ghost, m[r]);
      if (ghosted) drop(ghost, m[r]);
      if (small.size() + main.size() == capacity) out[r].victim = evict(m);
      count[m[r]] = 0;
      (ghosted ? main : small).push_back(m[r]);
    }
    return out;
  }
};

struct ArcTwin : Twin {
  Objects t1, t2, b1, b2;  // oldest first
  double p = 0.0;
  std::uint32_t replace(const Objects& m, bool in_b2) {
    const auto candidate = [&](const Objects& v) {
      const auto it = std::find_if(v.begin(), v.end(), [&](std::uint32_t o) { return !has(m, o); });
      return it == v.end() ? kNone : *it;
    };
    const auto size = static_cast<double>(t1.size());
    bool first = !t1.empty() && (size > p || (in_b2 && size == p));
    if (candidate(first ? t1 : t2) == kNone) first = !first;
    const std::uint32_t v = candidate(first ? t1 : t2);
    drop(first ? t1 : t2, v);
    (first ? b1 : b2).push_back(v);
    return v;
  }
  std::vector<Outcome> group(const Objects& m, std::uint64_t, std::uint64_t) override {
    std::vector<Outcome> out(m.size());
    for (std::size_t r = 0; r < m.size(); ++r) {
      out[r].hit = has(t1, m[r]) || has(t2, m[r]);
      if (!out[r].hit) continue;
      drop(has(t1, m[r]) ? t1 : t2, m[r]);
      t2.push_back(m[r]);
    }
    for (std::size_t r = 0; r < m.size(); ++r) {
      if (out[r].hit) continue;
      const std::uint32_t x = m[r];
      const bool full = t1.size() + t2.size() == capacity;
      out[r].admitted = true;
      const double n1 = static_cast<double>(b1.size());
      const double n2 = static_cast<double>(b2.size());
      if (has(b1, x)) {
        p = std::min(static_cast<double>(capacity), p + std::max(1.0, n2 / n1));
        if (full) out[r].victim = replace(m, false);
        drop(b1, x);
        t2.push_back(x);
      } else if (has(b2, x)) {
        p = std::max(0.0, p - std::max(1.0, n1 / n2));
        if (full) out[r].victim = replace(m, true);
        drop(b2, x);
        t2.push_back(x);
      } else {
        if (t1.size() + b1.size() == capacity) {
          if (t1.size() < capacity) {
            b1.erase(b1.begin());
            if (full) out[r].victim = replace(m, false);
          } else {
            out[r].victim = t1.front();
            t1.erase(t1.begin());
          }
        } else if (full) {
          if (t1.size() + t2.size() + b1.size() + b2.size() == 2 * capacity) b2.erase(b2.begin());
          out[r].victim = replace(m, false);
        }
        t1.push_back(x);
      }
      EXPECT_LE(t1.size() + t2.size(), capacity);
      EXPECT_LE(t1.size() + b1.size(), capacity);
      EXPECT_LE(t1.size() + t2.size() + b1.size() + b2.size(), 2 * capacity);
    }
    for (const auto o : m) {
      Objects& list = has(t1, o) ? t1 : t2;
      drop(list, o);
      list.push_back(o);
    }
    return out;
  }
};

// Scores from the whole history, term by term.
struct DecayTwin : Twin {
  double half_life = 32;
  std::uint64_t guard = 2;
  std::map<std::uint32_t, std::vector<std::uint64_t>> history;
  Objects order;  // resident, oldest use first
  long double score(std::uint32_t o, std::uint64_t now) {
    long double s = 0;
    for (const auto t : history[o])
      s += std::exp2(-static_cast<long double>(now - t) / static_cast<long double>(half_life));
    return s;
  }
  std::vector<Outcome> group(const Objects& m, std::uint64_t step, std::uint64_t) override {
    std::vector<Outcome> out(m.size());
    for (std::size_t r = 0; r < m.size(); ++r) {
      out[r].hit = has(order, m[r]);
      history[m[r]].push_back(step);
    }
    for (std::size_t r = 0; r < m.size(); ++r) {
      if (out[r].hit) continue;
      out[r].admitted = true;
      if (order.size() == capacity) {
        std::uint32_t best = kNone;
        for (const auto o : order) {
          if (has(m, o) || step - history[o].back() < guard) continue;
          if (best == kNone || score(o, step) < score(best, step)) best = o;
        }
        if (best == kNone)
          best = *std::find_if(
              order.begin(), order.end(), [&](std::uint32_t o) { return !has(m, o); });
        out[r].victim = best;
        drop(order, best);
      }
      order.push_back(m[r]);
    }
    for (const auto o : m) drop(order, o);
    for (const auto o : m) order.push_back(o);
    return out;
  }
};

struct BeladyTwin : Twin {
  std::uint64_t horizon = ~std::uint64_t{0};
  bool bypass = false;
  Objects order;  // resident, oldest use first
  std::vector<Outcome> group(const Objects& m, std::uint64_t step, std::uint64_t place) override {
    std::vector<Outcome> out(m.size());
    const std::uint64_t last_step =
        horizon > Future::kNever - step ? Future::kNever : step + horizon;
    const std::uint64_t now = place + m.size() - 1;
    for (std::size_t r = 0; r < m.size(); ++r) out[r].hit = has(order, m[r]);
    for (std::size_t r = 0; r < m.size(); ++r) {
      if (out[r].hit) continue;
      if (order.size() == capacity) {
        std::uint32_t best = kNone;
        std::uint64_t farthest = 0;
        for (const auto o : order) {
          if (has(m, o)) continue;
          const std::uint64_t n = future->next(o, now, last_step);
          if (best == kNone || n > farthest) {
            best = o;
            farthest = n;
          }
        }
        if (bypass && future->next(m[r], now, last_step) > farthest) continue;
        out[r].victim = best;
        drop(order, best);
      }
      out[r].admitted = true;
      order.push_back(m[r]);
    }
    for (const auto o : m) {
      if (!has(order, o)) continue;
      drop(order, o);
      order.push_back(o);
    }
    return out;
  }
};

struct PinnedTwin : Twin {
  Objects pinned;
  std::vector<Outcome> group(const Objects& m, std::uint64_t, std::uint64_t) override {
    if (pinned.empty()) {
      std::vector<std::pair<std::int64_t, std::uint32_t>> order;
      for (std::uint32_t o = 0; o < objects; ++o)
        order.emplace_back(-std::count(uses_counted.begin(), uses_counted.end(), o), o);
      std::sort(order.begin(), order.end());
      for (std::size_t i = 0; i < std::min<std::size_t>(capacity, order.size()); ++i)
        pinned.push_back(order[i].second);
    }
    std::vector<Outcome> out(m.size());
    for (std::size_t r = 0; r < m.size(); ++r) out[r].hit = has(pinned, m[r]);
    return out;
  }
};

// Arithmetic in the order that successor.h states, member by member; state by (layer, expert).
struct SuccessorTwin : Twin {
  std::vector<float> rules = {0.7F, 1.1F, 0.005F, 0.9F, 0.1F, 0.3F, 0.4F, 0.05F};
  using Key = std::pair<std::uint32_t, std::uint32_t>;
  std::map<std::uint32_t, std::map<Key, float>> follow;  // layer -> (who, who comes after)
  std::map<std::uint32_t, std::vector<float>> value;     // layer -> [experts]
  std::map<std::uint32_t, std::vector<std::vector<float>>> frequency;  // layer -> [4][experts]
  std::map<std::uint32_t, Objects> before;
  std::map<std::uint32_t, float> scale;
  std::set<std::uint32_t> resident;
  std::uint64_t last_step = ~std::uint64_t{0};

  float first_scale(std::uint32_t layer) const {
    const std::uint32_t layers = objects / experts;
    return std::pow(rules[1], -static_cast<float>(layer) / static_cast<float>(layers));
  }
  std::vector<Outcome> group(const Objects& m, std::uint64_t step, std::uint64_t) override {
    for (std::uint32_t l = 0; scale.size() < objects / experts; ++l) {
      scale[l] = first_scale(l);
      value[l].assign(experts, 0.0F);
      frequency[l].assign(4, std::vector<float>(experts, 0.0F));
    }
    if (step != last_step) {
      for (auto& [unused, x] : scale) x = std::clamp(x * rules[1], 0x1p-20F, 0x1p20F);
    }
    last_step = step;
    const std::uint32_t layer = m[0] / experts;
    scale[layer] = first_scale(layer);
    std::vector<float> now(experts);
    std::vector<float> error(experts);
    for (std::uint32_t j = 0; j < experts; ++j) {
      const bool used = has(m, layer * experts + j);
      for (std::size_t i = 0; i < 4; ++i) {
        const float keep = std::exp2(-1.0F / std::vector<float>{2, 8, 32, 256}[i]);
        float& f = frequency[layer][i][j];
        f *= keep;
        if (used) f += 1.0F - keep;
        now[j] += rules[4 + i] * f;
      }
      float w = 1.0F;
      for (const auto o : m) {
        now[j] += w * follow[layer][{o % experts, j}];
        w *= rules[3];
      }
      error[j] = -value[layer][j] + rules[0] * now[j];
      if (used) error[j] += 1.0F - rules[0];
      error[j] = std::min(1.0F, std::max(-1.0F, error[j]));
      float rate = rules[2];
      for (const auto e : before[layer]) {
        follow[layer][{e, j}] += rate * error[j];
        rate *= rules[3];
      }
    }
    value[layer] = now;
    before[layer].clear();
    for (const auto o : m) before[layer].push_back(o % experts);

    std::vector<Outcome> out(m.size());
    for (std::size_t r = 0; r < m.size(); ++r) out[r].hit = resident.contains(m[r]);
    for (std::size_t r = 0; r < m.size(); ++r) {
      if (out[r].hit) continue;
      out[r].admitted = true;
      if (resident.size() == capacity) {
        float lowest = 0.0F;
        for (const auto o : resident) {
          const float x = value[o / experts][o % experts] * scale[o / experts];
          if (has(m, o) || (out[r].victim != kNone && !(x < lowest))) continue;
          lowest = x;
          out[r].victim = o;
        }
        resident.erase(out[r].victim);
      }
      resident.insert(m[r]);
    }
    return out;
  }
};

using MakeTwin = std::function<std::unique_ptr<Twin>()>;
template <class T, class F>
MakeTwin twin(F&& set) {
  return [=] {
    auto t = std::make_unique<T>();
    set(*t);
    return t;
  };
}

// Names as tested; every form of the policy table must be among them.
const std::map<std::string, MakeTwin>& twins() {
  static const std::map<std::string, MakeTwin> all = {
      {"lru", twin<LruTwin>([](auto&) {})},
      {"second-miss:3", twin<SecondMissTwin>([](auto& t) { t.window = 3; })},
      {"second-miss:40", twin<SecondMissTwin>([](auto& t) { t.window = 40; })},
      {"fifo", twin<QueueTwin>([](auto& t) { t.kind = 'f'; })},
      {"clock", twin<QueueTwin>([](auto& t) { t.kind = 'c'; })},
      {"sieve", twin<QueueTwin>([](auto& t) { t.kind = 's'; })},
      {"lfu", twin<LfuTwin>([](auto&) {})},
      {"s3fifo", twin<S3FifoTwin>([](auto&) {})},
      {"arc", twin<ArcTwin>([](auto&) {})},
      {"decay32", twin<DecayTwin>([](auto&) {})},
      {"decay:16:0", twin<DecayTwin>([](auto& t) { t.half_life = 16, t.guard = 0; })},
      {"decay:20:5", twin<DecayTwin>([](auto& t) { t.half_life = 20, t.guard = 5; })},
      {"belady", twin<BeladyTwin>([](auto&) {})},
      {"belady-bypass", twin<BeladyTwin>([](auto& t) { t.bypass = true; })},
      {"belady:0", twin<BeladyTwin>([](auto& t) { t.horizon = 0; })},
      {"belady:2", twin<BeladyTwin>([](auto& t) { t.horizon = 2; })},
      {"belady:9", twin<BeladyTwin>([](auto& t) { t.horizon = 9; })},
      {"successor:0.7:1.1:0.05:0.9:0.1:0.3:0.4:0.05", twin<SuccessorTwin>([](auto& t) {
         t.rules = {0.7F, 1.1F, 0.05F, 0.9F, 0.1F, 0.3F, 0.4F, 0.05F};
       })},
      {"successor:0.9:2:0.5:0.5:0.3:0:0:0.4", twin<SuccessorTwin>([](auto& t) {
         t.rules = {0.9F, 2, 0.5F, 0.5F, 0.3F, 0, 0, 0.4F};
       })},
      {"successor:0.5:0.9:0.3:1:0:0.5:0:0.2", twin<SuccessorTwin>([](auto& t) {
         t.rules = {0.5F, 0.9F, 0.3F, 1, 0, 0.5F, 0, 0.2F};
       })},
      {"static-hindsight", twin<PinnedTwin>([](auto&) {})},
      {"static-train", twin<PinnedTwin>([](auto&) {})},
      {"forecast:9:1:1", twin<BeladyTwin>([](auto& t) { t.horizon = 9; })},
  };
  return all;
}

// What the twins say about the whole sequence.
std::vector<Event> twin_events(const std::string& name,
                               Sequence& sequence,
                               Sequence& train,
                               Mode mode,
                               Partition partition,
                               std::size_t capacity) {
  const bool per_layer = partition == Partition::kLayer;
  const auto experts = static_cast<std::uint32_t>(sequence.geometry().experts);
  const auto k = static_cast<std::uint64_t>(sequence.geometry().top_k);
  const std::size_t caches = per_layer ? static_cast<std::size_t>(sequence.geometry().layers) : 1;
  const std::uint32_t size = per_layer ? experts : sequence.objects();
  Block all;
  sequence.decode(0, static_cast<std::size_t>(sequence.steps()), false, all);
  Block counted;
  Sequence& source = name == "static-train" ? train : sequence;
  source.decode(0, static_cast<std::size_t>(source.steps()), false, counted);
  std::vector<Future> futures(caches);
  std::vector<std::unique_ptr<Twin>> ts;
  for (std::size_t c = 0; c < caches; ++c) {
    ts.push_back(twins().at(name)());
    ts[c]->capacity = capacity;
    ts[c]->future = &futures[c];
    ts[c]->objects = size;
    ts[c]->experts = experts;
  }
  for (const auto o : counted.objects)
    ts[per_layer ? o / experts : 0]->uses_counted.push_back(per_layer ? o % experts : o);
  const auto each_group = [&](auto&& f) {
    std::uint32_t begin = 0;
    for (std::size_t g = 0; g < all.groups(); begin = all.group_end[g], ++g) {
      Objects members;
      for (std::uint32_t i = begin; i < all.group_end[g]; ++i) members.push_back(all.objects[i]);
      f(g, g / all.groups_per_step, members);
    }
  };
  each_group([&](std::size_t g, std::uint64_t step, const Objects& m) {
    for (std::size_t r = 0; r < m.size(); ++r) {
      futures[per_layer ? m[r] / experts : 0].uses.push_back(
          {per_layer ? m[r] % experts : m[r], step, g * k + r});
    }
  });
  std::vector<Event> events;
  each_group([&](std::size_t g, std::uint64_t step, const Objects& m) {
    if (m.empty()) return;
    const std::uint32_t layer = m[0] / experts;
    const std::uint32_t base = per_layer ? layer * experts : 0;
    Twin& t = *ts[per_layer ? layer : 0];
    const std::size_t cut = mode == Mode::kPlain ? 1 : m.size();
    for (std::size_t from = 0; from < m.size(); from += cut) {
      Objects local;
      for (std::size_t i = from; i < from + cut; ++i) local.push_back(m[i] - base);
      const auto outcome = t.group(local, step, g * k + from);
      for (std::size_t i = 0; i < cut; ++i) {
        const auto& o = outcome[i];
        events.push_back(
            {g, m[from + i], o.hit, o.admitted, o.victim == kNone ? kNone : o.victim + base});
      }
    }
  });
  return events;
}

std::vector<Event> policy_events(const std::string& name,
                                 Sequence& sequence,
                                 Sequence& train,
                                 Mode mode,
                                 Partition partition,
                                 std::uint64_t slots) {
  RunSpec spec{parse_policy(name), mode, partition, slots};
  const Setup setup = setup_for(sequence, &train, spec);
  auto simulator = spec.policy.make(setup);
  std::vector<Event> events;
  simulator->log_to(&events);
  const NextUse next(sequence);
  Block b;
  std::vector<std::uint16_t> misses;
  // Odd block lengths, so that state carries over block borders.
  for (std::uint64_t first = 0; first < sequence.steps(); first += b.steps) {
    sequence.decode(first, 7, false, b);
    next.fill(b);
    misses.assign(b.groups(), 0);
    simulator->run(b, misses.data());
  }
  return events;
}

void sort_group_members(std::vector<Event>& events) {
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::pair(a.group, a.object) < std::pair(b.group, b.object);
  });
}

std::string text(const Event& e) {
  return "group " + std::to_string(e.group) + " object " + std::to_string(e.object) +
         (e.hit ? " hit" : " miss") + (e.admitted ? " admitted" : "") +
         (e.victim == kNone ? "" : " for " + std::to_string(e.victim));
}

class EveryPolicy : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryPolicy, AgreesWithItsTwinAccessByAccess) {
  const std::string name = GetParam();
  std::uint64_t compared = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const TemporaryFile file(".mrt");
    RandomTraceOptions options;
    options.seed = seed_from_name("twins") + seed;
    options.stay = seed % 2 == 0 ? 0.2 : 0.7;
    options.padding = seed < 3 ? 0.0 : 0.2;
    if (seed == 4) options.geometry = {2, 24, 5};
    options.steps = 220;
    write_random_trace(file.path(), options);
    Sequence sequence({file.path()}, {});
    Sequence train({file.path()}, {.split = Split::kTrain});
    for (const auto partition : {Partition::kGlobal, Partition::kLayer}) {
      for (const auto mode : {Mode::kGroup, Mode::kPlain}) {
        const auto k = static_cast<std::uint64_t>(options.geometry.top_k);
        const auto layers = static_cast<std::uint64_t>(options.geometry.layers);
        const std::uint64_t least = mode == Mode::kGroup ? k : 1;
        const std::uint64_t objects = partition == Partition::kLayer
                                          ? static_cast<std::uint64_t>(options.geometry.experts)
                                          : sequence.objects();
        for (const std::uint64_t capacity :
             {least, least + 1, objects / 4 + least, objects / 2, objects - 1, objects}) {
          const std::uint64_t slots = partition == Partition::kLayer ? capacity * layers : capacity;
          auto got = policy_events(name, sequence, train, mode, partition, slots);
          auto want = twin_events(name, sequence, train, mode, partition, capacity);
          sort_group_members(got);
          sort_group_members(want);
          ASSERT_EQ(got.size(), want.size());
          for (std::size_t i = 0; i < got.size(); ++i) {
            ASSERT_TRUE(got[i] == want[i])
                << name << ", " << to_string(mode) << ", " << to_string(partition) << ", capacity "
                << capacity << ", seed " << seed << ", access " << i
                << "\n  policy: " << text(got[i]) << "\n  twin:   " << text(want[i]);
          }
          compared += got.size();
        }
      }
    }
  }
  EXPECT_GT(compared, 50000U);
}

std::vector<std::string> twin_names() {
  std::vector<std::string> names;
  for (const auto& [name, unused] : twins()) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Twins,
                         EveryPolicy,
                         ::testing::ValuesIn(twin_names()),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace_if(
                               name.begin(),
                               name.end(),
                               [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); },
                               '_');
                           return name;
                         });

TEST(PolicyTable, EveryFormHasATwin) {
  std::set<std::string> tested;
  for (const auto& [name, unused] : twins()) tested.insert(name.substr(0, name.find(':')));
  for (const PolicyEntry* entry : all_policies()) {
    std::string forms = entry->forms;
    for (std::size_t at = 0; at < forms.size();) {
      const std::size_t end = std::min(forms.find(' ', at), forms.size());
      const std::string form = forms.substr(at, end - at);
      EXPECT_TRUE(tested.contains(form.substr(0, form.find(':'))))
          << "policy form " << form << " has no twin in this file";
      at = end + 1;
    }
  }
}

TEST(PolicyTable, RefusesUnknownNamesAndBadParametersNamingTheValidForms) {
  for (const char* name : {"",
                           "lur",
                           "lru:1",
                           "decay",
                           "decay:0:2",
                           "decay:32",
                           "decay:x:2",
                           "second-miss",
                           "second-miss:-1",
                           "belady:-1",
                           "belady:1:2",
                           "forecast:8:0:1",
                           "forecast:8:1.5:1",
                           "successor:1",
                           "successor:0.7:1.1:0.05:0.9:0.1:0.3:0.4:x",
                           "successor:0.7:1.1:0.05:0.9:0.1:0.3:0.4:nan",
                           "successor:0.7:3:0.05:0.9:0.1:0.3:0.4:0"}) {
    EXPECT_THROW(static_cast<void>(parse_policy(name)), UserError) << name;
  }
  try {
    static_cast<void>(parse_policy("lur"));
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("decay:H:G"), std::string::npos) << e.what();
  }
  EXPECT_EQ(parse_policy("belady:full").name, "belady");
}

}  // namespace
}  // namespace assay::replay
