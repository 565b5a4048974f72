// attention_prefill: a chunk of fresh tokens of one sequence attends over the cache and over itself, causally.
// o[t][h] = sum_j softmax_j(q[t][h] . k_j[g]) v_j[g], g = h / (heads / kv_heads), scale exactly 1.0; token t stands at
// position past + t and sees positions j <= past + t, in a local layer only those with past + t - j < window.
// The cache holds the tokens before the chunk; the chunk's own rows come separately, so that a ring of `window` rows is
// exact for any chunk length: the caller commits the fresh rows afterwards.
// Not responsible for: projections, norms, RoPE, writing the cache, the output projection.
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

struct AttentionPrefill {
  static constexpr const char* kName = "attention_prefill";
  static constexpr const char* kSwitch = "ASSAY_ATTENTION_PREFILL";
  static constexpr const char* kSummary =
      "a chunk of queries over the cache and itself, causal, optional window";
  static constexpr OpKind kKind = OpKind::kKernel;

  struct Shape {
    int tokens = 1;    // queries, 1..65536
    int heads = 1;     // query heads, 1..1024, a multiple of kv_heads
    int kv_heads = 1;  // key and value heads, >= 1
    int head_dim = 0;  // elements a head, even, 2..1024
    int past = 0;      // tokens before the chunk, 0..2^24
    int slots =
        1;  // rows of the cache; position j lies in row j % slots; >= 1 and >= min(past, window - 1),
            // or >= past when window is 0
    int window = 0;  // visible keys, the token itself included; 0: all
    KvType kv = KvType::kF32;
    std::string describe() const;
  };

  struct Args {
    const float* q = nullptr;  // [tokens][heads][head_dim], 64-byte aligned, after norm and RoPE
    KvRows k_past;  // [slots][kv_heads * head_dim]; rows that no query sees are never read
    KvRows v_past;
    KvRows k_fresh;  // [tokens][kv_heads * head_dim], already rounded to the cache's type
    KvRows v_fresh;
    float* o = nullptr;  // [tokens][heads][head_dim], written whole, not aliased
  };

  // Order of the float operations: kernels/base/attend.h. Same bits on repeat, for any thread count, for any cut of a
  // sequence into chunks, and the same bits as attention_decode. NaN and infinity: see there; a bad key or value spoils
  // only the rows that see it. In-place: no. Graph capture: yes.
  static std::size_t workspace_bytes(const Shape&);
  static double bytes_moved(const Shape&);
  static double flops(const Shape&);
  static double error_bound(const Shape&);

  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    const auto q = static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.heads) *
                   static_cast<std::size_t>(s.head_dim);
    const auto row = static_cast<std::size_t>(s.kv_heads) * static_cast<std::size_t>(s.head_dim);
    const std::size_t cache = static_cast<std::size_t>(s.slots) * row;
    const std::size_t fresh = static_cast<std::size_t>(s.tokens) * row;
    v("q", a.q, q, Dir::kIn);
    const auto rows = [&](const char* name, KvRows& r, std::size_t count) {
      if (s.kv == KvType::kF32) {
        v(name, r.f32, count, Dir::kIn);
      } else {
        v(name, r.f16, count, Dir::kIn);
      }
    };
    rows("k_past", a.k_past, cache);
    rows("v_past", a.v_past, cache);
    rows("k_fresh", a.k_fresh, fresh);
    rows("v_fresh", a.v_fresh, fresh);
    v("o", a.o, q, Dir::kOut);
  }

  enum class Values { kNormal, kEqual, kHuge, kNan };
  struct Case {
    std::string name;
    Shape shape;
    bool mostly_nonfinite = false;
    Values values = Values::kNormal;
  };
  static std::vector<Case> cases();
  static void fill(const Case&, const Filler&);
  static std::vector<std::vector<double>> reference(const Shape&, const Args&);

  // The oldest position that the query at `position` sees.
  static int oldest(const Shape& s, int position) {
    return s.window > 0 && position + 1 > s.window ? position + 1 - s.window : 0;
  }
};

}  // namespace assay
