// attention_decode: one query row per head over the visible keys of one sequence's cache; the token's own key and value
// are already in the cache. o[h] = sum_j softmax_j(q[h] . k_j[g]) v_j[g], g = h / (heads / kv_heads), scale exactly 1.0.
// Not responsible for: projections, norms, RoPE, appending to the cache, the output projection.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/kv_rows.h"
#include "kernels/base/op_info.h"
#include "kernels/base/registry.h"

namespace assay {

class Filler;

struct AttentionDecode {
  static constexpr const char* kName = "attention_decode";
  static constexpr const char* kSwitch = "ASSAY_ATTENTION_DECODE";
  static constexpr const char* kSummary = "one query over the cache, full depth or a ring";
  static constexpr OpKind kKind = OpKind::kKernel;

  struct Shape {
    int heads = 1;     // query heads, 1..1024, a multiple of kv_heads
    int kv_heads = 1;  // key and value heads, >= 1
    int head_dim = 0;  // elements a head, even, 2..1024
    int position = 0;  // absolute position of the query, 0..2^24
    int keys = 1;   // visible keys, 1..position + 1: those at positions (position - keys, position]
    int slots = 1;  // rows of the cache, >= keys; position j lies in row j % slots
    KvType kv = KvType::kF32;
    // The position is read from Args::position when the launch runs, so that one captured graph serves many tokens;
    // `position` and `keys` are then the most that it may be.
    bool live = false;
    std::string describe() const;
  };

  struct Args {
    const float* q = nullptr;  // [heads][head_dim], 64-byte aligned, after norm and RoPE
    KvRows k;            // [slots][kv_heads * head_dim], after norm and RoPE; rows outside the
    KvRows v;            //   visible keys are never read; not aliased
    float* o = nullptr;  // [heads][head_dim], written whole, not aliased
    // [1], read only when live: p in 0..Shape::position; min(p + 1, Shape::keys) keys are visible
    const std::int32_t* position = nullptr;
  };
  // What a live shape means now; any other is returned as it is. For host code.
  static Shape now(const Shape& s, const Args& a) {
    Shape out = s;
    if (s.live) {
      out.position = *a.position;
      out.keys = *a.position + 1 < s.keys ? *a.position + 1 : s.keys;
      out.live = false;
    }
    return out;
  }

  // Order of the float operations: kernels/base/attend.h. Same bits on repeat, for any thread count, whatever `slots`
  // is, and the same bits as attention_prefill. NaN and infinity: see there; a bad value spoils its own head's row only.
  // In-place: no. Graph capture: yes.
  static std::size_t workspace_bytes(const Shape&);
  static double bytes_moved(const Shape&);
  static double flops(const Shape&);
  static double error_bound(const Shape&);

  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    const auto q = static_cast<std::size_t>(s.heads) * static_cast<std::size_t>(s.head_dim);
    const auto row = static_cast<std::size_t>(s.kv_heads) * static_cast<std::size_t>(s.head_dim);
    const std::size_t cache = static_cast<std::size_t>(s.slots) * row;
    v("q", a.q, q, Dir::kIn);
    if (s.kv == KvType::kF32) {
      v("k", a.k.f32, cache, Dir::kIn);
      v("v", a.v.f32, cache, Dir::kIn);
    } else {
      v("k", a.k.f16, cache, Dir::kIn);
      v("v", a.v.f16, cache, Dir::kIn);
    }
    v("o", a.o, q, Dir::kOut);
    if (s.live) v("position", a.position, 1, Dir::kIn);
  }

  enum class Values { kNormal, kSharp, kEqual, kHuge, kNan };
  struct Case {
    std::string name;
    Shape shape;
    bool mostly_nonfinite = false;
    Values values = Values::kNormal;
    int live_position = 0;  // of a live shape
  };
  static std::vector<Case> cases();
  static void fill(const Case&, const Filler&);
  static std::vector<std::vector<double>> reference(const Shape&, const Args&);
};

}  // namespace assay
