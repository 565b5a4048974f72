// Fuzz target: any bytes as what a model writes, cut into tokens anywhere. The text is valid UTF-8 in every piece, the
// same however it is cut, ends before the first stop string, and is one line of data in its frame.
#include <nlohmann/json.hpp>

#include "engine/daemon/wire_frames.h"
#include "engine/fuzz/spec_tokenizer.h"
#include "engine/reply_text.h"

using assay::check;
using assay::valid_utf8;

namespace {

const std::vector<std::string>& stop_strings() {
  static const std::vector<std::string> all{"stop", "\n\n", "\xE2\x82\xAC\xE2\x82\xAC"};
  return all;
}

std::string assemble(std::string_view bytes,
                     std::size_t stride,
                     const std::vector<std::string>& stops,
                     bool& stopped) {
  assay::ReplyText reply(stops);
  std::string text;
  const auto add = [&](const std::string& piece) {
    check(valid_utf8(piece));
    const std::string frame = assay::sse_frame("delta", {{"text", piece}});
    check(valid_utf8(frame) && frame.ends_with("\n\n"));
    const std::size_t data = frame.find("\ndata: ") + 7;
    check(frame.find_first_of("\r\n", data) == frame.size() - 2);
    check(nlohmann::json::parse(frame.substr(data)).at("text") == piece);
    text += piece;
  };
  for (std::size_t at = 0; at < bytes.size() && !reply.stopped(); at += stride)
    add(reply.push(bytes.substr(at, stride)));
  add(reply.finish());
  stopped = reply.stopped();
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t stride = 1 + data[0] % 7;
  bool stopped = false;
  const std::string plain = assemble(bytes, stride, {}, stopped);
  check(!stopped && plain == assemble(bytes, bytes.size() + 1, {}, stopped));
  if (valid_utf8(bytes)) check(plain == bytes);
  const std::string text = assemble(bytes, stride, stop_strings(), stopped);
  check(plain.starts_with(text));
  std::size_t first = std::string::npos;
  for (const std::string& s : stop_strings()) first = std::min(first, plain.find(s));
  check(stopped == (first != std::string::npos));
  check(text == plain.substr(0, first));
  return 0;
}
