// A model's weights in memory: read once with pread into one 64-byte aligned block of a memory space, in the layouts that
// the chosen variants want. Everything read is checked finite; afterwards memory of the host is read-only, so that a broken
// kernel cannot change a weight unseen.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/memory_space.h"
#include "engine/model_config.h"
#include "kernels/base/layer.h"
#include "kernels/base/registry.h"

namespace assay {

// What the two ops that read a matrix (few tokens, many tokens) want it to look like.
struct LayoutWish {
  const Layout* layout = nullptr;  // null: the file's
  bool any = true;                 // stock reads every layout, so it follows the other op
};
struct WeightLayouts {
  LayoutWish gemv;
  LayoutWish gemm;
  LayoutWish experts_few;
  LayoutWish experts_many;
};

// Angles' frequencies of one kind of layer (base, head size, factors).
struct RopeTable {
  double base = 0.0;
  int head_dim = 0;
  bool factors = false;
  const double* frequency = nullptr;  // [head_dim / 2], in the weights' space
};

class Weights {
 public:
  // Where two chosen variants want different layouts of one matrix, both copies are kept (doubled_bytes says how much).
  // Pointers are of the space. Host memory while loading: the result, plus for a card the largest matrix. InputError as
  // GgufFile.
  Weights(const GgufFile& file,
          const ModelConfig& config,
          const WeightLayouts& layouts,
          const MemorySpace& space);
  // Shapes and bytes only: every pointer is null and nothing is read.
  static Weights planned(const GgufFile& file,
                         const ModelConfig& config,
                         const WeightLayouts& layouts,
                         const MemorySpace& space);

  std::span<const AttentionWeights> attention() const { return attention_; }
  std::span<const FfnWeights> ffn() const { return ffn_; }
  const QuantView& embedding() const { return embedding_; }
  const Matrix& head() const { return head_; }
  const float* output_norm() const { return output_norm_; }
  std::span<const RopeTable> rope() const { return rope_; }
  // Index into rope().
  int rope_of(int layer) const { return rope_of_[static_cast<std::size_t>(layer)]; }

  std::size_t bytes() const { return bytes_; }
  std::size_t doubled_bytes() const { return doubled_bytes_; }

 private:
  class Loader;
  Weights() = default;

  std::vector<AttentionWeights> attention_;
  std::vector<FfnWeights> ffn_;
  QuantView embedding_;
  Matrix head_;
  const float* output_norm_ = nullptr;
  std::vector<RopeTable> rope_;
  std::vector<int> rope_of_;
  std::size_t bytes_ = 0;
  std::size_t doubled_bytes_ = 0;
  SpaceBuffer memory_;
};

}  // namespace assay
