// What fuzz targets share: the test preset's vocabulary, and an independent reading of UTF-8.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include "engine/make_model.h"
#include "engine/tokenizer.h"

namespace assay {

inline void check(bool ok) {
  if (!ok) std::abort();
}

// Only the head of the preset's file is needed.
inline const Tokenizer& spec_tokenizer() {
  static const Tokenizer t = [] {
    const GgufWriter model = describe_model({.preset = "spec"});
    const std::string head = model.head();
    const int fd = ::memfd_create("spec_tokenizer", MFD_CLOEXEC);
    if (fd < 0 || ::pwrite(fd, head.data(), head.size(), 0) != static_cast<ssize_t>(head.size()) ||
        ::ftruncate(fd, static_cast<off_t>(model.file_bytes())) != 0) {
      std::abort();
    }
    auto loaded = Tokenizer::load(GgufFile::open("/proc/self/fd/" + std::to_string(fd)));
    ::close(fd);
    return loaded;
  }();
  return t;
}

// An independent reading of "well formed": decode each character and write it again in the shortest form.
inline bool valid_utf8(std::string_view s) {
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

}  // namespace assay
