// Fuzz target: any bytes as a snapshot. Read as they are, and once more with the digests made right, so that the numbers
// behind them are reached. What is accepted is written again byte for byte.
#include <cstring>

#include "engine/fuzz/spec_tokenizer.h"
#include "engine/snapshot.h"
#include "kernels/base/sha256.h"

using assay::check;

namespace {

// A cache of 8 bytes a row; local layers see 3 rows.
assay::SnapshotShape shape() {
  const std::string digest(64, '1');
  return {.identity = {digest, digest, digest, digest},
          .context = 64,
          .vocab = 100,
          .kv = assay::KvType::kF16,
          .saved_bytes = [](int position, assay::KvCache::Part part) {
            const int local = position < 3 ? position : 3;
            return static_cast<std::size_t>(
                part == assay::KvCache::Part::kLocal ? 4 * local : 4 * local + 8 * position);
          }};
}

void put_digest(std::string& bytes, std::size_t at, std::string_view of) {
  const std::string hex = assay::sha256_hex(of);
  for (std::size_t i = 0; i < 32; ++i)
    bytes[at + i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
}

void read(std::string_view bytes) {
  const assay::SnapshotRead r = assay::decode_snapshot(bytes, shape());
  check(r.state != assay::SnapshotState::kMissing);
  check((r.state == assay::SnapshotState::kGood) == r.reason.empty());
  if (r.state == assay::SnapshotState::kGood) {
    check(r.snapshot.ids.size() <= 64 && r.snapshot.checkpoints.size() <= assay::kMaxCheckpoints);
    check(assay::decode_snapshot(assay::encode_snapshot(r.snapshot, shape()), shape())
              .snapshot.rows == r.snapshot.rows);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  read(bytes);
  if (bytes.size() < 256) return 0;
  for (std::size_t i = 0; i < 4; ++i) std::memset(bytes.data() + 48 + 32 * i, 0x11, 32);
  put_digest(bytes, 176, std::string_view(bytes).substr(256));
  put_digest(bytes, 224, std::string_view(bytes).substr(0, 224));
  read(bytes);
  return 0;
}
