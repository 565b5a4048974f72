// Inputs for the cases of ops over quantised matrices. Everything is drawn from the given generator.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/base/blocks.h"
#include "kernels/base/rng.h"

namespace assay {

// What the values of weights and activations are like.
enum class Pattern : std::uint8_t {
  kPlain,       // every code of the format, scales around 0.01; activations about normal
  kPositive,    // nothing cancels: results of one row are well conditioned
  kAllEqual,    // one byte in every code field of the weights, one value in every activation
  kZeroBlocks,  // every other block of weights and of activations is zero
  kDenormal,    // subnormal fp16 scales, subnormal float activations among ordinary ones
  kHuge,        // large scales and activations; the result stays finite
  kNan,         // a NaN in one activation (of the first token) and a NaN scale in one weight block
  kInfinity,    // infinities of both signs among the activations
};

// blocks: whole blocks. Codes are raw random bytes, so codes that a quantiser never writes occur.
void fill_blocks(std::span<std::byte> blocks, BlockType type, Pattern pattern, Rng& rng);
void fill_activations(std::span<float> x, Pattern pattern, Rng& rng);

// Which experts the tokens choose.
enum class Routing : std::uint8_t {
  kUniform,    // distinct experts, all equally likely
  kSkewed,     // distinct, most tokens share the same few
  kOneExpert,  // every slot of every token is the same expert
  kHoles,      // some slots are -1
};
// ids, weights: [tokens][top_k]; weights positive, descending, summing to about 1.
void fill_routing(std::span<std::int32_t> ids,
                  std::span<float> weights,
                  int top_k,
                  int experts,
                  Routing routing,
                  Rng& rng);

}  // namespace assay
