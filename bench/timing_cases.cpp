#include "bench/timing_cases.h"

#include <array>
#include <map>

#include "kernels/attention_decode/op.h"
#include "kernels/attention_prefill/op.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/op_impl.h"
#include "kernels/experts_decode/op.h"
#include "kernels/experts_prefill/op.h"
#include "kernels/gemm_quant/op.h"
#include "kernels/gemv_quant/op.h"
#include "kernels/router_topk/op.h"

namespace assay {
namespace {

// Layers of the 26B geometry. Experts: all that a token chooses and no more, so that every byte of a set is read.
template <class Op>
std::vector<typename Op::Case> timing_cases();

template <class Case>
std::vector<Case> in_both_lanes(const std::vector<Case>& cases) {
  std::vector<Case> out;
  for (const Numerics lane : {Numerics::kExact, Numerics::kFast}) {
    for (Case c : cases) {
      c.shape.numerics = lane;
      c.name += std::string("_") + to_string(lane);
      out.push_back(std::move(c));
    }
  }
  return out;
}

template <>
std::vector<GemvQuant::Case> timing_cases<GemvQuant>() {
  constexpr BlockType kType = BlockType::kQ4_0;
  return in_both_lanes<GemvQuant::Case>(
      {{.name = "full_window_qkv",
        .shape = {.tokens = 1, .rows = 8192, .cols = 2816, .type = kType}},
       {.name = "full_window_output",
        .shape = {.tokens = 1, .rows = 2816, .cols = 4096, .type = kType}},
       {.name = "full_shared_gate_up",
        .shape = {.tokens = 1, .rows = 4224, .cols = 2816, .type = kType}}});
}
// Takes seconds to fill: for the probe, not for every start of a pair.
std::vector<GemvQuant::Case> head_case() {
  return {{.name = "full_head_fast",
           .shape = {.tokens = 1,
                     .rows = 262144,
                     .cols = 2816,
                     .type = BlockType::kQ4_0,
                     .numerics = Numerics::kFast}}};
}
template <>
std::vector<GemmQuant::Case> timing_cases<GemmQuant>() {
  constexpr BlockType kType = BlockType::kQ4_0;
  return in_both_lanes<GemmQuant::Case>(
      {{.name = "full_qkv_512",
        .shape = {.tokens = 512, .rows = 8192, .cols = 2816, .type = kType}},
       {.name = "full_output_512",
        .shape = {.tokens = 512, .rows = 2816, .cols = 4096, .type = kType}}});
}
template <>
std::vector<ExpertsDecode::Case> timing_cases<ExpertsDecode>() {
  return in_both_lanes<ExpertsDecode::Case>(
      {{.name = "full_one_token",
        .shape = {.tokens = 1, .hidden = 2816, .width = 704, .experts = 8, .top_k = 8}}});
}
template <>
std::vector<ExpertsPrefill::Case> timing_cases<ExpertsPrefill>() {
  return in_both_lanes<ExpertsPrefill::Case>(
      {{.name = "full_tokens_256",
        .shape = {.tokens = 256, .hidden = 2816, .width = 704, .experts = 16, .top_k = 8}}});
}
template <>
std::vector<AttentionDecode::Case> timing_cases<AttentionDecode>() {
  return {{.name = "full_window_1024", .shape = {16, 8, 256, 1023, 1024, 1024, KvType::kF16}},
          {.name = "full_global_4096", .shape = {16, 2, 512, 4095, 4096, 4096, KvType::kF16}}};
}
template <>
std::vector<AttentionPrefill::Case> timing_cases<AttentionPrefill>() {
  return {{.name = "full_window_512", .shape = {512, 16, 8, 256, 0, 1, 1024, KvType::kF16}},
          {.name = "full_global_512", .shape = {512, 16, 2, 512, 0, 1, 0, KvType::kF16}}};
}
template <>
std::vector<RouterTopk::Case> timing_cases<RouterTopk>() {
  return {{.name = "full_one_token", .shape = {1, 128, 8}},
          {.name = "full_tokens_512", .shape = {512, 128, 8}}};
}

template <class Op, std::vector<typename Op::Case> (*kMore)() = timing_cases<Op>>
OpInfo extended() {
  OpInfo info = find_op(Op::kName);
  for (const auto& c : kMore()) info.case_names.push_back(c.name);
  info.make_problem = [](std::size_t index, std::uint64_t seed) -> std::unique_ptr<Problem> {
    static const auto all = [] {
      auto cases = Op::cases();
      for (auto& c : kMore()) cases.push_back(std::move(c));
      return cases;
    }();
    return std::make_unique<op_impl_detail::ProblemOf<Op>>(all.at(index), seed);
  };
  info.declared_ineligible = nullptr;  // for pages, which list the op's own cases
  return info;
}

}  // namespace

const OpInfo& with_timing_cases(const OpInfo& op) {
  if (gpu::unavailable() != nullptr || gpu::simulated()) return op;
  static const std::map<std::string, OpInfo> all = [] {
    std::map<std::string, OpInfo> ops;
    const auto add = [&]<class Op>() { ops.emplace(Op::kName, extended<Op>()); };
    add.template operator()<GemvQuant>();
    add.template operator()<GemmQuant>();
    add.template operator()<ExpertsDecode>();
    add.template operator()<ExpertsPrefill>();
    add.template operator()<AttentionDecode>();
    add.template operator()<AttentionPrefill>();
    add.template operator()<RouterTopk>();
    return ops;
  }();
  const auto it = all.find(op.name);
  return it != all.end() ? it->second : op;
}

const OpInfo& with_head() {
  static const OpInfo op = extended<GemvQuant, head_case>();
  return op;
}

bool reads_memory(const OpInfo& op) {
  static constexpr std::array kOps{
      "gemv_quant", "gemm_quant", "experts_decode", "experts_prefill", "attention_decode"};
  for (const char* name : kOps) {
    if (op.name == name) return true;
  }
  return false;
}

}  // namespace assay
