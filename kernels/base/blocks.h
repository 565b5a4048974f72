// GGUF block formats: sizes, element access, conversion. Source: spec section 7 of the reference (ggml block layouts).
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace assay {

// Values are the type ids of the GGUF container.
enum class BlockType : std::uint8_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};
inline constexpr BlockType kAllBlockTypes[] = {BlockType::kF32,
                                               BlockType::kF16,
                                               BlockType::kBF16,
                                               BlockType::kQ4_0,
                                               BlockType::kQ4_1,
                                               BlockType::kQ5_0,
                                               BlockType::kQ5_1,
                                               BlockType::kQ8_0,
                                               BlockType::kQ4_K,
                                               BlockType::kQ5_K,
                                               BlockType::kQ6_K};

// Elements and bytes of one block. Every size is even; only 2-byte alignment may be assumed.
std::size_t block_elements(BlockType type);
std::size_t block_bytes(BlockType type);
// Whether values are integer codes with shared scales (all but F32, F16 and BF16).
inline bool has_codes(BlockType type) {
  return type != BlockType::kF32 && type != BlockType::kF16 && type != BlockType::kBF16;
}
// Lower-case name as on the command line ("q4_0"), and back (nothing when unknown).
const char* to_string(BlockType type);
std::optional<BlockType> parse_block_type(std::string_view name);
// The type of a GGUF type id, or nothing when unsupported.
std::optional<BlockType> block_type_from_id(std::uint32_t id);

struct Layout;  // kernels/base/registry.h

// One quantised matrix, row-major [rows][cols], rows contiguous. Not owned. `layout` null: the file's layout.
struct QuantView {
  const std::byte* data = nullptr;
  BlockType type = BlockType::kF32;
  int rows = 0;
  int cols = 0;               // a multiple of block_elements(type)
  std::size_t row_bytes = 0;  // cols / block_elements * block_bytes
  const Layout* layout = nullptr;

  std::size_t bytes() const { return static_cast<std::size_t>(rows) * row_bytes; }
  const std::byte* row(int r) const { return data + static_cast<std::size_t>(r) * row_bytes; }
};
std::size_t row_bytes(BlockType type, int cols);
QuantView make_quant_view(const std::byte* data, BlockType type, int rows, int cols);

// IEEE half and bfloat16. Conversion from float rounds to nearest even; NaN stays NaN.
float half_to_float(std::uint16_t h);
std::uint16_t float_to_half(float f);
inline float bf16_to_float(std::uint16_t h) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
}
std::uint16_t float_to_bf16(float f);

// out[n] = the blocks' values in float, the exact formulas of the spec (each product rounded once, no fma).
// n: a multiple of block_elements(type).
void dequantize(BlockType type, const std::byte* blocks, std::size_t n, float* out);
// 32 consecutive elements of a type with codes: the integers behind dequantize().
struct BlockCodes {
  std::int8_t
      code[32];  // code minus the format's constant offset (Q4_0 -8..7, Q4_1 0..15, Q6_K -32..31)
  std::int32_t
      multiplier[2];  // of elements 0..15 and 16..31: the K types' 6 or 8 bit scales, else 1
  std::int32_t minimum_multiplier;  // Q4_K, Q5_K: the 6-bit minimum; Q4_1, Q5_1: 1; else 0
  std::uint16_t d;                  // fp16
  std::uint16_t m;                  // fp16: m of Q4_1 and Q5_1, -dmin of Q4_K and Q5_K, else 0
};
// The b-th 32 elements of a row. Value of element j = d * multiplier * code + m * minimum_multiplier.
void unpack_codes(BlockType type, const std::byte* row, std::size_t b, BlockCodes& out);
// Plain round-to-nearest quantiser for generated models (not ggml's search). n as above.
void quantize(BlockType type, const float* in, std::size_t n, std::byte* blocks);

// ---- activations: int8 per 32 (the fast lane's arithmetic) ----
// d = amax / 127 (IEEE division), q = round half away(x / d) with d in f32, in -127..127; d stored as fp16 (it may
// round to 0 or infinity there). A block whose d is 0 has codes 0. A block holding a NaN or an infinity has codes 0
// and the scale NaN (0x7E00): whatever is computed from it is NaN.
inline constexpr int kQ8Block = 32;
// A quantised activation matrix [tokens][cols]; scale [tokens][cols / 32] as fp16 bits. cols % 32 == 0.
struct Q8View {
  const std::int8_t* codes = nullptr;
  const std::uint16_t* scales = nullptr;
};
// n: a multiple of 32.
void quantize_q8(const float* x, std::size_t n, std::int8_t* codes, std::uint16_t* scales);

}  // namespace assay
