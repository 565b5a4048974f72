// Fuzz target: any bytes as a request's head and as every body. Nothing crashes, a refusal always has a message that is
// itself writable, and what is accepted is inside its ranges.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "engine/chat_template.h"
#include "engine/daemon/header_guard.h"
#include "engine/daemon/request_decoder.h"
#include "engine/daemon/wire_frames.h"

namespace {

void check(bool ok) {
  if (!ok) std::abort();
}

void check_refusal(const std::optional<assay::TurnError>& error) {
  if (!error) return;
  check(!error->message.empty());
  const assay::HttpAnswer answer = assay::error_answer(*error);
  check(answer.status >= 400 && nlohmann::json::accept(answer.body));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  static const assay::ModelInfo model{
      .name = "m", .vocabulary = 1000, .context = 512, .width = 2, .moe = true};
  for (const auto route :
       {assay::TurnRoute::kChat, assay::TurnRoute::kOneshot, assay::TurnRoute::kOpenAi}) {
    assay::DecodedTurn turn;
    const auto error = assay::decode_turn(bytes, route, model, turn);
    check_refusal(error);
    if (error) continue;
    const assay::TurnRequest& r = turn.request;
    check((r.chat != nullptr) != !r.ids.empty());
    check(!r.max_tokens || (*r.max_tokens >= 1 && *r.max_tokens <= model.context));
    check(r.sampling.temperature >= 0.0 && r.sampling.temperature <= 10.0 && r.sampling.top_k >= 0);
    check(r.sampling.top_p >= 0.0 && r.sampling.top_p <= 1.0 && std::fabs(r.eot_bias) <= 100.0);
    check(r.raw_logits >= 0 && r.raw_logits <= model.vocabulary && r.logprobs.value_or(0) <= 20);
    for (const assay::TokenId id : r.ids) check(id >= 0 && id < model.vocabulary);
    for (const std::string* name : {&r.session, &r.prefix}) {
      check(name->find('/') == std::string::npos && name->find('\0') == std::string::npos &&
            name->rfind('.', 0) != 0);
    }
    check(r.stop.size() <= 8 && (!r.oneshot || (r.session.empty() && r.prefix.empty())));
    if (r.chat) {
      nlohmann::json copy = r.chat->tools;  // copying recurses: depth was bounded before
      for (const auto& m : r.chat->messages) {
        for (const auto& call : m.tool_calls) copy = call.arguments;
      }
    }
  }
  assay::EmbedRequest embed;
  check_refusal(assay::decode_embed(bytes, model, embed));
  assay::Similarity pair;
  check_refusal(assay::decode_similarity(bytes, pair));
  std::string id;
  check_refusal(assay::decode_abort(bytes, id));
  assay::TokenizeRequest tokenize;
  check_refusal(assay::decode_tokenize(bytes, tokenize));
  assay::DetokenizeRequest detokenize;
  check_refusal(assay::decode_detokenize(bytes, model, detokenize));
  if (const auto decoded = assay::base64_decode(bytes))
    check(assay::base64_decode(assay::base64_encode(*decoded)) == decoded);

  // The head: a verdict never changes when more bytes come, and a whole head ends where it says.
  const assay::HeadCheck head = assay::check_head(bytes);
  check((head.state == assay::HeadCheck::kBad) == !head.error.message.empty());
  if (head.state == assay::HeadCheck::kWhole) {
    check(head.bytes <= size && head.bytes <= assay::kHeadBytes &&
          bytes.substr(head.bytes - 4, 4) == "\r\n\r\n");
    check(assay::check_head(std::string(bytes) + "\n").bytes == head.bytes);
    check(assay::check_head(bytes.substr(0, head.bytes - 1)).state == assay::HeadCheck::kMore);
  }
  if (size > 1 && assay::check_head(bytes.substr(0, size / 2)).state == assay::HeadCheck::kBad) {
    check(head.state == assay::HeadCheck::kBad);
  }
  return 0;
}
