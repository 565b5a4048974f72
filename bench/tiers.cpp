#include "bench/tiers.h"

#include <map>

#include "kernels/base/error.h"
#include "tier_texts.h"

namespace assay {

const std::vector<EngineTier>& engine_tiers() {
  static const std::vector<EngineTier> tiers{
      {"count_4k", "D_bench", "count", 4096, 0, 128, ""},
      {"count_32k", "D_bench", "count", 32768, 0, 128, ""},
      {"count_128k", "D_bench", "count", 131072, 0, 128, ""},
      {"tiny", "D_real", "tiny", 0, 0, 64, ""},
      {"natural", "D_real", "natural", 0, 0, 64, ""},
      {"sampled", "D_real", "sampled", 0, 0, 64, ""},
      {"agent", "D_real", "agent", 0, 0, 64, ""},
      {"read_128", "read", "pinned_prose", 0, 128, 0, ""},
      {"read_512", "read", "pinned_prose", 0, 512, 0, ""},
      {"read_1k", "read", "pinned_prose", 0, 1024, 0, ""},
      {"read_2k", "read", "pinned_prose", 0, 2048, 0, ""},
      {"read_4k", "read", "pinned_prose", 0, 4096, 0, ""},
      {"read_128k", "read", "pinned_prose", 0, 131072, 0, ""},
      {"read_256k", "read", "pinned_prose", 0, 262144, 0, ""},
      {"followup_2k", "read", "pinned_prose", 2048, 64, 0, "followup"},
      {"followup_32k", "read", "pinned_prose", 32768, 64, 0, "followup"},
      {"window_512", "window", "pinned_prose", 512, 0, 16, ""},
      {"window_3k", "window", "pinned_prose", 3072, 0, 16, ""},
      {"ttft_17", "ttft", "ttft_17", 0, 17, 0, ""},
      {"pinned", "D_real", "pinned_prose", 0, 3720, 128, ""},
  };
  return tiers;
}

const EngineTier& engine_tier(std::string_view id) {
  std::string names;
  for (const EngineTier& t : engine_tiers()) {
    if (t.id == id) return t;
    names += (names.empty() ? "" : ", ") + t.id;
  }
  throw UserError("no tier '" + std::string(id) + "': valid are " + names);
}

std::string tier_text(std::string_view text, std::size_t bytes) {
  std::string out;
  if (text == "count") {
    for (int i = 1; out.size() < bytes; ++i) out += std::to_string(i) + ", ";
    return out;
  }
  for (const TierText& t : kTierTexts) {
    if (t.name != text) continue;
    do {
      out += t.text;
    } while (out.size() < bytes);
    return out;
  }
  throw UserError("no text '" + std::string(text) + "' in bench/tiers");
}

}  // namespace assay
