#include "kernels/base/expert_ffn.h"
#include "kernels/experts_decode/op.h"

namespace assay {

std::string ExpertsDecode::Shape::describe() const {
  return "tokens=" + std::to_string(tokens) + " hidden=" + std::to_string(hidden) +
         " width=" + std::to_string(width) + " experts=" + std::to_string(experts) +
         " top_k=" + std::to_string(top_k) + (fused ? " fused" : " split") +
         " gate_up_type=" + to_string(gate_up_type) + " down_type=" + to_string(down_type) +
         " numerics=" + to_string(numerics);
}
std::size_t ExpertsDecode::workspace_bytes(const Shape& s) {
  return expert_ffn_workspace_bytes(expert_ffn_of(s));
}
double ExpertsDecode::bytes_moved(const Shape& s) {
  return expert_ffn_bytes_moved(expert_ffn_of(s), s.gate_up_type, s.down_type);
}
double ExpertsDecode::flops(const Shape& s) { return expert_ffn_flops(expert_ffn_of(s)); }
double ExpertsDecode::error_bound(const Shape& s) {
  return expert_ffn_error_bound(expert_ffn_of(s), s.numerics, s.gate_up_type, s.down_type);
}
std::vector<std::vector<double>> ExpertsDecode::reference(const Shape& s, const Args& a) {
  return {reference_expert_ffn(expert_ffn_of(s, a))};
}

}  // namespace assay
