// Who this binary is: printed by every program (--version), stored in every record.
#pragma once
#include <span>
#include <string>
#include <string_view>

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

// The source digest of one op and variant: every repository file reached by include from the op's contract,
// reference, stock and the variant's files, plus cmake/codegen_flags.txt. The same in every preset.
struct SourceDigest {
  const char* op;
  const char* variant;
  const char* sha256;
};
std::span<const SourceDigest> source_digests();
// Empty when unknown.
std::string_view source_digest(std::string_view op, std::string_view variant);

}  // namespace assay
