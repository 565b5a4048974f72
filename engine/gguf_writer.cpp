#include "engine/gguf_writer.h"

#include <bit>
#include <cassert>
#include <cstring>

namespace assay {
namespace {

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}
void put_text(std::string& out, std::string_view text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}

}  // namespace

GgufWriter::GgufWriter(std::uint32_t version, std::uint64_t alignment)
    : version_(version), alignment_(alignment) {
  assert(std::has_single_bit(alignment));
}

void GgufWriter::key(std::string_view name, MetaType type) {
  put_text(metadata_, name);
  put(metadata_, static_cast<std::uint32_t>(type));
  ++n_keys_;
}
void GgufWriter::array(std::string_view name, MetaType element, std::uint64_t count) {
  key(name, MetaType::kArray);
  put(metadata_, static_cast<std::uint32_t>(element));
  put(metadata_, count);
}

void GgufWriter::add_u32(std::string_view name, std::uint32_t value) {
  key(name, MetaType::kU32);
  put(metadata_, value);
}
void GgufWriter::add_i32(std::string_view name, std::int32_t value) {
  key(name, MetaType::kI32);
  put(metadata_, value);
}
void GgufWriter::add_f32(std::string_view name, float value) {
  key(name, MetaType::kF32);
  put(metadata_, value);
}
void GgufWriter::add_bool(std::string_view name, bool value) {
  key(name, MetaType::kBool);
  put<std::uint8_t>(metadata_, value ? 1 : 0);
}
void GgufWriter::add_text(std::string_view name, std::string_view value) {
  key(name, MetaType::kString);
  put_text(metadata_, value);
}
void GgufWriter::add_i32s(std::string_view name, std::span<const std::int32_t> values) {
  array(name, MetaType::kI32, values.size());
  for (const std::int32_t v : values) put(metadata_, v);
}
void GgufWriter::add_f32s(std::string_view name, std::span<const float> values) {
  array(name, MetaType::kF32, values.size());
  for (const float v : values) put(metadata_, v);
}
void GgufWriter::add_bools(std::string_view name, const std::vector<bool>& values) {
  array(name, MetaType::kBool, values.size());
  for (const bool v : values) put<std::uint8_t>(metadata_, v ? 1 : 0);
}
void GgufWriter::add_texts(std::string_view name, std::span<const std::string> values) {
  array(name, MetaType::kString, values.size());
  for (const std::string& v : values) put_text(metadata_, v);
}

void GgufWriter::add_tensor(std::string name,
                            BlockType type,
                            std::initializer_list<std::int64_t> ne) {
  TensorInfo t;
  t.name = std::move(name);
  t.type = type;
  t.dims = static_cast<int>(ne.size());
  std::copy(ne.begin(), ne.end(), t.ne.begin());
  assert(t.ne[0] % static_cast<std::int64_t>(block_elements(type)) == 0);
  t.bytes = static_cast<std::uint64_t>(t.elements()) / block_elements(type) * block_bytes(type);
  t.offset = tensors_.empty() ? 0 : pad(tensors_.back().offset + tensors_.back().bytes);
  tensors_.push_back(std::move(t));
}

std::uint64_t GgufWriter::unpadded_head_bytes() const {
  std::uint64_t n = 24 + metadata_.size();
  for (const TensorInfo& t : tensors_)
    n += 8 + t.name.size() + 4 + 8 * static_cast<std::uint64_t>(t.dims) + 4 + 8;
  return n;
}

std::string GgufWriter::head() const {
  std::string out = "GGUF";
  put(out, version_);
  put<std::uint64_t>(out, tensors_.size());
  put(out, n_keys_);
  out += metadata_;
  for (const TensorInfo& t : tensors_) {
    put_text(out, t.name);
    put(out, static_cast<std::uint32_t>(t.dims));
    for (int d = 0; d < t.dims; ++d) put(out, t.ne[static_cast<std::size_t>(d)]);
    put(out, static_cast<std::uint32_t>(t.type));
    put(out, t.offset);
  }
  assert(out.size() == unpadded_head_bytes());
  out.resize(pad(out.size()), '\0');
  return out;
}

std::vector<TensorInfo> GgufWriter::tensors() const {
  std::vector<TensorInfo> out = tensors_;
  const std::uint64_t data = pad(unpadded_head_bytes());
  for (TensorInfo& t : out) t.offset += data;
  return out;
}

std::uint64_t GgufWriter::file_bytes() const {
  const std::uint64_t data = pad(unpadded_head_bytes());
  return tensors_.empty() ? data : data + pad(tensors_.back().offset + tensors_.back().bytes);
}

}  // namespace assay
