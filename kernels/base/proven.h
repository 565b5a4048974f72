// The proven set: which variant of which op won on one card, by which records, of which sources. `assay prove` writes it,
// `--profile proven` arms what is still true of it.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/device_info.h"

namespace assay {

struct ProvenEntry {
  std::string variant;
  std::string parity_record;  // full hashes
  std::string ab_record;
  std::string source_digest;  // kernels/base/build_id.h, at proof time
  std::map<std::string, std::string>
      files;             // behind the digest: path -> first 16 digits, to name what moved
  double speedup = 1.0;  // the confirmation's estimate, stock's time over the variant's
};

// Rounds of a whole engine with all members of a lane together.
struct ProvenStack {
  std::string record;  // full hash; what its drop-one rounds dropped is absent from the set
  std::map<std::string, std::string> members;  // op -> variant
  double speedup = 1.0;                        // against stock, never a product of singles
};

struct ProvenSet {
  std::string recorded_utc;
  std::string card;     // DeviceInfo::name
  std::string backend;  // "host", "cuda"
  std::string cuda;     // toolkit the proof was built with, "none" on the host
  std::string commit;
  bool scratch = false;
  // op -> lane ("exact", "fast", or "any" for an op without lanes) -> winner. An op that stock won is absent.
  std::map<std::string, std::map<std::string, ProvenEntry>> ops;
  std::map<std::string, ProvenStack> stacks;  // by numerics lane; none when no rounds were run
};

// The document's text (results/schema/proven.schema.json), canonical.
std::string proven_text(const ProvenSet& set);
// InputError naming `name` and what is wrong.
ProvenSet parse_proven(std::string_view text, const std::string& name);

// "AMD EPYC 9B14 96-Core" -> "amd-epyc-9b14-96-core": the folder under results/.
std::string card_slug(std::string_view card);
// The nearest folder `results` with a `schema` inside, from the executable upwards, then from the working directory; empty
// when there is none.
std::string find_results_folder();
// Every proven_<backend>.json below a folder, sorted; empty when there is no such folder.
std::vector<std::string> proven_files(const std::string& folder);
// Path of the newest proven set for this card and backend under results/<card>/; empty when there is none. A scratch set
// and one that cannot be read are passed over and named in `notes`.
std::string newest_proven(const std::string& results,
                          const DeviceInfo& device,
                          std::vector<std::string>& notes);

// What of a set may be armed here and now.
struct Arming {
  std::map<std::string, std::string> profile;  // op -> variant
  std::map<std::string, ProvenEntry> proofs;   // op -> why
  std::string file = {};                       // the set, "results/CARD/..", when it was looked for
  std::vector<std::string> notes;              // one line each: armed and why, or not armed and why
};
// `lane`: "exact" or "fast". An entry is armed when this build has the variant with the same source digest, and card,
// backend and the toolkit's major.minor agree; otherwise the note says which part differs.
Arming arm(const ProvenSet& set, const DeviceInfo& device, std::string_view lane);
// newest_proven, parse and arm. Without a set a note says so, and which other cards have one.
Arming arm_newest(const DeviceInfo& device, std::string_view lane);

}  // namespace assay
