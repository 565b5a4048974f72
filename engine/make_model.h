// Random models of the gemma4 architecture: every structural feature, any block type, any size, the same bytes from the
// same seed on every machine and thread count. Weights are scaled so that activations stay near 1 and norms, router
// scales and layer scalars are non-trivial, which makes most mistakes of an engine visible.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/gguf_writer.h"
#include "kernels/base/blocks.h"
#include "kernels/base/rng.h"

namespace assay {

struct MakeModelOptions {
  std::string preset =
      "tiny";  // tiny: geometry of the shipped model; spec: the small test model; 26b-a4b
  std::string type =
      "q4_0";  // a block type, or q4_k_m: the mixture that real files of that name hold
  std::string embedding_type = {};  // of token_embd; empty: as `type`
  std::uint64_t seed = 1;
};
std::vector<std::string> make_model_presets();
std::vector<std::string> make_model_types();

// Head and tensor list, no data. Rows that no K block fits take the 32-element type that llama.cpp falls back to.
// Throws UserError naming the option and the valid values.
GgufWriter describe_model(const MakeModelOptions& options);

// Writes the file (to a temporary name, then renamed). Memory: about 2 MiB a thread. progress, when given, is called
// from the calling thread with bytes written and in total. Throws UserError as above, Error (exit 1) naming the path
// when it cannot be written.
void make_model(const MakeModelOptions& options,
                const std::string& path,
                int threads,
                const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = {});

// `blocks` random valid blocks whose values have about mean 0 and the given standard deviation (> 0).
void random_blocks(
    BlockType type, double deviation, Rng& rng, std::uint64_t blocks, std::byte* out);

}  // namespace assay
