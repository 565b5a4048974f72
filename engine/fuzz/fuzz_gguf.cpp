// Fuzz target: any bytes as a model file. They are refused as input or they load; nothing else may happen.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "engine/gguf.h"
#include "engine/model_config.h"
#include "engine/tokenizer.h"
#include "kernels/base/error.h"

namespace {

// A file that exists in memory only; the reader takes paths.
struct MemoryFile {
  MemoryFile()
      : fd(::memfd_create("fuzz_gguf", MFD_CLOEXEC)), path("/proc/self/fd/" + std::to_string(fd)) {
    if (fd < 0) std::abort();
  }
  void set(const std::uint8_t* data, std::size_t size) const {
    if (::ftruncate(fd, 0) != 0) std::abort();
    if (::pwrite(fd, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  }
  int fd;
  std::string path;
};

void read_all(const assay::GgufFile& file) {
  std::vector<std::byte> bytes;
  for (const assay::TensorInfo& t : file.tensors()) {
    bytes.resize(t.bytes);  // bounded by the input
    file.read_finite_tensor(t, bytes);
  }
}

void use(const assay::Tokenizer& tokenizer) {
  static constexpr std::string_view kText = "ab a\n\nb<|turn>\xC3\xA9\xFF A";
  for (const auto mode :
       {assay::SpecialMode::kAll, assay::SpecialMode::kUserDefined, assay::SpecialMode::kNone}) {
    try {
      const auto ids = tokenizer.encode(kText, true, mode);
      for (const assay::TokenId id : ids) {
        if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
      }
      if (mode == assay::SpecialMode::kNone) {
        // Whatever the vocabulary: untrusted text makes no control token and comes back.
        std::vector<assay::TokenId> text(ids.begin() + (tokenizer.bos() ? 1 : 0), ids.end());
        if (tokenizer.decode(text) != kText) std::abort();
      }
    } catch (const assay::InputError&) {
      // no token for some byte
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const MemoryFile memory;
  memory.set(data, size);
  try {
    const assay::GgufFile file = assay::GgufFile::open(memory.path);
    // Each stage on its own: a refusal by one must not hide the others.
    try {
      (void)assay::read_config(file);
    } catch (const assay::InputError&) {
    }
    try {
      use(assay::Tokenizer::load(file));
    } catch (const assay::InputError&) {
    }
    read_all(file);
  } catch (const assay::InputError&) {
  }
  return 0;
}
