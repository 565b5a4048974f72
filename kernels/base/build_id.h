// Who this binary is: printed by every program (--version), stored in every record.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

struct BuildId {
  const char* version;      // "0.1.0"
  const char* commit;       // full hash, or "unknown"
  bool dirty;               // tracked files differed from the commit at build time
  const char* tree_sha256;  // digest over all source files of the build
  const char* compiler;
  const char* cuda;  // toolkit version, or "none"
  const char* build_type;
};
const BuildId& build_id();
// "0.1.0 commit 0123456789ab clean tree 89ab.. g++ 12.2.0 cuda none Release"
std::string build_line();
// SHA-256 of this process's executable file, hex.
std::string executable_sha256();

// One repository file and the SHA-256 of its bytes.
struct SourceFile {
  const char* path;  // from the repository's root
  const char* sha256;
};
// The source digest of one op and variant, over every repository file that they are made of (scripts/digest.py says
// which, `scripts/digest.py explain OP VARIANT` lists them), plus cmake/codegen_flags.txt. The same in every preset.
struct SourceDigest {
  const char* op;
  const char* variant;
  const char* sha256;
  std::span<const std::uint16_t> parts;  // indices into the build's list of files
};
std::span<const SourceDigest> source_digests();
// Empty when unknown.
std::string_view source_digest(std::string_view op, std::string_view variant);
// The files behind a digest, sorted by path; empty when unknown. Comparing two such lists names the part that moved.
std::vector<SourceFile> source_files(std::string_view op, std::string_view variant);

}  // namespace assay
