// Resident objects by the place of their next use; the farthest can be taken. Places are distinct and lie ahead of `now`.
//
// Near places (less than kWindow ahead) are bits of a ring with two summary levels, so that insert and erase touch one to three
// words; far ones wait in a max-heap whose stale entries are dropped when they surface or outnumber the live ones.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/expert_policy/group.h"

namespace assay::replay {

class NextUseQueue {
 public:
  // window: a power of two from 4096 to 262144.
  explicit NextUseQueue(std::uint32_t objects, std::uint64_t window = std::uint64_t{1} << 17)
      : mask_(window - 1),
        bits_(window / 64, 0),
        words_(std::max<std::uint64_t>(1, window / 4096), 0),
        owner_(window),
        place_(objects, kOut) {}

  bool contains(std::uint32_t o) const { return place_[o] != kOut; }
  std::uint64_t place(std::uint32_t o) const { return place_[o]; }

  // now < place. The object is not in the queue.
  void insert(std::uint32_t o, std::uint64_t place, std::uint64_t now) {
    place_[o] = place;
    if (place - now <= mask_) {
      const std::uint64_t slot = place & mask_;
      bits_[slot / 64] |= std::uint64_t{1} << (slot % 64);
      words_[slot / 4096] |= std::uint64_t{1} << (slot / 64 % 64);
      top_ |= std::uint64_t{1} << (slot / 4096);
      owner_[slot] = o;
    } else {
      if (far_.size() > 2 * far_live_ + 4096) drop_stale();
      far_.emplace_back(place, o);
      std::push_heap(far_.begin(), far_.end());
      ++far_live_;
    }
  }
  void erase(std::uint32_t o) {
    const std::uint64_t slot = place_[o] & mask_;
    const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
    // An object waits in the ring exactly when its slot is set and is its own.
    if ((bits_[slot / 64] & bit) != 0 && owner_[slot] == o) {
      clear(slot);
    } else {
      --far_live_;
    }
    place_[o] = kOut;
  }
  // Takes the object used farthest from now, or kNone when empty.
  std::uint32_t take_farthest(std::uint64_t now) {
    std::uint32_t o = farthest(now);
    if (o != expert_policy::kNone) erase(o);
    return o;
  }
  std::uint32_t farthest(std::uint64_t now) {
    while (!far_.empty() && place_[far_.front().second] != far_.front().first) {
      std::pop_heap(far_.begin(), far_.end());
      far_.pop_back();
    }
    std::uint32_t best = expert_policy::kNone;
    if (top_ != 0) {
      // Places ahead of now wrap around the ring: below now's own slot lie the farther ones.
      std::uint64_t slot = highest_below(now & mask_);
      if (slot > mask_) slot = highest();
      best = owner_[slot];
    }
    if (!far_.empty() && (best == expert_policy::kNone || far_.front().first > place_[best]))
      best = far_.front().second;
    return best;
  }

 private:
  static constexpr std::uint64_t kOut = 0;  // no next use lies at place 0

  static std::uint64_t high_bit(std::uint64_t w) {
    return 63 - static_cast<std::uint64_t>(std::countl_zero(w));
  }
  void clear(std::uint64_t slot) {
    bits_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
    if (bits_[slot / 64] != 0) return;
    words_[slot / 4096] &= ~(std::uint64_t{1} << (slot / 64 % 64));
    if (words_[slot / 4096] == 0) top_ &= ~(std::uint64_t{1} << (slot / 4096));
  }
  std::uint64_t highest() const { return in_word(in_block(high_bit(top_))); }
  std::uint64_t in_block(std::uint64_t block) const { return block * 64 + high_bit(words_[block]); }
  std::uint64_t in_word(std::uint64_t word) const { return word * 64 + high_bit(bits_[word]); }
  // The highest set slot below `end`, or a number above mask_.
  std::uint64_t highest_below(std::uint64_t end) const {
    const auto below = [](std::uint64_t bit) { return (std::uint64_t{1} << bit) - 1; };
    if (const auto w = bits_[end / 64] & below(end % 64)) return end / 64 * 64 + high_bit(w);
    if (const auto w = words_[end / 4096] & below(end / 64 % 64))
      return in_word(end / 4096 * 64 + high_bit(w));
    if (const auto w = top_ & below(end / 4096)) return in_word(in_block(high_bit(w)));
    return ~std::uint64_t{0};
  }
  void drop_stale() {
    std::erase_if(far_, [&](const auto& e) { return place_[e.second] != e.first; });
    std::make_heap(far_.begin(), far_.end());
  }

  std::uint64_t mask_;
  std::vector<std::uint64_t> bits_;   // [window / 64]
  std::vector<std::uint64_t> words_;  // [window / 4096] which words of bits_ are not zero
  std::uint64_t top_ = 0;             // which of words_ are not zero
  std::vector<std::uint32_t> owner_;  // [window]
  std::vector<std::uint64_t> place_;  // [objects] next use, or kOut
  std::vector<std::pair<std::uint64_t, std::uint32_t>> far_;
  std::size_t far_live_ = 0;
};

}  // namespace assay::replay
