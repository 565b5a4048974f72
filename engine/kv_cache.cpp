#include "engine/kv_cache.h"

#include <algorithm>
#include <stdexcept>

#include <sys/mman.h>

namespace assay {
namespace {

constexpr std::size_t kAlign = 64;

int layer_slots(const LayerConfig& layer, int context, int slack) {
  return layer.window > 0 ? std::min(layer.window + slack, context) : context;
}
// One layer's keys (or values), padded so that the next array starts aligned.
std::size_t array_bytes(const LayerConfig& layer, KvType type, int context, int slack) {
  const std::size_t n = static_cast<std::size_t>(layer_slots(layer, context, slack)) *
                        static_cast<std::size_t>(layer.kv_width()) * kv_bytes(type);
  return (n + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

std::size_t KvCache::bytes_for(const ModelConfig& config, KvType type, int context, int slack) {
  std::size_t bytes = 0;
  for (const auto& layer : config.layer) bytes += 2 * array_bytes(layer, type, context, slack);
  return bytes;
}

KvCache::KvCache(
    const ModelConfig& config, KvType type, int context, const MemorySpace& space, int slack)
    : type_(type),
      context_(context),
      space_(&space),
      memory_(space.allocate(bytes_for(config, type, context, slack), "the KV cache")) {
  std::byte* at = memory_.data();
  for (const auto& layer : config.layer) {
    Layer l;
    l.slots = layer_slots(layer, context, slack);
    l.window = layer.window;
    const std::size_t bytes = array_bytes(layer, type, context, slack);
    if (type == KvType::kF32) {
      l.k_f32 = reinterpret_cast<float*>(at);
      l.v_f32 = reinterpret_cast<float*>(at + bytes);
    } else {
      l.k_f16 = reinterpret_cast<std::uint16_t*>(at);
      l.v_f16 = reinterpret_cast<std::uint16_t*>(at + bytes);
    }
    const auto first = static_cast<std::size_t>(at - memory_.data());
    offsets_.push_back({l.slots, first / kv_bytes(type), (first + bytes) / kv_bytes(type)});
    at += 2 * bytes;
    layers_.push_back(l);
    widths_.push_back(layer.kv_width());
  }
}

float* KvCache::f32() const {
  return type_ == KvType::kF32 ? reinterpret_cast<float*>(memory_.data()) : nullptr;
}
std::uint16_t* KvCache::f16() const {
  return type_ == KvType::kF16 ? reinterpret_cast<std::uint16_t*>(memory_.data()) : nullptr;
}

KvRows KvCache::keys(int index) const { return {layer(index).k_f32, layer(index).k_f16}; }
KvRows KvCache::values(int index) const { return {layer(index).v_f32, layer(index).v_f16}; }

pointwise::KvRow KvCache::key_row(int index, int position) const {
  const Layer& l = layer(index);
  const std::size_t at =
      static_cast<std::size_t>(position % l.slots) * static_cast<std::size_t>(width(index));
  return type_ == KvType::kF32 ? pointwise::KvRow{.f32 = l.k_f32 + at}
                               : pointwise::KvRow{.f16 = l.k_f16 + at};
}

pointwise::KvRow KvCache::value_row(int index, int position) const {
  const Layer& l = layer(index);
  const std::size_t at =
      static_cast<std::size_t>(position % l.slots) * static_cast<std::size_t>(width(index));
  return type_ == KvType::kF32 ? pointwise::KvRow{.f32 = l.v_f32 + at}
                               : pointwise::KvRow{.f16 = l.v_f16 + at};
}

void KvCache::commit(int index, int first, int tokens, KvRows keys, KvRows values) {
  const Layer& l = layer(index);
  const auto width = static_cast<std::size_t>(this->width(index));
  const int skipped = std::max(0, tokens - l.slots);
  for (int t = skipped; t < tokens;) {
    const int slot = (first + t) % l.slots;
    const int run = std::min(tokens - t, l.slots - slot);
    const std::size_t from = static_cast<std::size_t>(t) * width;
    const std::size_t to = static_cast<std::size_t>(slot) * width;
    const std::size_t bytes = static_cast<std::size_t>(run) * width * kv_bytes(type_);
    if (type_ == KvType::kF32) {
      space_->copy(l.k_f32 + to, keys.f32 + from, bytes);
      space_->copy(l.v_f32 + to, values.f32 + from, bytes);
    } else {
      space_->copy(l.k_f16 + to, keys.f16 + from, bytes);
      space_->copy(l.v_f16 + to, values.f16 + from, bytes);
    }
    t += run;
  }
}

namespace {
// The oldest position whose row the token at `position` needs in a layer; window 0: a global layer.
int oldest_saved(int window, int position) {
  return window > 0 ? std::max(0, position - (window - 1)) : 0;
}
}  // namespace

std::size_t KvCache::saved_bytes(const ModelConfig& config, KvType type, int position, Part part) {
  std::size_t bytes = 0;
  for (const auto& layer : config.layer) {
    if (part == Part::kLocal && layer.window == 0) continue;
    bytes += 2 * static_cast<std::size_t>(position - oldest_saved(layer.window, position)) *
             static_cast<std::size_t>(layer.kv_width()) * kv_bytes(type);
  }
  return bytes;
}

// run(first byte, bytes) for every stretch of memory that save and load move, in their order.
template <class F>
void KvCache::each_saved(int position, Part part, F&& run) const {
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    const Layer& l = layer(i);
    if (part == Part::kLocal && l.window == 0) continue;
    const int first = oldest_saved(l.window, position);
    const std::size_t row = static_cast<std::size_t>(width(i)) * kv_bytes(type_);
    for (const bool value : {false, true}) {
      const auto& at = offsets_[static_cast<std::size_t>(i)];
      std::byte* base = memory_.data() + (value ? at.v : at.k) * kv_bytes(type_);
      for (int j = first; j < position;) {
        const int slot = j % l.slots;
        const int rows = std::min(position - j, l.slots - slot);
        run(base + static_cast<std::size_t>(slot) * row, static_cast<std::size_t>(rows) * row);
        j += rows;
      }
    }
  }
}

std::size_t KvCache::saved_bytes(int position, Part part) const {
  std::size_t bytes = 0;
  each_saved(position, part, [&](const std::byte*, std::size_t n) { bytes += n; });
  return bytes;
}
void KvCache::save(int position, Part part, std::byte* to) const {
  each_saved(position, part, [&](const std::byte* at, std::size_t n) {
    space_->get(to, at, n);
    to += n;
  });
}
void KvCache::load(int position, Part part, const std::byte* from) {
  each_saved(position, part, [&](std::byte* at, std::size_t n) {
    space_->put(at, from, n);
    from += n;
  });
}

std::size_t KvCache::touch(int rows) {
  constexpr std::size_t kPage = 4096;
  std::size_t resident = 0;
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    const auto& at = offsets_[static_cast<std::size_t>(i)];
    const std::size_t bytes = static_cast<std::size_t>(std::min(rows, layer(i).slots)) *
                              static_cast<std::size_t>(width(i)) * kv_bytes(type_);
    for (const std::size_t first : {at.k * kv_bytes(type_), at.v * kv_bytes(type_)}) {
      const std::size_t begin = first / kPage * kPage;
      const std::size_t end =
          std::min((first + bytes + kPage - 1) / kPage * kPage, memory_.bytes());
      // Older kernels lack the advice; their pages come with the first store. A card's memory is there from the start.
      if (bytes > 0 && !space_->on_card())
        ::madvise(memory_.data() + begin, end - begin, MADV_POPULATE_WRITE);
      resident += bytes;
    }
  }
  return resident;
}

bool Sequence::can_cut(int at) const {
  if (at < 0 || at > position) return false;
  if (at == 0) return true;  // nothing before it
  for (int i = 0; i < static_cast<int>(cache.offsets().size()); ++i) {
    const int window = cache.layer(i).window;
    if (window > 0 && oldest_saved(window, at) < local_from) return false;
  }
  return true;
}
void Sequence::cut(int at) {
  if (!can_cut(at)) throw std::logic_error("the ring no longer holds the rows before the cut");
  position = at;
  if (at == 0) local_from = 0;
}
void Sequence::wrote() {
  for (int i = 0; i < static_cast<int>(cache.offsets().size()); ++i) {
    if (cache.layer(i).window > 0)
      local_from = std::max(local_from, position - cache.layer(i).slots);
  }
}
std::vector<std::byte> Sequence::local_rows() const {
  std::vector<std::byte> out(cache.saved_bytes(position, KvCache::Part::kLocal));
  cache.save(position, KvCache::Part::kLocal, out.data());
  return out;
}
void Sequence::restore_local(int at, const std::byte* rows) {
  cache.load(at, KvCache::Part::kLocal, rows);
  restored(at);
}
void Sequence::restored(int at) {
  position = at;
  local_from = 0;
  for (int i = 0; i < static_cast<int>(cache.offsets().size()); ++i) {
    const int window = cache.layer(i).window;
    if (window > 0) local_from = std::max(local_from, oldest_saved(window, at));
  }
}
std::vector<std::byte> Sequence::rows() const {
  std::vector<std::byte> out(cache.saved_bytes(position, KvCache::Part::kAll));
  cache.save(position, KvCache::Part::kAll, out.data());
  return out;
}
void Sequence::restore(int at, const std::byte* rows) {
  cache.load(at, KvCache::Part::kAll, rows);
  restored(at);
}
std::size_t Sequence::reserve(int rows) {
  reserved = std::max(reserved, std::min(rows, cache.context()));
  return cache.touch(reserved);
}

}  // namespace assay
