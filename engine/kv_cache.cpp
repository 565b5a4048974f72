#include "engine/kv_cache.h"

#include <algorithm>

namespace assay {
namespace {

constexpr std::size_t kAlign = 64;

int layer_slots(const LayerConfig& layer, int context) {
  return layer.window > 0 ? std::min(layer.window, context) : context;
}
// One layer's keys (or values), padded so that the next array starts aligned.
std::size_t array_bytes(const LayerConfig& layer, KvType type, int context) {
  const std::size_t n = static_cast<std::size_t>(layer_slots(layer, context)) *
                        static_cast<std::size_t>(layer.kv_width()) * kv_bytes(type);
  return (n + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

std::size_t KvCache::bytes_for(const ModelConfig& config, KvType type, int context) {
  std::size_t bytes = 0;
  for (const auto& layer : config.layer) bytes += 2 * array_bytes(layer, type, context);
  return bytes;
}

KvCache::KvCache(const ModelConfig& config, KvType type, int context, const MemorySpace& space)
    : type_(type),
      context_(context),
      space_(&space),
      memory_(space.allocate(bytes_for(config, type, context), "the KV cache")) {
  std::byte* at = memory_.data();
  for (const auto& layer : config.layer) {
    Layer l;
    l.slots = layer_slots(layer, context);
    const std::size_t bytes = array_bytes(layer, type, context);
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

}  // namespace assay
