// Test support: small random routing traces on disk, gone when the object is.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <unistd.h>

#include "kernels/base/rng.h"
#include "traces/trace.h"

namespace assay::replay {

// A path under the temporary folder with the given suffix, removed at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& suffix) {
    path_ = "/tmp/assay-test-XXXXXX" + suffix;
    const int fd = ::mkstemps(path_.data(), static_cast<int>(suffix.size()));
    if (fd >= 0) ::close(fd);
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct RandomTraceOptions {
  TraceGeometry geometry{3, 10, 3};
  std::uint64_t steps = 300;
  std::uint32_t conversations = 3;
  double stay = 0.5;     // chance that a member of the step before is kept
  double padding = 0.1;  // chance that a group has fewer than top-k members
  WeightKind weights = WeightKind::kNone;
  std::uint64_t seed = 1;
  bool seal = true;
};

// Sticky, skewed routing with padding, so that policies differ from one another on it.
inline void write_random_trace(const std::string& path, const RandomTraceOptions& o) {
  TraceFormat f;
  f.geometry = o.geometry;
  f.id_bytes = o.geometry.experts <= 255 ? 1 : 2;
  f.weights = o.weights;
  f.label = "random";
  f.expert_bytes = 1000;
  Rng rng(o.seed);
  TraceWriter w(path, f);
  TraceStep s;
  const auto k = static_cast<std::size_t>(o.geometry.top_k);
  const auto layers = static_cast<std::size_t>(o.geometry.layers);
  std::vector<std::int32_t> before(layers * k, kPaddingId);
  std::uint64_t done = 0;
  for (std::uint32_t c = 0; c < o.conversations; ++c) {
    w.begin_conversation(c + 5, c % 3 == 2 ? Split::kHeldOut : Split::kTrain);
    const std::uint64_t end = o.steps * (c + 1) / o.conversations;
    for (std::uint32_t p = 0; done < end; ++done, ++p) {
      s.position = p;
      s.token = static_cast<std::int32_t>(rng.below(1000)) - 1;
      s.phase = p < 4 ? Phase::kPrefill : Phase::kDecode;
      s.flags = static_cast<std::uint8_t>(rng.below(3));
      s.row = static_cast<std::uint16_t>(rng.below(2));
      s.ids.assign(layers * k, kPaddingId);
      s.weights.assign(o.weights == WeightKind::kNone ? 0 : layers * k, 0.0F);
      for (std::size_t l = 0; l < layers; ++l) {
        std::int32_t* row = s.ids.data() + l * k;
        const std::size_t members = rng.uniform() < o.padding ? rng.below(k) : k;
        for (std::size_t r = 0; r < members; ++r) {
          std::int32_t id = before[l * k + r];
          while (id == kPaddingId || rng.uniform() >= o.stay ||
                 std::find(row, row + r, id) != row + r) {
            // The smaller of two draws: low ids are more popular.
            const auto n = static_cast<std::uint64_t>(o.geometry.experts);
            id = static_cast<std::int32_t>(std::min(rng.below(n), rng.below(n)));
            if (std::find(row, row + r, id) == row + r) break;
          }
          row[r] = id;
          if (!s.weights.empty()) s.weights[l * k + r] = 1.0F / static_cast<float>(r + 2);
        }
      }
      before = s.ids;
      w.append(s);
    }
  }
  if (o.seal) {
    w.seal();
  } else {
    w.leave_unsealed();
  }
}

}  // namespace assay::replay
