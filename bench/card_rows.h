// Speed of single variants on the card, one arm at a time: a share of what the card gives in the same session. A verdict between
// two variants comes from `assay ab`, which pairs them.
#pragma once
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace assay {

// Everything `assay probe --backend cuda` records under its key "card_probe": bandwidths, launch costs, the handshake, and rows of
// the ops whose speed is quoted as a share of reading. HardwareError without a GPU.
nlohmann::json measure_card(const std::function<void(int done, int total)>& progress);

// What of such a document does not follow from its samples; empty when all does.
std::string card_probe_fault(const nlohmann::json& card_probe);

}  // namespace assay
