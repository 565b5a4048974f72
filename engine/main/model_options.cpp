#include "engine/main/model_options.h"

#include <charconv>
#include <cmath>

#include <nlohmann/json.hpp>

#include "kernels/base/build_id.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/log.h"
#include "kernels/base/output_file.h"
#include "kernels/base/program.h"
#include "kernels/base/proven.h"

namespace assay {
namespace {

nlohmann::json number(double value) {
  if (std::isfinite(value)) return value;
  return "infinite";
}

// What `--profile` arms. A proven set is armed by its own rules, whether it is the newest recorded or a file named here.
Arming read_profile(const std::string& name, const DeviceInfo& device, const std::string& lane) {
  Arming arming;
  if (name == "stock") return arming;
  if (name == "proven") {
    arming = arm_newest(device, lane);
  } else {
    const std::string text = read_file(name, std::size_t{1} << 20);
    const auto document = nlohmann::json::parse(text, nullptr, false);
    if (!document.is_object() || document.value("schema", nlohmann::json()) != "assay-proven") {
      arming.profile = parse_profile(name, text);
      return arming;
    }
    arming = arm(parse_proven(text, name), device, lane);
    arming.file = name;
  }
  for (const std::string& note : arming.notes) ASSAY_LOG(info, "--profile: {}", note);
  return arming;
}

}  // namespace

void add_model_options(CommandLine& app, ModelOptions& o) {
  app.add_option("--model", o.model, "GGUF file").required().type_name("FILE");
  app.add_option("--backend", o.backend, "host, cuda").type_name("NAME").show_default();
  app.add_option("--numerics", o.numerics, "exact, fast (int8 activations)")
      .type_name("LANE")
      .show_default();
  app.add_option("--kv", o.kv, "cache type f32, f16; default f32 in the exact lane, else f16")
      .type_name("TYPE");
  app.add_option("--profile", o.profile, "stock, proven, or a profile's file")
      .type_name("P")
      .show_default();
  app.add_option("--threads", o.threads, "1..256; default: all of the machine").type_name("N");
  app.add_option("--ctx", o.ctx, "context in tokens; default: the trained one, at most 4096")
      .type_name("N");
  app.add_option("--vram-budget", o.vram_budget_gib, "GPU memory in GiB, cuda only")
      .type_name("GIB");
}

ModelSettings resolve(const ModelOptions& o, Arming* armed) {
  ModelSettings s;
  if (o.backend != "host" && o.backend != "cuda") {
    throw UserError("--backend '" + o.backend + "': valid are host, cuda");
  }
  if (o.numerics != "exact" && o.numerics != "fast") {
    throw UserError("--numerics '" + o.numerics + "': valid are exact, fast");
  }
  if (!o.kv.empty() && o.kv != "f32" && o.kv != "f16") {
    throw UserError("--kv '" + o.kv + "': valid are f32, f16");
  }
  if (o.threads < 0 || o.threads > 256) {
    throw UserError("--threads " + std::to_string(o.threads) + ": must be 1..256");
  }
  if (o.ctx < 0) throw UserError("--ctx " + std::to_string(o.ctx) + ": must be at least 1");
  constexpr double kMostGib = 1e6;  // beyond it bytes would no longer fit their type
  if (!(o.vram_budget_gib >= 0.0 && o.vram_budget_gib <= kMostGib)) {
    throw UserError("--vram-budget: must be a positive number of GiB");
  }
  if (o.backend == "host" && o.vram_budget_gib > 0.0) {
    throw UserError("--vram-budget limits GPU memory: it needs --backend cuda");
  }
  if (o.backend == "cuda") {
    if (const Why why = gpu::unavailable())
      throw HardwareError(std::string("--backend cuda: ") + why);
    s.backend = Backend::kCuda;
    s.vram_budget_bytes = static_cast<std::size_t>(o.vram_budget_gib * 1024.0 * 1024.0 * 1024.0);
  }
  s.numerics = o.numerics == "fast" ? Numerics::kFast : Numerics::kExact;
  if (!o.kv.empty()) s.kv = o.kv == "f32" ? KvType::kF32 : KvType::kF16;
  s.threads = o.threads;
  s.context = o.ctx;
  const Env env = Env::read();
  s.strict = env.strict();
  Arming arming = read_profile(
      o.profile, s.backend == Backend::kCuda ? gpu::device() : host_device(), o.numerics);
  s.selection = select(env, arming.profile);
  if (armed != nullptr) *armed = std::move(arming);
  return s;
}

std::unique_ptr<Model> open_model(const std::string& path, const ModelSettings& settings) {
  protect_input(path);
  ASSAY_LOG(info, "assay {}", build_line());
  auto model = std::make_unique<Model>(path, settings);
  for (const auto& [op, choice] : settings.selection.choices) {
    if (choice.variant != "stock") {
      ASSAY_LOG(
          info, "{}={}{} ({})", op, choice.parity ? "parity:" : "", choice.variant, choice.source);
    }
  }
  for (const auto& h : settings.selection.hidden) {
    ASSAY_LOG(info, "{} hides the choice of {}", h.composite, h.part);
  }
  if (model->weights().doubled_bytes() > 0) {
    ASSAY_LOG(info,
              "{} bytes of weights are kept in two layouts, because the chosen variants disagree",
              model->weights().doubled_bytes());
  }
  return model;
}

std::unique_ptr<Model> open_model(const ModelOptions& options) {
  return open_model(options.model, resolve(options));
}

nlohmann::json armed_json(const Model& model) {
  auto list = nlohmann::json::array();
  for (const auto& r : model.reports()) {
    if (r.choice.variant == "stock") continue;
    nlohmann::json entry{{"op", r.op},
                         {"variant", r.choice.variant},
                         {"source", r.choice.source},
                         {"parity", r.choice.parity},
                         {"selected", r.selected},
                         {"stock", r.stock},
                         {"fallback", r.fallback}};
    if (r.choice.parity) {
      entry["compared"] = r.compared;
      entry["worst_rel_l2"] = number(r.worst_rel_l2);
      entry["worst_ulp"] = r.worst_ulp;
      entry["mismatched_bytes"] = r.mismatched_bytes;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

void log_armed(const Model& model) {
  for (const auto& r : model.reports()) {
    if (r.choice.variant == "stock") continue;
    if (r.choice.parity) {
      ASSAY_LOG(info,
                "{}: parity with {}: {} calls compared, worst relative L2 {:.3g}, worst ulp {}, {} "
                "bytes differ; "
                "stock was served",
                r.op,
                r.choice.variant,
                r.compared,
                r.worst_rel_l2,
                r.worst_ulp,
                r.mismatched_bytes);
    } else {
      ASSAY_LOG(
          info, "{}: {} served {} calls, stock {}", r.op, r.choice.variant, r.selected, r.stock);
    }
    for (const auto& [reason, calls] : r.fallback) {
      ASSAY_LOG(info, "{}: {} fell back {} times: {}", r.op, r.choice.variant, calls, reason);
    }
  }
}

std::vector<TokenId> parse_ids(std::string_view text, const char* flag, const char* what) {
  constexpr std::string_view kBetween = " \t\r\n,[]";
  std::vector<TokenId> ids;
  for (std::size_t at = text.find_first_not_of(kBetween); at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    TokenId id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size()) {
      throw UserError(std::string(flag) + ": '" + std::string(word.substr(0, 40)) + "' is not " +
                      what);
    }
    ids.push_back(id);
    at = text.find_first_not_of(kBetween, end);
  }
  if (ids.empty()) throw UserError(std::string(flag) + ": nothing given");
  return ids;
}

}  // namespace assay
