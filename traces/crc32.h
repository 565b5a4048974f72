// CRC-32 as zlib and PNG compute it (reflected 0xEDB88320), the checksum of MOETRC1 files.
#pragma once
#include <cstddef>
#include <cstdint>

namespace assay {

// Continues `crc` (0 at the start) over `bytes` bytes.
std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t bytes);

}  // namespace assay
