// A seeded stream of malformed model files, each made from a small valid one by one change that a sound reader must
// refuse. Changes of two kinds: bytes of the file where the container says something (counts, lengths, types,
// dimensions, offsets), and whole files written correctly around a wrong content (shapes that disagree with the
// settings, odd vocabularies, NaN scales), which pass the container's checks and must be caught behind them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/gguf.h"
#include "kernels/base/rng.h"

namespace assay {

// A GGUF file taken apart, so that it can be changed and written again with sound offsets.
struct GgufParts {
  struct Pair {
    std::string key;
    MetaType type;
    std::string value;  // as in the file, after the type
  };
  struct Tensor {
    std::string name;
    std::uint32_t type;
    std::vector<std::int64_t> ne;
    std::string data;
  };
  std::vector<Pair> pairs;
  std::vector<Tensor> tensors;

  // A number of the container inside the written bytes.
  struct Field {
    enum Kind {
      kMagic,
      kVersion,
      kTensorCount,
      kKeyCount,
      kLength,
      kValueType,
      kElementType,
      kArrayCount,
      kDims,
      kDim,
      kTensorType,
      kTensorOffset
    };
    Kind kind;
    std::uint64_t at;
    int bytes;
    std::string owner;  // key or tensor
  };
  std::string write(std::vector<Field>* fields = nullptr) const;

  Pair& pair(std::string_view key);
  Tensor& tensor(std::string_view name);
  // Elements of an array of strings.
  static std::vector<std::string> texts(const Pair& pair);
  static void set_texts(Pair& pair, const std::vector<std::string>& texts);
};
// Takes a sound file apart (describe_model's output or any other that GgufFile::open accepts).
GgufParts take_apart(const std::string& path);

// The smallest model that read_config and Tokenizer::load accept: a few kilobytes, for fuzzing.
GgufParts smallest_model();

struct MalformedFile {
  std::string bytes;
  std::string change;  // in words
  // When not 0: the file is sound at open and becomes this long afterwards.
  std::uint64_t shrinks_to = 0;
};

class MalformedGguf {
 public:
  // base: a sound file of a model.
  MalformedGguf(GgufParts base, std::uint64_t seed);
  // The index-th file of the stream; any order.
  MalformedFile make(std::uint64_t index) const;

 private:
  GgufParts base_;
  std::string bytes_;
  std::vector<GgufParts::Field> fields_;
  std::uint64_t data_at_ = 0;
  std::uint64_t last_used_ = 0;  // one past the last tensor's bytes
  std::uint64_t seed_;
};

// What a loader does with a model: open, configuration, tokenizer, every tensor read and checked. Returns the refusal's
// message, or an empty string when the file is accepted. Anything but an InputError passes through.
std::string load_everything(const std::string& path, std::uint64_t shrink_to = 0);

// Whether a message names the file, the key, tensor or part of the container, and a byte offset.
bool well_formed_refusal(const std::string& message, const std::string& path);

}  // namespace assay
