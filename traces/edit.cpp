#include "traces/edit.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "kernels/base/error.h"
#include "kernels/base/rng.h"

namespace assay {
namespace {

constexpr std::size_t kLabelBytes = 68;

// Copies records [first, first + steps) of the reader into the writer's present conversation.
void copy_records(TraceReader& reader,
                  std::uint64_t first,
                  std::uint64_t steps,
                  TraceWriter& writer) {
  TraceStep s;
  const std::size_t window = window_records(reader.info().format);
  for (std::uint64_t done = 0; done < steps;) {
    const RecordBlock b = reader.read(
        first + done, static_cast<std::size_t>(std::min<std::uint64_t>(window, steps - done)));
    for (std::size_t i = 0; i < b.count; ++i) {
      b.decode(i, s);
      writer.append(s);
    }
    done += b.count;
  }
}

}  // namespace

void cut_trace(const std::string& in, const std::string& out, const CutOptions& options) {
  TraceReader reader(in);
  const TraceInfo& info = reader.info();
  for (const auto id : options.conversations) {
    const auto& c = info.conversations;
    if (std::none_of(c.begin(), c.end(), [&](const Conversation& x) { return x.id == id; })) {
      throw UserError(in + ": no conversation " + std::to_string(id));
    }
  }
  const std::uint64_t first = options.first_step;
  const std::uint64_t end =
      options.steps == 0 || options.steps > info.steps ? info.steps : first + options.steps;
  TraceWriter writer(out, info.format);
  for (const auto& c : info.conversations) {
    const auto& ids = options.conversations;
    if (!ids.empty() && std::find(ids.begin(), ids.end(), c.id) == ids.end()) continue;
    if (options.split && c.split != *options.split) continue;
    const std::uint64_t from = std::max(c.first, first);
    const std::uint64_t to = std::min(c.first + c.steps, end);
    if (from >= to) continue;
    writer.begin_conversation(c.id, c.split);
    copy_records(reader, from, to - from, writer);
  }
  if (writer.steps() == 0)
    throw UserError(in + ": the cut leaves no steps of " + std::to_string(info.steps));
  writer.seal();
}

void merge_traces(const std::vector<std::string>& in, const std::string& out) {
  std::vector<TraceReader> readers;
  std::set<std::uint32_t> ids;
  std::size_t conversations = 0;
  for (const auto& path : in) {
    readers.emplace_back(path);
    const TraceFormat& f = readers.back().info().format;
    const TraceFormat& g = readers[0].info().format;
    if (!(f.geometry == g.geometry) || f.id_bytes != g.id_bytes || f.weights != g.weights) {
      throw UserError(path + " and " + in[0] + " differ in geometry, id width or weight kind: " +
                      f.geometry.describe() + " against " + g.geometry.describe());
    }
    for (const auto& c : readers.back().info().conversations) ids.insert(c.id);
    conversations += readers.back().info().conversations.size();
  }
  if (readers.empty()) throw UserError("nothing to merge");
  const bool renumber = ids.size() != conversations;
  TraceWriter writer(out, readers[0].info().format);
  std::uint32_t next = 0;
  for (auto& r : readers) {
    for (const auto& c : r.info().conversations) {
      writer.begin_conversation(renumber ? next : c.id, c.split);
      ++next;
      copy_records(r, c.first, c.steps, writer);
    }
  }
  writer.seal();
}

void compose_trace(const std::string& in, const std::string& out, const ComposeOptions& options) {
  TraceReader reader(in);
  const TraceInfo& info = reader.info();
  const TraceGeometry& from = info.format.geometry;
  const TraceGeometry& to = options.geometry;
  if (to.experts != 2 * from.experts || to.top_k > 2 * from.top_k || to.top_k % 2 != 0) {
    throw UserError("compose: " + to.describe() + " cannot be made from " + from.describe() +
                    ": experts must be " + std::to_string(2 * from.experts) +
                    ", top-k even and at most " + std::to_string(2 * from.top_k));
  }
  TraceFormat format = info.format;
  format.geometry = to;
  format.id_bytes = to.experts <= 255 ? 1 : 2;
  format.weights = WeightKind::kNone;
  format.expert_bytes = 0;
  format.label = ((options.uniform ? "uniform routing, shape of composed " : "composed from ") +
                  info.format.label)
                     .substr(0, kLabelBytes);
  // Conversations by split and length: a partner of similar length loses few steps.
  std::vector<std::size_t> order(info.conversations.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto& cs = info.conversations;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return cs[a].split != cs[b].split ? cs[a].split < cs[b].split : cs[a].steps < cs[b].steps;
  });
  std::vector<std::size_t> rank(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) rank[order[i]] = i;

  Rng rng(options.seed);  // of the pairing: the same with and without `uniform`
  Rng uniform_rng(options.seed ^ seed_from_name("uniform"));
  const auto layers = static_cast<std::size_t>(to.layers);
  const auto source_layers = static_cast<std::size_t>(from.layers);
  const auto half = static_cast<std::size_t>(to.top_k) / 2;
  const auto k = static_cast<std::size_t>(to.top_k);
  const std::size_t cycles = (layers + source_layers - 1) / source_layers;
  constexpr std::size_t kNeighbours = 6;
  TraceWriter writer(out, format);
  TraceStep source;
  TraceStep step;
  std::vector<std::vector<std::int32_t>> ids(
      2 * cycles);  // of the present conversation's sources, all steps
  for (std::size_t c = 0; c < cs.size(); ++c) {
    std::vector<std::size_t> sources = {c};
    while (sources.size() < 2 * cycles) {
      const std::size_t low = rank[c] > kNeighbours ? rank[c] - kNeighbours : 0;
      const std::size_t high = std::min(order.size() - 1, rank[c] + kNeighbours);
      const std::size_t pick = order[low + rng.below(high - low + 1)];
      if (cs[pick].split == cs[c].split || sources.size() > 64 * cycles) sources.push_back(pick);
    }
    std::uint64_t steps = cs[c].steps;
    for (const auto s : sources) steps = std::min(steps, cs[s].steps);
    if (steps == 0) continue;
    const std::size_t per_step = info.format.ids_per_step();
    for (std::size_t s = 0; s < sources.size(); ++s) {
      ids[s].clear();
      for (std::uint64_t done = 0; done < steps;) {
        const RecordBlock b = reader.read(cs[sources[s]].first + done,
                                          static_cast<std::size_t>(std::min<std::uint64_t>(
                                              window_records(info.format), steps - done)));
        for (std::size_t i = 0; i < b.count; ++i) {
          b.decode(i, source);
          ids[s].insert(ids[s].end(), source.ids.begin(), source.ids.end());
        }
        done += b.count;
      }
    }
    writer.begin_conversation(cs[c].id, cs[c].split);
    for (std::uint64_t t = 0; t < steps; ++t) {
      step.position = static_cast<std::uint32_t>(t);
      step.ids.assign(layers * k, kPaddingId);
      for (std::size_t l = 0; l < layers; ++l) {
        std::int32_t* row = step.ids.data() + l * k;
        if (options.uniform) {
          for (std::size_t r = 0; r < k; ++r) {
            do {
              row[r] = static_cast<std::int32_t>(
                  uniform_rng.below(static_cast<std::uint64_t>(to.experts)));
            } while (std::find(row, row + r, row[r]) != row + r);
          }
          continue;
        }
        const std::size_t cycle = l / source_layers;
        const std::size_t at = static_cast<std::size_t>(t) * per_step +
                               (l % source_layers) * static_cast<std::size_t>(from.top_k);
        for (std::size_t r = 0; r < half; ++r) {
          const std::int32_t a = ids[2 * cycle][at + r];
          const std::int32_t b = ids[2 * cycle + 1][at + r];
          row[2 * r] = a;
          row[2 * r + 1] = b == kPaddingId ? kPaddingId : b + from.experts;
        }
      }
      writer.append(step);
    }
  }
  if (writer.steps() == 0) throw UserError(in + ": nothing to compose from");
  writer.seal();
}

}  // namespace assay
