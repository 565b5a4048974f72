// Builds the head of a GGUF file: metadata, tensor records, offsets. The data section is written by the caller, so that
// a 14 GB file needs no 14 GB of memory.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/gguf.h"

namespace assay {

class GgufWriter {
 public:
  // alignment: a power of two. Anything but 32 must also be declared with add_u32("general.alignment", ..).
  explicit GgufWriter(std::uint32_t version = 3, std::uint64_t alignment = 32);

  void add_u32(std::string_view key, std::uint32_t value);
  void add_i32(std::string_view key, std::int32_t value);
  void add_f32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_text(std::string_view key, std::string_view value);
  void add_i32s(std::string_view key, std::span<const std::int32_t> values);
  void add_f32s(std::string_view key, std::span<const float> values);
  void add_bools(std::string_view key, const std::vector<bool>& values);
  void add_texts(std::string_view key, std::span<const std::string> values);

  // Declares the next tensor; ne[0] is a multiple of the type's block.
  void add_tensor(std::string name, BlockType type, std::initializer_list<std::int64_t> ne);

  // Everything before the data section, padding included.
  std::string head() const;
  // The tensors with their final offsets in the file.
  std::vector<TensorInfo> tensors() const;
  // Size of the finished file; bytes that no tensor covers are zero.
  std::uint64_t file_bytes() const;

 private:
  void key(std::string_view name, MetaType type);
  void array(std::string_view name, MetaType element, std::uint64_t count);
  std::uint64_t unpadded_head_bytes() const;
  std::uint64_t pad(std::uint64_t bytes) const {
    return (bytes + alignment_ - 1) / alignment_ * alignment_;
  }

  std::uint32_t version_;
  std::uint64_t alignment_;
  std::uint64_t n_keys_ = 0;
  std::string metadata_;
  std::vector<TensorInfo> tensors_;  // offsets relative to the data section
};

}  // namespace assay
