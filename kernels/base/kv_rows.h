// Rows of a key or value cache: float or IEEE half, [slots][kv_heads * head_dim] row-major.
#pragma once
#include <cstddef>
#include <cstdint>

namespace assay {

enum class KvType : std::uint8_t { kF32, kF16 };
inline const char* to_string(KvType type) { return type == KvType::kF32 ? "f32" : "f16"; }
inline std::size_t kv_bytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }

// Read-only rows; the pointer of the shape's KvType is set, the other null. 64-byte aligned.
struct KvRows {
  const float* f32 = nullptr;
  const std::uint16_t* f16 = nullptr;
};

}  // namespace assay
