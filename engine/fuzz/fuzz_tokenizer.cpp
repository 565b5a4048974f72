// Fuzz target: any bytes as text. Encoding never fails, decoding gives the bytes back, untrusted text makes no special
// token, and streaming gives valid UTF-8 however the bytes are cut.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include "engine/make_model.h"
#include "engine/tokenizer.h"

namespace {

// The test preset's vocabulary; only the head of its file is needed.
const assay::Tokenizer& tokenizer() {
  static const assay::Tokenizer t = [] {
    const assay::GgufWriter model = assay::describe_model({.preset = "spec"});
    const std::string head = model.head();
    const int fd = ::memfd_create("fuzz_tokenizer", MFD_CLOEXEC);
    if (fd < 0 || ::pwrite(fd, head.data(), head.size(), 0) != static_cast<ssize_t>(head.size()) ||
        ::ftruncate(fd, static_cast<off_t>(model.file_bytes())) != 0) {
      std::abort();
    }
    auto loaded =
        assay::Tokenizer::load(assay::GgufFile::open("/proc/self/fd/" + std::to_string(fd)));
    ::close(fd);
    return loaded;
  }();
  return t;
}

void check(bool ok) {
  if (!ok) std::abort();
}

// An independent reading of "well formed": decode each character and write it again in the shortest form.
bool valid_utf8(std::string_view s) {
  for (std::size_t i = 0; i < s.size();) {
    const auto lead = static_cast<unsigned char>(s[i]);
    const int more = lead < 0x80       ? 0
                     : lead >> 5 == 6  ? 1
                     : lead >> 4 == 14 ? 2
                     : lead >> 3 == 30 ? 3
                                       : -1;
    if (more < 0 || i + static_cast<std::size_t>(more) >= s.size()) return false;
    std::uint32_t point = more == 0 ? lead : lead & (0x3FU >> more);
    for (int k = 1; k <= more; ++k) {
      const auto b = static_cast<unsigned char>(s[i + static_cast<std::size_t>(k)]);
      if (b >> 6 != 2) return false;
      point = point << 6 | (b & 0x3FU);
    }
    const std::uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    if (point < least[more] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
      return false;
    i += static_cast<std::size_t>(more) + 1;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const assay::Tokenizer& t = tokenizer();
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
