#include "kernels/base/expert_ffn.h"
#include "kernels/experts_host/op.h"

namespace assay {

std::string ExpertsHost::Shape::describe() const {
  return "tokens=" + std::to_string(tokens) + " hidden=" + std::to_string(hidden) +
         " width=" + std::to_string(width) + " experts=" + std::to_string(experts) +
         " top_k=" + std::to_string(top_k) + (fused ? " fused" : " split") +
         " gate_up_type=" + to_string(gate_up_type) + " down_type=" + to_string(down_type) +
         " numerics=" + to_string(numerics);
}
std::size_t ExpertsHost::workspace_bytes(const Shape& s) {
  return expert_ffn_workspace_bytes(expert_ffn_of(s));
}
double ExpertsHost::bytes_moved(const Shape& s) {
  return expert_ffn_bytes_moved(expert_ffn_of(s), s.gate_up_type, s.down_type);
}
double ExpertsHost::flops(const Shape& s) { return expert_ffn_flops(expert_ffn_of(s)); }
double ExpertsHost::error_bound(const Shape& s) {
  return expert_ffn_error_bound(expert_ffn_of(s), s.numerics, s.gate_up_type, s.down_type);
}
std::vector<std::vector<double>> ExpertsHost::reference(const Shape& s, const Args& a) {
  return {reference_expert_ffn(expert_ffn_of(s, a))};
}

}  // namespace assay
