// Fuzz target: any bytes as a model's output. The first byte says how they are cut into tokens, the next few are a stop
// string. Every frame is one event with one line of JSON, the text is what comes before the stop, whatever the cuts.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "engine/daemon/wire_frames.h"
#include "engine/reply_text.h"

namespace {

void check(bool ok) {
  if (!ok) std::abort();
}

std::string text_of(const std::string& frame) {
  constexpr std::string_view kStart = "event: delta\ndata: ";
  check(frame.rfind(kStart, 0) == 0 && frame.size() > kStart.size() + 2);
  check(frame.find('\n', kStart.size()) == frame.size() - 2 && frame.back() == '\n' &&
        frame.find('\r') == std::string::npos);
  const auto data =
      nlohmann::json::parse(frame.substr(kStart.size(), frame.size() - kStart.size() - 2));
  return data.at("text").get<std::string>();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  assay::Utf8Stream utf8;
  std::string stop = utf8.push(bytes.substr(1, 3));  // stop strings are valid UTF-8
  stop += utf8.finish();
  const std::string_view body = bytes.substr(4);
  assay::Utf8Stream whole_stream;
  std::string whole = whole_stream.push(body);
  whole += whole_stream.finish();
  const std::string want = whole.substr(0, whole.find(stop));

  const auto encoder = assay::make_encoder({.id = "turn-1"});
  assay::ReplyText reply({stop});
  std::string got;
  const std::size_t step = 1 + data[0] % 7;
  const auto send = [&](const std::string& text) {
    if (text.empty()) return;
    const std::string sent = text_of(encoder->delta({.text = text}));
    check(sent == text);  // valid UTF-8 comes out as it went in
    got += sent;
  };
  for (std::size_t at = 0; at < body.size(); at += step) send(reply.push(body.substr(at, step)));
  send(reply.finish());
  check(got == want && reply.stopped() == (want.size() < whole.size()));

  // Bytes that are no text still make a frame.
  text_of(encoder->delta({.text = std::string(body)}));
  return 0;
}
