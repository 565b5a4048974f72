#include "replay/curves.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <queue>

#include "kernels/base/error.h"

namespace assay::replay {
namespace {

// ---- LRU stack of at most 255 objects: every object's rank, one byte each ----
//
// A use of x moves every more recent object one down: rank[y] += rank[y] < rank[x]; rank[x] = 0. The members of a group are
// distinct, so the group's uses are one sweep: rank[y] += the members that were below y, whatever their order. The members'
// own ranks are written as bytes last; the next 16-byte load of them is a group away, when no store is in flight.
template <std::size_t kBytes>
class RankBytes {
 public:
  explicit RankBytes(std::uint32_t) { std::fill(std::begin(rank_), std::end(rank_), kUnseen); }
  // Counts the distances of all members: before the group, or with `in_turn` each after those before it. at: null or
  // [objects + 1], 1 is the most recent object, 0 one never used.
  void group(const std::uint32_t* objects, std::uint32_t size, bool in_turn, std::uint64_t* at) {
    std::uint8_t ranks[255];
    for (std::uint32_t i = 0; i < size; ++i) ranks[i] = rank_[objects[i]];
    if (at != nullptr) {
      for (std::uint32_t i = 0; i < size; ++i) {
        std::uint32_t passed = 0;  // members that came on top in the meantime
        for (std::uint32_t j = 0; in_turn && j < i; ++j) passed += ranks[j] > ranks[i] ? 1 : 0;
        ++at[ranks[i] == kUnseen ? 0 : ranks[i] + 1 + passed];
      }
    }
    using Bytes = std::uint8_t __attribute__((vector_size(16)));
    Bytes limits[255];
    for (std::uint32_t i = 0; i < size; ++i) limits[i] = Bytes{} + ranks[i];
    for (std::size_t b = 0; b < kBytes; b += 16) {
      Bytes v;
      std::memcpy(&v, rank_ + b, 16);
      const Bytes before = v;
      for (std::uint32_t i = 0; i < size; ++i)
        v -= reinterpret_cast<Bytes>(before < limits[i]);  // 0xFF, that is -1, where true
      std::memcpy(rank_ + b, &v, 16);
    }
    for (std::uint32_t i = 0; i < size; ++i)
      rank_[objects[i]] = static_cast<std::uint8_t>(size - 1 - i);
  }

 private:
  static constexpr std::uint8_t kUnseen = 255;
  alignas(64) std::uint8_t rank_[kBytes];
};

// ---- LRU stack of any number of objects: last uses as bits on a time line ----
//
// The distance of x is the number of objects used at or after x's last use: set bits above its own, counted as a partial word,
// whole words of the same block and all later blocks. When the line is full the bits are moved together.
class TimeLine {
 public:
  explicit TimeLine(std::uint32_t objects)
      : slots_(std::bit_ceil(std::max<std::uint64_t>(4096, std::uint64_t{objects} * 4))),
        at_(objects, kUnseen),
        bits_(slots_ / 64, 0),
        words_(slots_ / 64, 0),
        later_(slots_ / kBlock, 0),
        owner_(slots_) {}

  std::uint32_t distance(std::uint32_t o) const {
    const std::uint32_t p = at_[o];
    if (p == kUnseen) return 0;
    return set_bits(bits_[p / 64] >> (p % 64)) + words_after(p / 64) + later_[p / kBlock];
  }
  void touch(std::uint32_t o) {
    if (now_ == slots_) compact();
    const auto now = static_cast<std::uint32_t>(now_);
    std::uint32_t from = 0;
    if (at_[o] != kUnseen) {
      from = at_[o] / kBlock;
      flip(at_[o], -1);
    }
    // Blocks from there to the present one see one more use behind them. All blocks are looked at, for a loop of a length
    // that nobody can predict costs more.
    using Blocks = std::uint32_t __attribute__((vector_size(16)));
    const Blocks first = Blocks{} + from;
    const Blocks present = Blocks{} + now / static_cast<std::uint32_t>(kBlock);
    Blocks number = {0, 1, 2, 3};
    for (std::size_t b = 0; b < later_.size(); b += 4, number += 4) {
      Blocks v;
      std::memcpy(&v, later_.data() + b, 16);
      v -= reinterpret_cast<Blocks>(number >= first) & reinterpret_cast<Blocks>(number < present);
      std::memcpy(later_.data() + b, &v, 16);
    }
    at_[o] = now;
    owner_[now] = o;
    flip(now, 1);
    ++now_;
  }
  void group(const std::uint32_t* objects, std::uint32_t size, bool in_turn, std::uint64_t* at) {
    if (!in_turn && at != nullptr) {
      for (std::uint32_t i = 0; i < size; ++i) ++at[distance(objects[i])];
    }
    for (std::uint32_t i = 0; i < size; ++i) {
      if (in_turn && at != nullptr) ++at[distance(objects[i])];
      touch(objects[i]);
    }
  }

 private:
  static constexpr std::uint32_t kUnseen = 0xFFFFFFFFU;
  static constexpr std::size_t kBlock = 1024;  // slots a block: 16 words

  // Without the processor's own instruction, which not every x86-64 has: a call to the library would cost more.
  static std::uint32_t set_bits(std::uint64_t x) {
    x -= (x >> 1) & 0x5555555555555555U;
    x = (x & 0x3333333333333333U) + ((x >> 2) & 0x3333333333333333U);
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0FU;
    return static_cast<std::uint32_t>((x * 0x0101010101010101U) >> 56);
  }
  // Set bits of the words behind w in its block: sixteen counts of at most 64, added in 16-bit lanes.
  std::uint32_t words_after(std::size_t w) const {
    constexpr std::uint64_t kLow = 0x00FF00FF00FF00FFU;
    std::uint64_t half[2];
    std::memcpy(half, words_.data() + w / 16 * 16, 16);
    const std::size_t at = w % 16;
    // Shifted twice, because a shift by all 64 bits is not defined.
    const std::uint64_t above = (~std::uint64_t{0} << (at % 8 * 8)) << 8;
    half[at / 8] &= above;
    if (at >= 8) half[0] = 0;
    const std::uint64_t sum =
        (half[0] & kLow) + ((half[0] >> 8) & kLow) + (half[1] & kLow) + ((half[1] >> 8) & kLow);
    return static_cast<std::uint32_t>((sum * 0x0001000100010001U) >> 48);
  }
  void flip(std::uint32_t p, int by) {
    bits_[p / 64] ^= std::uint64_t{1} << (p % 64);
    words_[p / 64] = static_cast<std::uint8_t>(words_[p / 64] + by);
  }
  void compact() {
    std::uint32_t n = 0;
    for (std::size_t w = 0; w < bits_.size(); ++w) {
      for (std::uint64_t bits = bits_[w]; bits != 0; bits &= bits - 1) {
        const std::uint32_t o = owner_[w * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
        owner_[n] = o;
        at_[o] = n++;
      }
    }
    std::fill(bits_.begin(), bits_.end(), std::uint64_t{0});
    std::fill(words_.begin(), words_.end(), std::uint8_t{0});
    for (std::uint32_t p = 0; p < n; ++p) flip(p, 1);
    for (std::size_t b = 0; b < later_.size(); ++b) {
      const auto end = static_cast<std::uint32_t>((b + 1) * kBlock);
      later_[b] = n > end ? n - end : 0;
    }
    now_ = n;
  }

  std::uint64_t slots_;
  std::uint64_t now_ = 0;
  std::vector<std::uint32_t> at_;     // [objects] slot of the last use
  std::vector<std::uint64_t> bits_;   // [slots / 64]
  std::vector<std::uint8_t> words_;   // [slots / 64] set bits of each word
  std::vector<std::uint32_t> later_;  // [slots / 1024] set bits behind each block
  std::vector<std::uint32_t> owner_;  // [slots]
};

// Cuts a block into groups of one cache each: f(cache, objects in the cache's numbering, size, first index, counted).
template <class F>
void for_each_group(const Setup& s,
                    const Block& block,
                    std::uint64_t warmup,
                    std::vector<std::uint32_t>& local,
                    F&& f) {
  const bool per_layer = s.partition == Partition::kLayer;
  const bool flat = block.groups_per_step == 1 && s.top_k == 1;
  local.resize(s.top_k);
  std::size_t g = 0;
  std::uint32_t begin = 0;
  for (std::size_t step = 0; step < block.steps; ++step) {
    const bool counted = block.first_step + step >= warmup;
    for (std::uint32_t l = 0; l < block.groups_per_step; ++l, ++g) {
      const std::uint32_t end = block.group_end[g];
      const std::uint32_t* objects = block.objects.data() + begin;
      const std::uint32_t size = end - begin;
      std::uint32_t cache = 0;
      if (per_layer && size != 0) {
        cache = flat ? objects[0] / s.experts : l;
        for (std::uint32_t i = 0; i < size; ++i) local[i] = objects[i] - cache * s.experts;
        objects = local.data();
      }
      f(cache, objects, size, begin, counted, g);
      begin = end;
    }
  }
}

template <class Stack>
class LruPass final : public CurvePass {
 public:
  explicit LruPass(const Setup& s) : setup_(s), counts_(s.caches) {
    stacks_.reserve(s.caches);
    for (std::uint32_t c = 0; c < s.caches; ++c) stacks_.emplace_back(s.objects);
    for (auto& c : counts_) c.at.assign(std::size_t{s.objects} + 1, 0);
  }
  void run(const Block& block, std::uint64_t warmup) override {
    const bool plain = setup_.mode == Mode::kPlain;
    for_each_group(setup_,
                   block,
                   warmup,
                   local_,
                   [&](std::uint32_t cache,
                       const std::uint32_t* objects,
                       std::uint32_t size,
                       std::uint32_t,
                       bool counted,
                       std::size_t) {
                     std::uint64_t* at = counted ? counts_[cache].at.data() : nullptr;
                     stacks_[cache].group(objects, size, plain, at);
                   });
  }
  const std::vector<DistanceCounts>& counts() const override { return counts_; }

 private:
  Setup setup_;
  std::vector<Stack> stacks_;
  std::vector<DistanceCounts> counts_;
  std::vector<std::uint32_t> local_;
};

// ---- the optimum's stack ----
//
// S_c, the cache of c slots, is the first c entries of the stack. A group G of k members enters every S_c and pushes out the
// c - |S_c \ G| .. candidates used farthest ahead. Walking down with the pool D of candidates that S_c lost and S_(c+1) may
// regain: the entry at c + 1 is a candidate -> D takes it; it is a member -> one fewer was lost. Either way the nearest of D is
// what S'_(c+1) has more than S'_c, the new entry. Only entries used farther ahead than all of D change the stack, so whole
// blocks of 64 without a member and with a nearer maximum are skipped.
class OptStack {
 public:
  explicit OptStack(std::uint32_t objects)
      : position_(objects, 0), key_(objects, 0), member_(objects, 0) {}

  // Distances of the members (0: never used), then the move. keys: place of the next use, or the maximum value.
  void group(const std::uint32_t* objects,
             std::uint32_t size,
             const std::uint64_t* keys,
             std::uint32_t* distances) {
    ++group_;
    std::uint32_t deepest = 0;
    std::uint32_t fresh = 0;
    for (std::uint32_t i = 0; i < size; ++i) {
      const std::uint32_t o = objects[i];
      distances[i] = position_[o];
      member_[o] = group_;
      deepest = std::max(deepest, position_[o]);
      if (position_[o] == 0) ++fresh;
    }
    const auto used = static_cast<std::uint32_t>(stack_.size());
    if (fresh != 0) deepest = used;  // every size changes
    stack_.resize(used + fresh);
    maximum_.resize((stack_.size() + 63) / 64, 0);
    pool_.clear();
    for (std::uint32_t p = 0; p < std::min(size, used); ++p) {
      if (member_[stack_[p]] != group_) push(stack_[p]);
    }
    for (std::uint32_t i = 0; i < size; ++i) {
      key_[objects[i]] = keys[i];
      put(i, objects[i]);
    }
    for (std::uint32_t block = 0;
         block * 64 < std::min(size, static_cast<std::uint32_t>(stack_.size()));
         ++block)
      refresh(block);
    // The members beyond the first k entries, so that the walk knows which blocks hold one.
    deep_.clear();
    for (std::uint32_t i = 0; i < size; ++i) {
      if (distances[i] > size) deep_.push_back(distances[i] - 1);
    }
    std::sort(deep_.begin(), deep_.end());
    std::size_t next_member = 0;
    std::uint32_t p = size;
    while (p < deepest) {
      const std::uint32_t block = p / 64;
      const std::uint32_t block_end = std::min(deepest, (block + 1) * 64);
      const bool member_here = next_member < deep_.size() && deep_[next_member] < block_end;
      if (!member_here && (pool_.empty() || maximum_[block] <= key_[pool_.front()])) {
        p = block_end;
        continue;
      }
      bool changed = false;
      for (; p < block_end; ++p) {
        const std::uint32_t o = stack_[p];
        if (member_[o] == group_ && next_member < deep_.size() && deep_[next_member] == p) {
          ++next_member;
        } else {
          if (pool_.empty() || key_[o] <= key_[pool_.front()]) continue;
          push(o);
        }
        put(p, pop());
        changed = true;
      }
      if (changed) refresh(block);
    }
    for (p = std::max(p, used); p < stack_.size() && !pool_.empty(); ++p) {
      put(p, pop());
      refresh(p / 64);
    }
  }

 private:
  void put(std::uint32_t p, std::uint32_t o) {
    stack_[p] = o;
    position_[o] = p + 1;
  }
  void refresh(std::uint32_t block) {
    std::uint64_t m = 0;
    const std::size_t end = std::min<std::size_t>(stack_.size(), (std::size_t{block} + 1) * 64);
    for (std::size_t i = std::size_t{block} * 64; i < end; ++i) m = std::max(m, key_[stack_[i]]);
    maximum_[block] = m;
  }
  // The pool is a heap with the nearest next use in front.
  void push(std::uint32_t o) {
    pool_.push_back(o);
    std::push_heap(pool_.begin(), pool_.end(), [this](std::uint32_t a, std::uint32_t b) {
      return key_[a] > key_[b];
    });
  }
  std::uint32_t pop() {
    std::pop_heap(pool_.begin(), pool_.end(), [this](std::uint32_t a, std::uint32_t b) {
      return key_[a] > key_[b];
    });
    const std::uint32_t o = pool_.back();
    pool_.pop_back();
    return o;
  }

  std::vector<std::uint32_t> stack_;
  std::vector<std::uint32_t> position_;  // [objects] 1-based, 0 never used
  std::vector<std::uint64_t> key_;       // [objects]
  std::vector<std::uint64_t> member_;    // [objects] the last group that named it
  std::vector<std::uint64_t> maximum_;   // largest key of each 64 entries
  std::vector<std::uint32_t> pool_;
  std::vector<std::uint32_t> deep_;
  std::uint64_t group_ = 0;
};

class OptPass final : public CurvePass {
 public:
  explicit OptPass(const Setup& s)
      : setup_(s), counts_(s.caches), keys_(s.top_k), distances_(s.top_k) {
    for (std::uint32_t c = 0; c < s.caches; ++c) stacks_.emplace_back(s.objects);
    for (auto& c : counts_) c.at.assign(std::size_t{s.objects} + 1, 0);
  }
  void run(const Block& block, std::uint64_t warmup) override {
    const bool plain = setup_.mode == Mode::kPlain;
    const std::uint64_t base = block.first_step * block.groups_per_step;
    for_each_group(setup_,
                   block,
                   warmup,
                   local_,
                   [&](std::uint32_t cache,
                       const std::uint32_t* objects,
                       std::uint32_t size,
                       std::uint32_t begin,
                       bool counted,
                       std::size_t g) {
                     const std::uint64_t place = (base + g) * setup_.top_k;
                     for (std::uint32_t i = 0; i < size; ++i) {
                       const std::uint32_t next = block.next[begin + i];
                       keys_[i] = next == kNeverAgain ? ~std::uint64_t{0} : place + i + next;
                     }
                     const std::uint32_t cut = plain ? 1 : size;
                     for (std::uint32_t i = 0; i < size; i += cut) {
                       stacks_[cache].group(
                           objects + i, cut, keys_.data() + i, distances_.data() + i);
                     }
                     if (!counted) return;
                     for (std::uint32_t i = 0; i < size; ++i) ++counts_[cache].at[distances_[i]];
                   });
  }
  const std::vector<DistanceCounts>& counts() const override { return counts_; }

 private:
  Setup setup_;
  std::vector<OptStack> stacks_;
  std::vector<DistanceCounts> counts_;
  std::vector<std::uint32_t> local_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint32_t> distances_;
};

class ShardsPass final : public CurvePass {
 public:
  ShardsPass(const Setup& s, double rate, std::uint64_t seed)
      : setup_(s), counts_(s.caches), chosen_(std::size_t{s.objects} * s.caches, 0) {
    const auto threshold = static_cast<std::uint64_t>(rate * 0x1p32);
    for (std::size_t o = 0; o < chosen_.size(); ++o) {
      std::uint64_t h = (o + 1) * 0x9E3779B97F4A7C15ULL + seed * 0xD1B54A32D192ED03ULL;
      h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ULL;
      h = (h ^ (h >> 27)) * 0x94D049BB133111EBULL;
      chosen_[o] = ((h ^ (h >> 31)) & 0xFFFFFFFFU) < threshold ? 1 : 0;
    }
    for (std::uint32_t c = 0; c < s.caches; ++c) stacks_.emplace_back(s.objects);
    for (auto& c : counts_) c.at.assign(std::size_t{s.objects} + 1, 0);
    rate_ = rate;
    total_.assign(s.caches, 0);
  }
  void run(const Block& block, std::uint64_t warmup) override {
    const bool plain = setup_.mode == Mode::kPlain;
    for_each_group(
        setup_,
        block,
        warmup,
        local_,
        [&](std::uint32_t cache,
            const std::uint32_t* objects,
            std::uint32_t size,
            std::uint32_t,
            bool counted,
            std::size_t) {
          TimeLine& stack = stacks_[cache];
          const std::uint8_t* chosen = chosen_.data() + std::size_t{cache} * setup_.objects;
          if (counted) total_[cache] += size;
          const std::uint32_t cut = plain ? 1 : size;
          for (std::uint32_t from = 0; from < size; from += cut) {
            for (std::uint32_t i = from; i < from + cut && counted; ++i) {
              if (chosen[objects[i]] == 0) continue;
              const std::uint32_t d = stack.distance(objects[i]);
              const auto scaled = static_cast<std::uint64_t>(std::llround(d / rate_));
              ++counts_[cache].at[d == 0 ? 0
                                         : std::min<std::uint64_t>(
                                               std::max<std::uint64_t>(scaled, 1), setup_.objects)];
            }
            for (std::uint32_t i = from; i < from + cut; ++i) {
              if (chosen[objects[i]] != 0) stack.touch(objects[i]);
            }
          }
        });
  }
  const std::vector<DistanceCounts>& counts() const override { return counts_; }
  const std::vector<std::uint64_t>& total() const { return total_; }

 private:
  Setup setup_;
  std::vector<TimeLine> stacks_;
  std::vector<DistanceCounts> counts_;
  std::vector<std::uint8_t> chosen_;  // [caches * objects]
  std::vector<std::uint32_t> local_;
  std::vector<std::uint64_t> total_;  // [caches] accesses, sampled or not
  double rate_ = 1.0;
};

// misses[c] for c = 0 .. objects from distance counts.
std::vector<double> miss_table(const DistanceCounts& counts) {
  std::vector<double> table(counts.at.size());
  std::uint64_t misses = 0;
  for (const auto n : counts.at) misses += n;
  for (std::size_t c = 0; c < counts.at.size(); ++c) {
    if (c != 0) misses -= counts.at[c];
    table[c] = static_cast<double>(misses);
  }
  return table;
}

}  // namespace

std::uint64_t DistanceCounts::misses(std::uint64_t slots) const {
  std::uint64_t n = at[0];
  for (std::size_t d = slots + 1; d < at.size(); ++d) n += at[d];
  return n;
}

std::unique_ptr<CurvePass> make_lru_pass(const Setup& s) {
  if (s.objects <= 64) return std::make_unique<LruPass<RankBytes<64>>>(s);
  if (s.objects <= 128) return std::make_unique<LruPass<RankBytes<128>>>(s);
  if (s.objects <= 255) return std::make_unique<LruPass<RankBytes<256>>>(s);
  return std::make_unique<LruPass<TimeLine>>(s);
}
std::unique_ptr<CurvePass> make_opt_pass(const Setup& s) { return std::make_unique<OptPass>(s); }
std::unique_ptr<CurvePass> make_shards_pass(const Setup& s, double rate, std::uint64_t seed) {
  if (!(rate > 0.0 && rate <= 1.0))
    throw UserError("SHARDS rate " + std::to_string(rate) + " is not in (0, 1]");
  return std::make_unique<ShardsPass>(s, rate, seed);
}

CurveSet compute_curves(Sequence& sequence,
                        const CurveOptions& options,
                        const ProgressFn& progress) {
  if (options.warmup >= sequence.steps()) throw UserError("the warm-up leaves no step to count");
  RunSpec spec;
  spec.policy.name = "curve";
  spec.mode = options.mode;
  spec.partition = options.partition;
  spec.slots = sequence.objects();
  const Setup s = setup_for(sequence, nullptr, spec);
  constexpr int kSamples = 4;  // of SHARDS, for its standard error
  std::unique_ptr<CurvePass> lru = options.lru ? make_lru_pass(s) : nullptr;
  std::unique_ptr<CurvePass> opt = options.opt ? make_opt_pass(s) : nullptr;
  std::vector<std::unique_ptr<CurvePass>> shards;
  for (int i = 0; options.shards_rate > 0.0 && i < kSamples; ++i) {
    shards.push_back(make_shards_pass(s, options.shards_rate, static_cast<std::uint64_t>(i) + 1));
  }
  const std::unique_ptr<NextUse> next =
      opt != nullptr ? std::make_unique<NextUse>(sequence) : nullptr;
  std::uint64_t accesses = 0;
  Block block;
  for (std::uint64_t first = 0; first < sequence.steps(); first += block.steps) {
    sequence.decode(first, sequence.block_steps(), false, block);
    if (next != nullptr) next->fill(block);
    if (first + block.steps > options.warmup) {
      const std::size_t skip =
          first < options.warmup ? static_cast<std::size_t>(options.warmup - first) : 0;
      accesses += block.objects.size() -
                  (skip == 0 ? 0 : block.group_end[skip * block.groups_per_step - 1]);
    }
    if (lru != nullptr) lru->run(block, options.warmup);
    if (opt != nullptr) opt->run(block, options.warmup);
    for (auto& p : shards) p->run(block, options.warmup);
    if (progress) progress(first + block.steps, sequence.steps());
  }

  CurveSet set;
  const std::uint64_t least = options.mode == Mode::kGroup ? s.top_k : 1;
  const auto add = [&](const char* kind, const std::vector<std::vector<double>>& tables) {
    MissCurve c;
    c.kind = kind;
    c.mode = options.mode;
    c.partition = options.partition;
    c.steps = sequence.steps() - options.warmup;
    c.accesses = accesses;
    for (std::uint64_t size = least; size <= s.objects; ++size) {
      c.slots.push_back(size * s.caches);
      double misses = 0.0;
      for (const auto& t : tables) misses += t[size];
      c.misses.push_back(misses);
    }
    return c;
  };
  const auto tables = [](const CurvePass& pass) {
    std::vector<std::vector<double>> t;
    for (const auto& c : pass.counts()) t.push_back(miss_table(c));
    return t;
  };
  if (lru != nullptr) {
    set.curves.push_back(add("lru", tables(*lru)));
    if (options.partition == Partition::kLayer) set.lru_layers = lru->counts();
  }
  if (opt != nullptr) {
    set.curves.push_back(add("opt", tables(*opt)));
    if (options.partition == Partition::kLayer) set.opt_layers = opt->counts();
  }
  if (!shards.empty()) {
    std::vector<MissCurve> samples;
    for (const auto& p : shards) {
      const auto& pass = static_cast<const ShardsPass&>(*p);
      std::vector<std::vector<double>> t = tables(pass);
      for (std::size_t c = 0; c < t.size(); ++c) {
        // SHARDS-adj: the difference between the sample's size and its expectation belongs to the smallest distances, that is,
        // it is no miss at any size; misses are scaled by the rate alone.
        for (auto& m : t[c])
          m = std::min(m / options.shards_rate, static_cast<double>(pass.total()[c]));
      }
      samples.push_back(add("shards", t));
    }
    MissCurve mean = samples[0];
    mean.error.assign(mean.misses.size(), 0.0);
    for (std::size_t i = 0; i < mean.misses.size(); ++i) {
      double sum = 0.0;
      double squares = 0.0;
      for (const auto& c : samples) sum += c.misses[i];
      mean.misses[i] = sum / kSamples;
      for (const auto& c : samples)
        squares += (c.misses[i] - mean.misses[i]) * (c.misses[i] - mean.misses[i]);
      mean.error[i] = std::sqrt(squares / (kSamples - 1) / kSamples);
    }
    if (lru != nullptr) {
      const auto& exact = set.curves[0].misses;
      for (std::size_t i = 0; i < exact.size(); ++i) {
        const double share = std::abs(mean.misses[i] - exact[i]) / static_cast<double>(accesses);
        mean.worst_error_share = std::max(mean.worst_error_share, share);
        mean.mean_error_share += share / static_cast<double>(exact.size());
      }
    }
    set.curves.push_back(std::move(mean));
  }
  return set;
}

}  // namespace assay::replay
