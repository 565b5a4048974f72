#include "bench/expert_stream.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <stdexcept>

#include <immintrin.h>
#include <sys/mman.h>

#include "kernels/base/error.h"
#include "kernels/base/host_pool.h"
#include "kernels/base/quant_cases.h"
#include "kernels/base/registry.h"
#include "kernels/base/rng.h"
#include "kernels/experts_host/op.h"

namespace assay {
namespace {

// Anonymous memory in 2 MB pages where the system gives them.
class Arena {
 public:
  Arena(std::size_t bytes, bool huge) : bytes_((bytes + kPage - 1) / kPage * kPage + kPage) {
    raw_ = mmap(nullptr,
                bytes_,
                PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1,
                0);
    if (raw_ == MAP_FAILED) throw UserError("cannot map " + std::to_string(bytes_) + " bytes");
    madvise(raw_, bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    const auto address = reinterpret_cast<std::uintptr_t>(raw_);
    data_ = static_cast<std::byte*>(raw_) + (kPage - address % kPage) % kPage;
  }
  ~Arena() { munmap(raw_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  std::byte* data() const { return data_; }

 private:
  static constexpr std::size_t kPage = std::size_t{2} << 20;
  std::size_t bytes_;
  void* raw_;
  std::byte* data_;
};

// Wall clock, or this process's CPU time (for one thread on a machine that others use).
double now_s(bool cpu_time) {
  if (!cpu_time) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Writes random weights in the file's layout to `out` and, for a variant, over them in its own.
void fill_matrix(
    std::byte* out, const QuantView& view, const Layout* layout, Rng& rng, int part_rows) {
  std::vector<std::byte> file(static_cast<std::size_t>(part_rows) * view.row_bytes);
  for (int r = 0; r < view.rows; r += part_rows) {
    fill_blocks(file, view.type, Pattern::kPlain, rng);
    const QuantView part = make_quant_view(file.data(), view.type, part_rows, view.cols);
    layout->prepare(part, out + static_cast<std::size_t>(r) * view.row_bytes);
  }
}

}  // namespace

__attribute__((target("avx2"))) std::uint64_t read_every_byte(const std::byte* p,
                                                              std::size_t bytes) {
  __m256i sum[4] = {};
  std::size_t i = 0;
  for (; i + 256 <= bytes; i += 256) {
    for (std::size_t j = 0; j < 4; ++j) {
      _mm_prefetch(reinterpret_cast<const char*>(p + i + 64 * j + 8192), _MM_HINT_T0);
    }
    for (std::size_t j = 0; j < 8; ++j) {
      sum[j % 4] = _mm256_add_epi64(
          sum[j % 4], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + 32 * j)));
    }
  }
  std::uint64_t lanes[4];
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(lanes),
      _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3])));
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

std::array<double, 3> quartiles(std::vector<double> values) {
  if (values.empty()) throw std::invalid_argument("quartiles of no values");
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
  };
  return {at(0.25), at(0.5), at(0.75)};
}

StreamResult measure_expert_stream(const StreamOptions& o,
                                   const std::function<void(int done)>& progress) {
  const BlockType type = o.type;
  if (!has_codes(type))
    throw UserError(std::string(to_string(type)) + ": a block type with codes is needed");
  const DeviceInfo& device = host_device();
  if (!device.avx2) throw HardwareError("the read-only probe needs a CPU with AVX2");

  ExpertsHost::Shape shape{.tokens = 1,
                           .hidden = o.hidden,
                           .width = o.width,
                           .top_k = o.top_k,
                           .gate_up_type = type,
                           .down_type = type,
                           .numerics = Numerics::kFast};
  const std::size_t gate_up_bytes =
      row_bytes(type, o.hidden) * 2 * static_cast<std::size_t>(o.width);
  const std::size_t down_bytes = row_bytes(type, o.width) * static_cast<std::size_t>(o.hidden);
  const double expert_bytes = static_cast<double>(gate_up_bytes + down_bytes);
  shape.experts = std::max(o.top_k, static_cast<int>(o.gib * 1073741824.0 / expert_bytes) + 1);
  const auto experts = static_cast<std::size_t>(shape.experts);

  std::vector<const VariantRow<ExpertsHost>*> arms;
  const Layout* layout = nullptr;
  for (const auto& row : variants<ExpertsHost>()) {
    if (row.variant->layout == nullptr || why_ineligible(*row.variant, shape, device) != nullptr)
      continue;
    if (layout != nullptr && row.variant->layout != layout) continue;
    layout = row.variant->layout;
    arms.push_back(&row);
  }
  if (arms.empty()) throw HardwareError("no variant with a layout runs here");

  Rng rng(1);
  Arena gate_up(gate_up_bytes * experts, o.huge_pages);
  Arena down(down_bytes * experts, o.huge_pages);
  ExpertsHost::Args args;
  args.gate_up = make_quant_view(gate_up.data(), type, shape.experts * 2 * o.width, o.hidden);
  args.down = make_quant_view(down.data(), type, shape.experts * o.hidden, o.width);
  fill_matrix(gate_up.data(), args.gate_up, layout, rng, 2 * o.width);
  fill_matrix(down.data(), args.down, layout, rng, o.hidden);
  args.gate_up.layout = args.down.layout = layout;

  std::vector<float> x(static_cast<std::size_t>(o.hidden));
  fill_activations(x, Pattern::kPlain, rng);
  std::vector<std::int8_t> codes(x.size());
  std::vector<std::uint16_t> scales(x.size() / kQ8Block);
  quantize_q8(x.data(), x.size(), codes.data(), scales.data());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(o.top_k));
  std::vector<float> weights(ids.size());
  std::vector<float> out(x.size());
  args.x = x.data();
  args.xq = {codes.data(), scales.data()};
  args.ids = ids.data();
  args.weights = weights.data();
  args.out = out.data();
  std::vector<std::byte> workspace(ExpertsHost::workspace_bytes(shape) + 256);
  auto* aligned =
      workspace.data() + (256 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 256) % 256;
  HostPool pool(o.threads);
  std::uint64_t sink = 0;

  // Each arm gets fresh experts, so that no arm finds what another left in a cache.
  const auto probe = [&] {
    parallel_for(
        &pool, static_cast<std::size_t>(o.threads), 1, [&](std::size_t begin, std::size_t end) {
          std::uint64_t sum = 0;
          for (std::size_t part = begin; part < end; ++part) {
            const auto share = [&](const std::byte* p, std::size_t bytes) {
              const std::size_t step = bytes / static_cast<std::size_t>(o.threads);
              sum += read_every_byte(p + part * step, step);
            };
            for (const auto id : ids)
              share(gate_up.data() + static_cast<std::size_t>(id) * gate_up_bytes, gate_up_bytes);
            for (const auto id : ids)
              share(down.data() + static_cast<std::size_t>(id) * down_bytes, down_bytes);
          }
          if (begin == 0) sink += sum;
        });
  };
  const auto time_of = [&](std::size_t arm) {
    double total = 0.0;
    for (int c = 0; c < o.calls; ++c) {
      fill_routing(ids, weights, o.top_k, shape.experts, Routing::kUniform, rng);
      const double start = now_s(o.cpu_time);
      if (arm == 0) {
        probe();
      } else {
        arms[arm - 1]->variant->host.fn(
            shape, args, {aligned, workspace.size() - 256}, Stream{.pool = &pool});
      }
      total += now_s(o.cpu_time) - start;
    }
    return total / o.calls;
  };

  StreamResult result;
  result.experts = shape.experts;
  result.expert_bytes = expert_bytes;
  for (const auto* arm : arms) result.arms.push_back({arm->name, {}});
  for (int round = 0; round < o.rounds + 1; ++round) {
    // Probe on both sides of every arm: the machine's speed drifts. The first round warms up.
    double before = time_of(0);
    for (std::size_t arm = 0; arm < arms.size(); ++arm) {
      const double mine = time_of(arm + 1);
      const double after = time_of(0);
      if (round > 0) {
        result.arms[arm].of_probe.push_back(0.5 * (before + after) / mine);
        result.probe_bytes_per_s.push_back(expert_bytes * o.top_k / after);
      }
      before = after;
    }
    if (progress) progress(round);
  }
  result.checksum = sink;
  return result;
}

}  // namespace assay
