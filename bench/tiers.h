// Workloads of a whole engine, by name: what is in the cache, what is read, what is written. The texts are our own and lie in
// bench/tiers; long ones are made by rule, so that nothing large is stored.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace assay {

struct EngineTier {
  std::string id;
  // D_bench: counting, D_real: real prompts, read: prompt reading, ttft: time to the first token, window: the last `write`
  // tokens of the depth, led by the text
  std::string endpoint;
  std::string
      text;  // stem of a file in bench/tiers; "count": 1, 2, 3, ..; a text that is too short begins again
  int depth = 0;       // tokens in the cache before the clock starts
  int read = 0;        // tokens read inside the clock; 0 with depth 0: the whole text
  int write = 0;       // tokens then written, one at a time, inside their own clock
  std::string follow;  // text of `read` instead of the first one's rest
};
const std::vector<EngineTier>& engine_tiers();
// UserError listing the valid names.
const EngineTier& engine_tier(std::string_view id);
// At least `bytes` bytes of the tier's text, or the whole of it for 0.
std::string tier_text(std::string_view text, std::size_t bytes);

}  // namespace assay
