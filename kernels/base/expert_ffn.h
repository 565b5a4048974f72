// The routed experts' feed-forward behind the ops experts_host and experts_prefill, whose contracts are the same but for
// the number of tokens: one call with the op's types erased, the scalar stock and the double reference.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/blocks.h"
#include "kernels/base/stream.h"

namespace assay {

// Members as in the ops' Shape and Args.
struct ExpertFfn {
  int tokens = 0;
  int hidden = 0;
  int width = 0;
  int experts = 0;
  int top_k = 0;
  bool fused = true;
  bool reads_q8 = false;
  bool down_reads_q8 = false;
  QuantView gate_up, gate, up, down;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  const float* x = nullptr;
  Q8View xq;
  float* out = nullptr;

  // Matrix and first row of expert e's gate, up and down.
  struct Rows {
    const QuantView* matrix;
    int first;
  };
  Rows gate_rows(int e) const {
    return fused ? Rows{&gate_up, 2 * width * e} : Rows{&gate, width * e};
  }
  Rows up_rows(int e) const {
    return fused ? Rows{&gate_up, 2 * width * e + width} : Rows{&up, width * e};
  }
  Rows down_rows(int e) const { return {&down, hidden * e}; }
};

template <class Shape>
ExpertFfn expert_ffn_of(const Shape& s) {
  ExpertFfn c;
  c.tokens = s.tokens;
  c.hidden = s.hidden;
  c.width = s.width;
  c.experts = s.experts;
  c.top_k = s.top_k;
  c.fused = s.fused;
  c.reads_q8 = s.reads_q8();
  c.down_reads_q8 = s.down_reads_q8();
  return c;
}
template <class Shape, class Args>
ExpertFfn expert_ffn_of(const Shape& s, const Args& a) {
  ExpertFfn c = expert_ffn_of(s);
  c.gate_up = a.gate_up;
  c.gate = a.gate;
  c.up = a.up;
  c.down = a.down;
  c.ids = a.ids;
  c.weights = a.weights;
  c.x = a.x;
  c.xq = a.xq;
  c.out = a.out;
  return c;
}

// Tokens that one pass takes; a longer call is cut, which cannot change a bit because tokens are independent.
inline constexpr int kExpertTokens = 512;

// Scratch of one call, whatever runs it.
std::size_t expert_ffn_workspace_bytes(const ExpertFfn& c);

// Slots (token * top_k + k) of the tokens [first, first + count), sorted by expert and then by slot. `begin` has
// experts + 1 entries: expert e owns slots[begin[e] .. begin[e + 1]). Slots with id -1 are left out.
void bucket_slots(const ExpertFfn& c,
                  int first,
                  int count,
                  std::span<std::int32_t> begin,
                  std::span<std::int32_t> slots);

// Scalar stock.
void run_expert_ffn_scalar(const ExpertFfn& c, Workspace workspace, HostPool* pool);

// The arithmetic in double: out, [tokens][hidden]. In the fast lane u is rounded to float and quantised as the contract
// says, so that a code may differ by one from a run in float when u falls within a rounding of a tie.
std::vector<double> reference_expert_ffn(const ExpertFfn& c);

double expert_ffn_bytes_moved(const ExpertFfn& c, BlockType gate_up_type, BlockType down_type);
double expert_ffn_flops(const ExpertFfn& c);
double expert_ffn_error_bound(const ExpertFfn& c,
                              Numerics numerics,
                              BlockType gate_up_type,
                              BlockType down_type);

}  // namespace assay
