// Fuzz target: any bytes as text. Encoding never fails, decoding gives the bytes back, untrusted text makes no special
// token, and streaming gives valid UTF-8 however the bytes are cut.
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/fuzz/spec_tokenizer.h"

using assay::check;
using assay::valid_utf8;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const assay::Tokenizer& t = assay::spec_tokenizer();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto mode :
       {assay::SpecialMode::kAll, assay::SpecialMode::kUserDefined, assay::SpecialMode::kNone}) {
    const auto ids = t.encode(text, false, mode);
    check(t.decode(ids, true) == text);
    check(ids.size() <= size);
    if (mode != assay::SpecialMode::kNone) continue;
    for (const assay::TokenId id : ids) {
      const assay::TokenType type = t.token_type(id);
      check(type == assay::TokenType::kNormal || type == assay::TokenType::kByte);
    }
    assay::StreamingDecoder stream(t);
    std::string streamed;
    for (const assay::TokenId id : ids) {
      const std::string piece = stream.push(id);
      check(valid_utf8(piece));
      streamed += piece;
    }
    streamed += stream.finish();
    assay::Utf8Stream whole;
    std::string once = whole.push(text);
    once += whole.finish();
    check(valid_utf8(once) && streamed == once);
    if (valid_utf8(text)) check(once == text);
  }
  // A text in two pieces of the same trust is the text.
  const std::size_t cut = size == 0 ? 0 : data[0] % (size + 1);
  const assay::TextPiece pieces[] = {{text.substr(0, cut), assay::SpecialMode::kNone},
                                     {text.substr(cut), assay::SpecialMode::kNone}};
  check(t.encode(pieces, false) == t.encode(text, false, assay::SpecialMode::kNone));
  return 0;
}
