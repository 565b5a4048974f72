// SHA-256 (FIPS 180-4). In the tree because records must verify on machines that carry no crypto library.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace assay {

class Sha256 {
 public:
  Sha256();
  void update(const void* data, std::size_t bytes);
  // Lower-case hex. The object must not be used afterwards.
  std::string hex();

 private:
  void block(const std::uint8_t* p);
  std::array<std::uint32_t, 8> state_;
  std::array<std::uint8_t, 64> buffer_{};
  std::size_t buffered_ = 0;
  std::uint64_t total_ = 0;
};
std::string sha256_hex(std::string_view text);

}  // namespace assay
