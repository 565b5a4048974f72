// Fuzz target: any bytes as a .mrt file. They are refused as input or every record reads and obeys the reader's promises;
// nothing else may happen. Bytes whose checksums are wrong get a second run with header and table checksums made right, else
// hardly a mutation would pass the first check.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/base/error.h"
#include "traces/crc32.h"
#include "traces/fuzz/memory_file.h"
#include "traces/trace.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void read_all(const MemoryFile& file, bool shrink) {
  try {
    assay::TraceReader reader(file.path());
    const assay::TraceInfo& info = reader.info();
    const auto& g = info.format.geometry;
    std::uint64_t covered = 0;
    for (const auto& c : info.conversations) {
      require(c.first == covered);
      covered += c.steps;
    }
    require(covered == info.steps);
    if (shrink) file.truncate(200);
    assay::TraceStep step;
    const std::size_t window = info.steps % 3 + 1;
    for (std::uint64_t first = 0; first < info.steps;) {
      const assay::RecordBlock b = reader.read(first, window);
      require(b.count != 0);
      for (std::size_t i = 0; i < b.count; ++i) {
        b.decode(i, step);
        require(step.ids.size() == info.format.ids_per_step());
        for (const auto id : step.ids)
          require(id == assay::kPaddingId || (id >= 0 && id < g.experts));
      }
      first += b.count;
    }
    try {
      reader.verify_crc();
    } catch (const assay::CheckError&) {
    }
  } catch (const assay::InputError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const MemoryFile file("fuzz_trace");
  file.set(data, size);
  read_all(file, false);
  if (size < 160) return 0;
  std::vector<std::uint8_t> fixed(data, data + size);
  const std::uint32_t header_crc = assay::crc32(0, fixed.data(), 124);
  std::memcpy(fixed.data() + 124, &header_crc, 4);
  std::uint8_t* trailer = fixed.data() + size - 32;
  std::uint64_t table = 0;
  std::memcpy(&table, trailer + 8, 8);
  if (table <= size - 32) {
    const std::uint32_t table_crc = assay::crc32(0, fixed.data() + table, size - 32 - table);
    std::memcpy(trailer + 20, &table_crc, 4);
  }
  file.set(fixed.data(), size);
  read_all(file, data[size - 1] % 4 == 0);
  return 0;
}
