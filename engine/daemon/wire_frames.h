// What a turn writes, in the two shapes and the two forms: own or OpenAI's, a stream of SSE frames or one document.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/daemon/exchange.h"
#include "engine/daemon/request_decoder.h"
#include "engine/turn.h"

namespace assay {

// One SSE frame. The data is JSON on one line, so no text of a model can end it early.
std::string sse_frame(std::string_view event, const nlohmann::json& data);

nlohmann::json error_json(const TurnError& error);
// {error: {..}} with the code's status; Retry-After where the code calls for it.
HttpAnswer error_answer(const TurnError& error);
// A document; numbers that are not finite were written as null by the caller, bytes that are no UTF-8 become U+FFFD.
HttpAnswer json_answer(const nlohmann::json& body, int status = 200);

nlohmann::json armed_list(const std::vector<ArmedOp>& armed);
double tokens_per_second(const TurnDone& done);

// Turns a turn's calls into text. A stream's calls return the frames to send; a document's return nothing until the end.
class TurnEncoder {
 public:
  virtual ~TurnEncoder() = default;
  virtual std::string meta(const TurnMeta& meta) = 0;
  virtual std::string delta(const TurnDelta& delta) = 0;
  virtual std::string tool_call(const TurnToolCall& call) = 0;
  virtual std::string kairos(const TurnKairos& kairos) = 0;
  virtual std::string done(const TurnDone& done) = 0;
  virtual std::string error(const TurnError& error) = 0;
  virtual std::string aborted(std::string_view reason) = 0;
  // Documents: the answer after the terminal call, and how much is held so far.
  virtual HttpAnswer document() { return {}; }
  virtual std::size_t held_bytes() const { return 0; }
};

struct EncoderSettings {
  std::string id;
  std::string model = {};  // as the client named it
  std::vector<std::string> ignored = {};
  std::vector<Loss> lost = {};
  std::vector<ArmedOp> armed = {};
  bool openai = false;
  bool stream = true;
  bool byte_exact = false;
  bool include_usage = false;
  double eot_threshold = kEotThreshold;
  std::int64_t created_s = 0;  // OpenAI's `created`
};
std::unique_ptr<TurnEncoder> make_encoder(EncoderSettings settings);

}  // namespace assay
