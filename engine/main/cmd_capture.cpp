// assay capture: the engine's own routing over a text, as a MOETRC1 trace.
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "engine/main/model_options.h"
#include "engine/main/shadow_options.h"
#include "kernels/base/blocks.h"
#include "kernels/base/build_id.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/output_file.h"
#include "kernels/base/program.h"
#include "traces/trace.h"

namespace assay {
namespace {

struct Text {
  std::string text;
  Split split = Split::kTrain;
};

// A .jsonl file holds one conversation a line: {"text": "..", "split": "train" | "held-out" (optional)}.
std::vector<Text> read_jsonl(const std::string& path, const std::string& content) {
  std::vector<Text> texts;
  std::size_t at = 0;
  for (int line = 1; at < content.size(); ++line) {
    const std::size_t end = std::min(content.find('\n', at), content.size());
    const std::string row = content.substr(at, end - at);
    const std::string where =
        path + ": line " + std::to_string(line) + " at byte " + std::to_string(at) + ": ";
    at = end + 1;
    if (row.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto json = nlohmann::json::parse(row, nullptr, false);
    if (!json.is_object()) throw InputError(where + "not a JSON object");
    if (!json.contains("text") || !json.at("text").is_string())
      throw InputError(where + "no string \"text\"");
    Text t{json.at("text").get<std::string>()};
    if (json.contains("split")) {
      if (json.at("split") == "held-out") {
        t.split = Split::kHeldOut;
      } else if (json.at("split") != "train") {
        throw InputError(where + "\"split\" must be \"train\" or \"held-out\"");
      }
    }
    texts.push_back(std::move(t));
  }
  return texts;
}

// Plain text: paragraphs are gathered into conversations of at least kParagraphBytes; every fourth is held out.
std::vector<Text> cut_text(const std::string& content) {
  constexpr std::size_t kParagraphBytes = 2000;
  constexpr std::size_t kHeldOutEvery = 4;
  std::vector<Text> texts;
  std::string pending;
  const auto close = [&] {
    if (pending.find_first_not_of(" \t\r\n") == std::string::npos) return;
    texts.push_back(
        {pending,
         texts.size() % kHeldOutEvery == kHeldOutEvery - 1 ? Split::kHeldOut : Split::kTrain});
    pending.clear();
  };
  std::size_t at = 0;
  while (at < content.size()) {
    const std::size_t gap = content.find("\n\n", at);
    const std::size_t end = gap == std::string::npos ? content.size() : gap + 2;
    pending += content.substr(at, end - at);
    at = end;
    if (pending.size() >= kParagraphBytes) close();
  }
  close();
  return texts;
}

// Gathers a chunk's routing layer by layer and writes one record a token when the last layer is in.
class Recorder {
 public:
  Recorder(TraceWriter& writer, const TraceFormat& format)
      : writer_(writer), format_(format), slots_(format.ids_per_step()) {}

  void start(std::span<const TokenId> tokens, Phase phase) {
    tokens_ = tokens;
    phase_ = phase;
  }

  void routed(const RoutedChunk& c) {
    const auto k = static_cast<std::size_t>(c.top_k);
    const auto tokens = static_cast<std::size_t>(c.tokens);
    if (c.layer == 0) {
      ids_.assign(tokens * slots_, std::byte{0xFF});
      wide_.assign(format_.id_bytes == 2 ? tokens * slots_ : 0, 0xFFFF);
      weights_.assign(tokens * slots_, 0);
    }
    for (std::size_t t = 0; t < tokens; ++t) {
      const std::size_t to = t * slots_ + static_cast<std::size_t>(c.layer) * k;
      for (std::size_t i = 0; i < k; ++i) {
        const std::int32_t id = c.ids[t * k + i];
        if (format_.id_bytes == 2) {
          wide_[to + i] = static_cast<std::uint16_t>(id);
        } else {
          ids_[to + i] = static_cast<std::byte>(id);
        }
        weights_[to + i] = float_to_half(c.weights[t * k + i]);
      }
    }
    if (c.layer + 1 < format_.geometry.layers) return;
    for (std::size_t t = 0; t < tokens; ++t) {
      const auto position = static_cast<std::size_t>(c.first_position) + t;
      const auto* ids = format_.id_bytes == 2
                            ? reinterpret_cast<const std::byte*>(wide_.data() + t * slots_)
                            : ids_.data() + t * slots_;
      writer_.append_raw(static_cast<std::uint32_t>(position),
                         tokens_[position],
                         phase_,
                         static_cast<std::uint16_t>(phase_ == Phase::kPrefill ? t : 0),
                         ids,
                         reinterpret_cast<const std::byte*>(weights_.data() + t * slots_));
    }
  }

 private:
  TraceWriter& writer_;
  const TraceFormat& format_;
  std::size_t slots_;
  std::span<const TokenId> tokens_;
  Phase phase_ = Phase::kPrefill;
  std::vector<std::byte> ids_;          // [tokens][layers][top_k], one-byte ids
  std::vector<std::uint16_t> wide_;     // the same, two-byte ids
  std::vector<std::uint16_t> weights_;  // fp16 bits
};

// Bytes of one expert of layer 0: a third or so of a real model's layers may use another type; the header has one number.
std::uint64_t expert_bytes(const Model& model) {
  const GgufFile file = GgufFile::open(model.path());
  std::uint64_t bytes = 0;
  for (const auto& tensor : file.tensors()) {
    if (tensor.name.starts_with("blk.0.") && tensor.name.ends_with("_exps.weight"))
      bytes += tensor.bytes;
  }
  return bytes / static_cast<std::uint64_t>(model.config().experts);
}

int run(int argc, char** argv) {
  CommandLine app("Capture the model's expert routing over a text",
                  "assay capture",
                  "assay capture --model engine/models/tiny-gemma4-moe-q4_0.gguf "
                  "--text-file engine/testdata/heldout.txt --out routing.mrt");
  ModelOptions options;
  std::string text_file;
  std::string out;
  std::string json_path;
  bool decode = false;
  ShadowOptions shadow_options;
  app.add_option(
         "--text-file",
         text_file,
         ".jsonl: one {\"text\", \"split\"} a line; else plain text, cut into conversations")
      .type_name("FILE")
      .required();
  app.add_option("--out", out, "the trace (.mrt)").type_name("FILE").required();
  app.add_flag("--decode", decode, "feed token by token, recorded as decode steps");
  add_shadow_options(app, shadow_options);
  add_model_options(app, options);
  app.add_option("--json", json_path, "write {steps, conversations, ..}, - is stdout")
      .type_name("PATH");
  app.parse(argc, argv);

  protect_input(text_file);
  const std::string content = read_file(text_file);
  const std::vector<Text> texts =
      text_file.ends_with(".jsonl") ? read_jsonl(text_file, content) : cut_text(content);
  if (texts.empty()) throw InputError(text_file + ": no text in it");
  const auto model = open_model(options);
  const ModelConfig& config = model->config();

  TraceFormat format;
  format.geometry = {config.layers, config.experts, config.experts_used};
  format.id_bytes = config.experts > 255 ? 2 : 1;
  format.weights = WeightKind::kF16;
  format.expert_bytes = expert_bytes(*model);
  format.label = config.name.substr(0, 68);
  TraceWriter writer(out, format);
  Recorder recorder(writer, format);

  Session session(*model);
  SessionHooks hooks;
  Shadow shadow(shadow_options, *model);
  hooks.routed = [&](const RoutedChunk& c) {
    recorder.routed(c);
    if (shadow.on()) shadow.routed(c);
  };
  session.set_hooks(hooks);
  Progress progress("capture", texts.size());
  std::size_t held_out = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    auto ids = model->tokenizer().encode(texts[i].text, true, SpecialMode::kNone);
    const auto room = static_cast<std::size_t>(model->context());
    if (ids.size() > room) {
      ASSAY_LOG(warn,
                "conversation {}: {} tokens, cut to the context of {} (--ctx)",
                i,
                ids.size(),
                room);
      ids.resize(room);
    }
    session.reset();
    writer.begin_conversation(static_cast<std::uint32_t>(i), texts[i].split);
    held_out += texts[i].split == Split::kHeldOut ? 1 : 0;
    recorder.start(ids, decode ? Phase::kDecode : Phase::kPrefill);
    if (decode) {
      for (const TokenId& id : ids) session.feed(std::span(&id, 1));
    } else {
      session.feed(ids);
    }
    progress.update(i + 1);
  }
  writer.seal();
  shadow.close();
  log_armed(*model);
  write_json(json_path,
             nlohmann::json{{"schema", "assay-capture"},
                            {"schema_version", 1},
                            {"steps", writer.steps()},
                            {"conversations", texts.size()},
                            {"held_out", held_out},
                            {"layers", config.layers},
                            {"experts", config.experts},
                            {"top_k", config.experts_used},
                            {"numerics", to_string(model->numerics())},
                            {"phase", decode ? "decode" : "prefill"},
                            {"shadow", shadow.json()},
                            {"armed", armed_json(*model)}}
                 .dump());
  if (json_path != "-") {
    std::cout << out << ": " << writer.steps() << " steps of " << texts.size() << " conversations ("
              << held_out << " held out), " << format.geometry.describe() << '\n'
              << shadow.text();
  }
  return 0;
}

}  // namespace

extern const Command command_capture;
const Command command_capture{
    "capture", "traces", "the model's routing over a text, as a trace", run};

}  // namespace assay
