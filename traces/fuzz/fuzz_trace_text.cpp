// Fuzz target: the first byte chooses JSONL, CSV, .ids or oracleGeneral; the rest is the file. It is refused as input or becomes
// a trace that the reader takes and that its JSONL twin gives back.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "kernels/base/error.h"
#include "traces/convert.h"
#include "traces/flat.h"
#include "traces/fuzz/memory_file.h"
#include "traces/trace.h"

namespace {

void read_all(const std::string& path) {
  assay::TraceReader reader(path);
  const std::uint64_t steps = reader.info().steps;
  for (std::uint64_t first = 0; first < steps;) first += reader.read(first, 64).count;
  reader.verify_crc();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const MemoryFile in("fuzz_text");
  static const MemoryFile out("fuzz_text_out");
  static const MemoryFile twin("fuzz_text_twin");
  if (size == 0) return 0;
  in.set(data + 1, size - 1);
  try {
    switch (data[0] % 4) {
      case 0:
        assay::jsonl_to_mrt(in.path(), out.path());
        break;
      case 1:
        assay::csv_to_mrt(in.path(), out.path());
        break;
      default:
        assay::read_flat(in.path(),
                         data[0] % 4 == 2 ? assay::FlatKind::kIds : assay::FlatKind::kOracleGeneral,
                         [](std::span<const std::uint32_t> objects) {
                           if (objects.empty()) std::abort();
                         });
        return 0;
    }
  } catch (const assay::InputError&) {
    return 0;
  }
  // Accepted: from here on a refusal is a finding, but for a label that JSON cannot hold.
  read_all(out.path());
  try {
    assay::mrt_to_jsonl(out.path(), twin.path());
  } catch (const assay::InputError&) {
    if (data[0] % 4 == 1) return 0;
    std::abort();
  }
  assay::jsonl_to_mrt(twin.path(), out.path());
  read_all(out.path());
  return 0;
}
