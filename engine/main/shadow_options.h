// --shadow-slots, --shadow-log: the op expert_policy as a shadow cache of a program that runs the model.
#pragma once
#include <fstream>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "engine/shadow_cache.h"

namespace assay {

class CommandLine;

struct ShadowOptions {
  int slots = 0;  // 0: no shadow cache
  std::string log;
};
void add_shadow_options(CommandLine& app, ShadowOptions& options);

// The policy is the choice of the switch ASSAY_EXPERT_POLICY or the profile. Under parity:<variant> stock decides and is
// logged, the variant runs beside it and its misses are reported. UserError for a log without slots.
class Shadow {
 public:
  Shadow(const ShadowOptions& options, const Model& model);
  bool on() const { return served_ != nullptr; }
  void routed(const RoutedChunk& chunk);
  // {variant, slots, accesses, misses, log, compared}; null when off.
  nlohmann::json json() const;
  std::string text() const;  // one line; empty when off
  // Flushes the log. Error when it could not be written.
  void close();

 private:
  ShadowOptions options_;
  std::string variant_;   // decides
  std::string compared_;  // runs beside it; empty: none
  std::unique_ptr<ShadowCache> served_;
  std::unique_ptr<ShadowCache> beside_;
  std::ofstream log_;
};

}  // namespace assay
