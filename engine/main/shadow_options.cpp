#include "engine/main/shadow_options.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"

namespace assay {

void add_shadow_options(CommandLine& app, ShadowOptions& options) {
  app.add_option("--shadow-slots",
                 options.slots,
                 "also run expert_policy over this many slots; the output does not change")
      .type_name("N");
  app.add_option("--shadow-log", options.log, "its decisions, one JSON line a token and layer")
      .type_name("FILE");
}

Shadow::Shadow(const ShadowOptions& options, const Model& model) : options_(options) {
  if (options.slots == 0) {
    if (!options.log.empty()) throw UserError("--shadow-log needs --shadow-slots");
    return;
  }
  const ModelConfig& c = model.config();
  const ExpertPolicy::Shape shape{
      .layers = c.layers, .experts = c.experts, .top_k = c.experts_used, .slots = options.slots};
  const Choice choice =
      model.selection().choices.empty() ? Choice{} : model.selection().of("expert_policy");
  variant_ = choice.parity ? "stock" : choice.variant;
  if (choice.parity) compared_ = choice.variant;
  served_ = std::make_unique<ShadowCache>(shape, variant_);
  if (!compared_.empty()) beside_ = std::make_unique<ShadowCache>(shape, compared_);
  if (options.log.empty()) return;
  log_.open(output_target(options.log).path);
  if (!log_) throw UserError(options.log + ": cannot be written");
  log_ << nlohmann::json{{"schema", "assay-shadow-log"},
                         {"schema_version", 1},
                         {"policy", variant_},
                         {"layers", shape.layers},
                         {"experts", shape.experts},
                         {"top_k", shape.top_k},
                         {"slots", shape.slots}}
              .dump()
       << '\n';
  served_->set_log([this](const ShadowDecision& d) {
    log_ << nlohmann::json{{"step", d.step},
                           {"layer", d.layer},
                           {"ids", d.ids},
                           {"resident", d.resident},
                           {"slot", d.slot},
                           {"evicted", d.evicted}}
                .dump()
         << '\n';
  });
}

void Shadow::routed(const RoutedChunk& chunk) {
  served_->routed(chunk);
  if (beside_) beside_->routed(chunk);
}

nlohmann::json Shadow::json() const {
  if (!on()) return nullptr;
  nlohmann::json out = {{"policy", variant_},
                        {"slots", options_.slots},
                        {"steps", served_->steps()},
                        {"accesses", served_->accesses()},
                        {"misses", served_->misses()}};
  if (beside_) out["compared"] = {{"policy", compared_}, {"misses", beside_->misses()}};
  return out;
}

std::string Shadow::text() const {
  if (!on()) return "";
  std::string line = fmt::format("shadow cache: {} of {} slots missed {} of {} accesses",
                                 variant_,
                                 options_.slots,
                                 served_->misses(),
                                 served_->accesses());
  if (beside_) line += fmt::format("; {} {}", compared_, beside_->misses());
  return line + '\n';
}

void Shadow::close() {
  if (!log_.is_open()) return;
  log_.close();
  if (!log_) throw Error(Exit::kCheckFailed, options_.log + ": could not be written");
}

}  // namespace assay
