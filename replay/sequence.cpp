#include "replay/sequence.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "replay/spill.h"
#include "replay/temporary_path.h"
#include "traces/convert.h"
#include "traces/flat.h"

namespace assay::replay {
namespace {

TraceReader open_structured(const std::string& path, TraceKind kind) {
  if (kind == TraceKind::kMrt) {
    TraceReader reader(path);
    try {
      reader.verify_crc();
    } catch (const CheckError& e) {
      throw InputError(std::string(e.what()) + "; capture it again");
    }
    return reader;
  }
  const TemporaryPath converted;
  if (kind == TraceKind::kJsonl) {
    jsonl_to_mrt(path, converted.get());
  } else {
    csv_to_mrt(path, converted.get());
  }
  return TraceReader(converted.get());
}

}  // namespace

struct Sequence::Impl {
  // Steps [first, first + steps) of the sequence are records [record, ..) of an input, or accesses of a log.
  struct Segment {
    std::size_t input;
    std::uint64_t record;
    std::uint64_t first;
    std::uint64_t steps;
    std::uint32_t conversation;
  };
  std::vector<std::string> paths;
  TraceGeometry geometry;
  bool flat = false;
  int flat_experts = 0;
  std::uint32_t objects = 0;
  std::uint64_t steps = 0;
  std::uint64_t expert_bytes = 0;
  bool has_weights = true;
  bool sealed = true;
  std::string label;
  std::vector<TraceReader> readers;
  std::vector<std::unique_ptr<Spill>> logs;
  std::vector<Segment> segments;
  std::vector<SequenceConversation> conversations;
  TraceStep step;

  void open(const SequenceOptions& options) {
    if (paths.empty()) throw UserError("no input trace");
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      const TraceKind kind = kind_of_input(paths[i]);
      const bool is_flat = kind == TraceKind::kIds || kind == TraceKind::kOracleGeneral;
      if (i != 0 && is_flat != flat)
        throw InputError(
            paths[i] +
            ": byte 0: a flat access log and a trace with layers cannot be replayed together");
      flat = is_flat;
      if (is_flat) {
        logs.push_back(std::make_unique<Spill>(0));
        read_flat(paths[i],
                  kind == TraceKind::kIds ? FlatKind::kIds : FlatKind::kOracleGeneral,
                  [&](std::span<const std::uint32_t> objects_read) {
                    for (const auto o : objects_read) largest = std::max(largest, o);
                    logs.back()->append(objects_read);
                  });
        add(options, {i, 0, Split::kTrain, 0, logs.back()->size()}, 0);
      } else {
        readers.push_back(open_structured(paths[i], kind));
        const TraceInfo& info = readers.back().info();
        if (i != 0 && !(info.format.geometry == geometry)) {
          throw InputError(paths[i] +
                           ": byte 20: mixed geometries: " + info.format.geometry.describe() +
                           " here, " + geometry.describe() + " in " + paths[0]);
        }
        geometry = info.format.geometry;
        has_weights = has_weights && info.format.weights != WeightKind::kNone;
        sealed = sealed && info.sealed;
        if (i == 0) expert_bytes = info.format.expert_bytes;
        if (expert_bytes != info.format.expert_bytes) expert_bytes = 0;
        if (i == 0) label = info.format.label;
        for (const auto& c : info.conversations)
          add(options, {i, c.id, c.split, 0, c.steps}, c.first);
      }
    }
    if (steps == 0) {
      throw InputError(paths[0] + ": byte 32: no steps" +
                       (options.split ? std::string(" in the split ") + to_string(*options.split)
                                      : std::string()));
    }
    if (flat) {
      has_weights = false;
      flat_experts = options.experts;
      // Policies keep arrays over objects. Ids far beyond the number of accesses are hashes, not object numbers.
      if (largest > (std::uint32_t{1} << 28)) {
        throw InputError(paths[0] + ": byte 0: object id " + std::to_string(largest) +
                         " is above 2^28: number the objects from 0 first");
      }
      const auto experts = static_cast<std::uint32_t>(options.experts > 0 ? options.experts : 0);
      geometry = {experts != 0 ? static_cast<int>(largest / experts + 1) : 1,
                  static_cast<int>(experts != 0 ? experts : largest + 1),
                  1};
      objects = experts != 0 ? static_cast<std::uint32_t>(geometry.layers) * experts : largest + 1;
    } else {
      objects = static_cast<std::uint32_t>(geometry.layers) *
                static_cast<std::uint32_t>(geometry.experts);
    }
  }

  void add(const SequenceOptions& options, SequenceConversation c, std::uint64_t record) {
    if (options.split && c.split != *options.split) return;
    if (options.max_steps != 0) c.steps = std::min(c.steps, options.max_steps - steps);
    if (c.steps == 0) return;
    c.first = steps;
    segments.push_back(
        {c.input, record, steps, c.steps, static_cast<std::uint32_t>(conversations.size())});
    conversations.push_back(c);
    steps += c.steps;
  }

  void decode_records(
      const Segment& s, std::uint64_t first, std::size_t count, bool with_weights, Block& b) {
    const auto k = static_cast<std::size_t>(geometry.top_k);
    const auto layers = static_cast<std::size_t>(geometry.layers);
    const auto experts = static_cast<std::uint32_t>(geometry.experts);
    for (std::size_t done = 0; done < count;) {
      TraceReader& reader = readers[s.input];
      const RecordBlock r =
          reader.read(s.record + (first - s.first) + done,
                      std::min(count - done, window_records(reader.info().format)));
      const bool narrow = r.format->id_bytes == 1;
      for (std::size_t i = 0; i < r.count; ++i) {
        if (with_weights) r.decode(i, step);
        std::size_t at = b.objects.size();
        b.objects.resize(at + layers * k);
        if (with_weights) b.weights.resize(at + layers * k);
        const std::byte* ids = r.ids(i);
        std::uint32_t base = 0;
        for (std::size_t l = 0; l < layers; ++l, base += experts) {
          for (std::size_t j = 0; j < k; ++j) {
            const std::size_t p = l * k + j;
            std::uint32_t id = 0;
            if (narrow) {
              id = static_cast<std::uint8_t>(ids[p]);
              if (id == 0xFF) continue;
            } else {
              id = static_cast<std::uint32_t>(ids[2 * p]) |
                   static_cast<std::uint32_t>(ids[2 * p + 1]) << 8;
              if (id == 0xFFFF) continue;
            }
            if (with_weights) b.weights[at] = step.weights[p];
            b.objects[at++] = base + id;
          }
          b.group_end.push_back(static_cast<std::uint32_t>(at));
        }
        b.objects.resize(at);
        if (with_weights) b.weights.resize(at);
        b.conversation.push_back(s.conversation);
      }
      done += r.count;
    }
  }

  void decode(std::uint64_t first, std::size_t count, bool with_weights, Block& b) {
    if (first >= steps) throw std::out_of_range("Sequence::decode");
    count = static_cast<std::size_t>(std::min<std::uint64_t>(count, steps - first));
    b.first_step = first;
    b.steps = count;
    b.groups_per_step = flat ? 1 : static_cast<std::uint32_t>(geometry.layers);
    b.objects.clear();
    b.group_end.clear();
    b.weights.clear();
    b.conversation.clear();
    b.next.clear();
    auto s = std::upper_bound(segments.begin(),
                              segments.end(),
                              first,
                              [](std::uint64_t v, const Segment& x) { return v < x.first; }) -
             1;
    for (std::size_t done = 0; done < count; ++s) {
      const std::uint64_t at = first + done;
      const auto n =
          static_cast<std::size_t>(std::min<std::uint64_t>(count - done, s->first + s->steps - at));
      if (flat) {
        const std::size_t had = b.objects.size();
        b.objects.resize(had + n);
        logs[s->input]->read(s->record + (at - s->first), {b.objects.data() + had, n});
        for (std::size_t i = 0; i < n; ++i)
          b.group_end.push_back(static_cast<std::uint32_t>(had + i + 1));
        b.conversation.insert(b.conversation.end(), n, s->conversation);
      } else {
        decode_records(*s, at, n, with_weights && has_weights, b);
      }
      done += n;
    }
  }
};

Sequence::Sequence(const std::vector<std::string>& paths, const SequenceOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->paths = paths;
  impl_->open(options);
}
Sequence::~Sequence() = default;
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;

const std::vector<std::string>& Sequence::paths() const { return impl_->paths; }
const TraceGeometry& Sequence::geometry() const { return impl_->geometry; }
bool Sequence::flat() const { return impl_->flat; }
bool Sequence::has_weights() const { return impl_->has_weights; }
std::uint64_t Sequence::expert_bytes() const { return impl_->expert_bytes; }
bool Sequence::sealed() const { return impl_->sealed; }
std::string Sequence::label() const { return impl_->label; }
std::uint64_t Sequence::steps() const { return impl_->steps; }
std::uint32_t Sequence::objects() const { return impl_->objects; }
std::uint32_t Sequence::groups_per_step() const {
  return impl_->flat ? 1 : static_cast<std::uint32_t>(impl_->geometry.layers);
}
const std::vector<SequenceConversation>& Sequence::conversations() const {
  return impl_->conversations;
}
std::uint32_t Sequence::layer_of(std::uint32_t object) const {
  return impl_->flat && impl_->flat_experts <= 0
             ? 0
             : object / static_cast<std::uint32_t>(impl_->geometry.experts);
}
std::size_t Sequence::block_steps() const {
  const auto per_step =
      static_cast<std::size_t>(groups_per_step()) * static_cast<std::size_t>(impl_->geometry.top_k);
  return std::max<std::size_t>(1, 65536 / per_step);
}
void Sequence::decode(std::uint64_t first, std::size_t count, bool with_weights, Block& block) {
  impl_->decode(first, count, with_weights, block);
}

struct NextUse::Impl {
  explicit Impl(std::uint64_t places) : distance(places) {}
  Spill distance;  // by place; places of padding are undefined
  std::uint64_t step_places = 0;
  std::uint64_t top_k = 0;
  mutable std::vector<std::uint32_t> window;
};

NextUse::NextUse(Sequence& sequence, void (*progress)(void*, std::uint64_t), void* context) {
  const auto k = static_cast<std::uint64_t>(sequence.geometry().top_k);
  const std::uint64_t step_places = sequence.groups_per_step() * k;
  impl_ = std::make_unique<Impl>(sequence.steps() * step_places);
  impl_->step_places = step_places;
  impl_->top_k = k;
  constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::vector<std::uint64_t> seen(sequence.objects(), kNone);
  std::vector<std::uint32_t>& window = impl_->window;
  Block b;
  const std::size_t count = sequence.block_steps();
  std::uint64_t end = sequence.steps();
  while (end > 0) {
    const std::uint64_t first = (end - 1) / count * count;
    sequence.decode(first, static_cast<std::size_t>(end - first), false, b);
    window.assign(b.steps * step_places, kNeverAgain);
    const std::uint64_t base = first * step_places;
    for (std::size_t g = b.groups(); g-- > 0;) {
      const std::uint32_t begin = g == 0 ? 0 : b.group_end[g - 1];
      for (std::uint32_t i = b.group_end[g]; i-- > begin;) {
        const std::uint64_t place = g * k + (i - begin);
        std::uint64_t& last = seen[b.objects[i]];
        if (last != kNone)
          window[place] = static_cast<std::uint32_t>(
              std::min<std::uint64_t>(last - (base + place), kNeverAgain));
        last = base + place;
      }
    }
    impl_->distance.write(base, window);
    end = first;
    if (progress != nullptr) progress(context, sequence.steps() - end);
  }
}
NextUse::~NextUse() = default;

void NextUse::fill(Block& b) const {
  const std::uint64_t k = impl_->top_k;
  auto& window = impl_->window;
  window.resize(b.steps * impl_->step_places);
  impl_->distance.read(b.first_step * impl_->step_places, window);
  b.next.resize(b.objects.size());
  if (b.objects.size() == window.size()) {
    std::copy(window.begin(), window.end(), b.next.begin());
    return;
  }
  for (std::size_t g = 0; g < b.groups(); ++g) {
    const std::uint32_t begin = g == 0 ? 0 : b.group_end[g - 1];
    for (std::uint32_t i = begin; i < b.group_end[g]; ++i) b.next[i] = window[g * k + (i - begin)];
  }
}

}  // namespace assay::replay
