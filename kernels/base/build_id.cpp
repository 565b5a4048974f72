#include "kernels/base/build_id.h"

#include <cstdio>
#include <vector>

#include "build_id_data.h"
#include "kernels/base/sha256.h"

namespace assay {

const BuildId& build_id() { return kBuildIdData; }

std::string build_line() {
  const BuildId& b = build_id();
  return std::string(b.version) + " commit " + std::string(b.commit).substr(0, 12) +
         (b.dirty ? " dirty" : " clean") + " tree " + std::string(b.tree_sha256).substr(0, 12) +
         ' ' + b.compiler + " cuda " + b.cuda + ' ' + b.build_type;
}

std::string executable_sha256() {
  Sha256 hash;
  if (std::FILE* f = std::fopen("/proc/self/exe", "rb")) {
    std::vector<char> buffer(1 << 20);
    for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), f)) > 0;)
      hash.update(buffer.data(), n);
    std::fclose(f);
  }
  return hash.hex();
}

std::span<const SourceDigest> source_digests() { return kSourceDigests; }

std::string_view source_digest(std::string_view op, std::string_view variant) {
  for (const auto& d : source_digests()) {
    if (op == d.op && variant == d.variant) return d.sha256;
  }
  return {};
}

std::vector<SourceFile> source_files(std::string_view op, std::string_view variant) {
  std::vector<SourceFile> files;
  for (const auto& d : source_digests()) {
    if (op != d.op || variant != d.variant) continue;
    for (const auto part : d.parts) files.push_back(kSourceFiles[part]);
  }
  return files;
}

}  // namespace assay
