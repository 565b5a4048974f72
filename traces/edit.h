// Traces made from traces: a cut, a merge, and a composition for geometries nobody has a full trace of.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace assay {

struct CutOptions {
  std::uint64_t first_step = 0;
  std::uint64_t steps = 0;                        // 0: to the end
  std::vector<std::uint32_t> conversations = {};  // ids to keep; empty: all
  std::optional<Split> split = {};                // keep this split only
};
// Copies the records that all options keep, byte for byte, and seals the result. UserError when nothing is left or an id does
// not occur.
void cut_trace(const std::string& in, const std::string& out, const CutOptions& options);

// Appends the inputs' records in order. UserError naming two inputs whose geometry, id width or weight kind differ. Conversation
// ids stay when all are distinct, else they are renumbered from 0.
void merge_traces(const std::vector<std::string>& in, const std::string& out);

struct ComposeOptions {
  TraceGeometry geometry{30, 128, 8};
  std::uint64_t seed = 1;
  bool uniform = false;  // the control arm: same shape and conversations, experts drawn uniformly
};
// Layer l of the result interleaves the first top_k / 2 ranks of layer l mod L of one source conversation with the same ranks of
// another, whose ids go up by the source's expert count. Each cycle of L layers draws its own two sources, of the same split and
// of similar length, so that no two layers of the result are copies. The result is labelled "composed". UserError unless
// experts is twice and top_k at most twice the source's, and top_k is even.
void compose_trace(const std::string& in, const std::string& out, const ComposeOptions& options);

}  // namespace assay
