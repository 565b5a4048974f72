#include "traces/crc32.h"

#include <array>
#include <bit>
#include <cstring>

namespace assay {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the eight-byte step reads little-endian words");

// table[0] advances one byte; table[k] advances one byte followed by k zero bytes ("slicing by 8", Kounavis and Berry).
constexpr std::array<std::array<std::uint32_t, 256>, 8> make_tables() {
  std::array<std::array<std::uint32_t, 256>, 8> t{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? (c >> 1) ^ 0xEDB88320U : c >> 1;
    t[0][i] = c;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t i = 0; i < 256; ++i) t[k][i] = t[0][t[k - 1][i] & 0xFF] ^ (t[k - 1][i] >> 8);
  }
  return t;
}
constexpr auto kTables = make_tables();

}  // namespace

std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t bytes) {
  const auto* p = static_cast<const std::uint8_t*>(data);
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    std::uint64_t w = 0;
    std::memcpy(&w, p, 8);
    w ^= crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(w >> (8 * k)) & 0xFF];
  }
  for (; bytes > 0; --bytes, ++p) crc = kTables[0][(crc ^ *p) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

}  // namespace assay
