// From a contract type to an OpInfo. Included by generated tables only.
//
// A kernel op's type `Op` provides:
//   static constexpr const char *kName, *kSwitch, *kSummary;
//   static constexpr OpKind kKind;
//   struct Shape { ..; std::string describe() const; };   // "tokens=1 rows=64 cols=256 type=q4_0 numerics=exact"
//   struct Args { .. };                                   // typed pointers
//   template <class V> static void fields(const Shape&, Args&, V&& v);
//       // v("x", a.x, count, Dir::kIn) for every pointer; v.quant("w", a.w, type, rows, cols) for a QuantView
//   struct Case { std::string name; Shape shape; bool mostly_nonfinite = false; .. };   // own extras allowed
//   static std::vector<Case> cases();
//   static void fill(const Case&, const Filler&);         // writes every kIn and kInOut field
//   static std::vector<std::vector<double>> reference(const Shape&, const Args&);
//   static std::size_t workspace_bytes(const Shape&);
//   static double error_bound(const Shape&), bytes_moved(const Shape&), flops(const Shape&);
//   static constexpr bool kTokenRows = true;   // optional: the shape's `tokens` rows are independent and outermost in every
//       // field that has them, so parity may compare each row with the same row computed alone (batch_invariant)
// A composite or policy op without cases provides the constants, Shape and Args only.
#pragma once
#include <concepts>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/device_problem.h"
#include "kernels/base/op_info.h"
#include "kernels/base/registry.h"
#include "kernels/base/rng.h"

namespace assay {

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) {
    return DType::kF32;
  } else if constexpr (std::is_same_v<T, std::uint16_t>) {
    return DType::kF16;
  } else if constexpr (std::is_same_v<T, std::int8_t>) {
    return DType::kI8;
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    return DType::kI32;
  } else {
    static_assert(std::is_same_v<T, std::byte> || std::is_same_v<T, std::uint8_t>,
                  "field type has no DType");
    return DType::kU8;
  }
}

// What Op::fill sees: its problem's input buffers by name, and the seed.
class Filler {
 public:
  Filler(std::vector<Field>& fields, std::uint64_t seed) : fields_(fields), seed_(seed) {}
  std::uint64_t seed() const { return seed_; }
  // The field's buffer; std::logic_error when the name or the type does not match the contract.
  template <class T>
  std::span<T> get(std::string_view name) const {
    for (auto& f : fields_) {
      if (f.name == name) {
        if (f.dtype != dtype_of<T>()) throw std::logic_error("field type differs: " + f.name);
        return {reinterpret_cast<T*>(f.data), f.count};
      }
    }
    throw std::logic_error("no field " + std::string(name));
  }

 private:
  std::vector<Field>& fields_;
  std::uint64_t seed_;
};

namespace op_impl_detail {

// An aligned buffer between two guards of fence bytes. The data starts 256-byte aligned and ends flush against the
// rear guard, so that one element too far is seen.
class GuardedBuffer {
 public:
  static constexpr std::size_t kGuard = 256;
  static constexpr unsigned char kFence = 0xA5;
  static constexpr unsigned char kPoison = 0xFF;
  explicit GuardedBuffer(std::size_t bytes)
      : bytes_(bytes),
        raw_(static_cast<std::byte*>(::operator new (bytes + 2 * kGuard, std::align_val_t{256}))) {
    std::memset(raw_, kFence, kGuard);
    std::memset(raw_ + kGuard + bytes_, kFence, kGuard);
    std::memset(raw_ + kGuard, kPoison, bytes_);
  }
  ~GuardedBuffer() {
    if (raw_ != nullptr) ::operator delete (raw_, std::align_val_t{256});
  }
  GuardedBuffer(GuardedBuffer&& o) noexcept
      : bytes_(o.bytes_), raw_(std::exchange(o.raw_, nullptr)) {}
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;
  std::byte* data() const { return raw_ + kGuard; }
  GuardedSpan whole() const { return {raw_, bytes_ + 2 * kGuard, kGuard}; }
  std::size_t size() const { return bytes_; }
  void refence() {
    std::memset(raw_, kFence, kGuard);
    std::memset(raw_ + kGuard + bytes_, kFence, kGuard);
  }
  // Offset (relative to data) of the first changed guard byte, or the maximum value when intact.
  std::ptrdiff_t broken() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (raw_[i] != std::byte{kFence})
        return static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(kGuard);
    }
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (raw_[kGuard + bytes_ + i] != std::byte{kFence})
        return static_cast<std::ptrdiff_t>(bytes_ + i);
    }
    return kIntact;
  }
  static constexpr std::ptrdiff_t kIntact = PTRDIFF_MAX;

 private:
  std::size_t bytes_;
  std::byte* raw_;
};

// Visits a contract's fields and points every argument at a buffer allocated for it.
struct Allocate {
  std::vector<Field>& fields;
  std::vector<GuardedBuffer>& buffers;
  template <class T>
  void operator()(const char* name, T*& pointer, std::size_t count, Dir dir) {
    using Value = std::remove_const_t<T>;
    std::byte* data = add(name, dtype_of<Value>(), count, dir);
    pointer = reinterpret_cast<T*>(data);
  }
  void quant(const char* name, QuantView& view, BlockType type, int rows, int cols) {
    view = make_quant_view(nullptr, type, rows, cols);
    view.data = add(name, DType::kU8, view.bytes(), Dir::kIn);
  }
  std::byte* add(const char* name, DType dtype, std::size_t count, Dir dir) {
    buffers.emplace_back(count * dtype_bytes(dtype));
    fields.push_back({name, dtype, count, dir, buffers.back().data()});
    return buffers.back().data();
  }
};

inline std::byte* align64(std::byte* p) {
  return p + (64 - reinterpret_cast<std::uintptr_t>(p) % 64) % 64;
}

// Swaps every matrix that the layout accepts for its prepared form.
struct ApplyLayout {
  const Layout* layout;
  std::vector<std::vector<std::byte>>& storage;
  template <class T>
  void operator()(const char*, T*&, std::size_t, Dir) {}
  void quant(const char*, QuantView& view, BlockType, int, int) {
    if (!layout->accepts(view)) return;
    storage.emplace_back(layout->prepared_bytes(view) + 64);
    auto* aligned = align64(storage.back().data());
    layout->prepare(view, aligned);
    view.data = aligned;
    view.layout = layout;
  }
};

template <class Op>
concept HasTokenRows = requires(typename Op::Shape s) {
  requires Op::kTokenRows;
  { s.tokens } -> std::convertible_to<int>;
};
template <class Shape>
concept HasNumerics = requires(Shape s) {
  { s.numerics } -> std::convertible_to<Numerics>;
};

// Checks a layout on every matrix that it accepts; keeps the name of the first that does not survive.
struct CheckLayout {
  const Layout* layout;
  std::string& fault;
  template <class T>
  void operator()(const char*, T*&, std::size_t, Dir) {}
  void quant(const char* name, QuantView& view, BlockType, int, int) {
    if (!fault.empty() || !layout->accepts(view)) return;
    std::vector<std::byte> prepared(layout->prepared_bytes(view) + 64);
    auto* aligned = align64(prepared.data());
    layout->prepare(view, aligned);
    std::vector<std::byte> back(view.bytes(), std::byte{0xA5});
    layout->unprepare(view, aligned, back.data());
    if (std::memcmp(back.data(), view.data, back.size()) != 0) {
      fault = std::string(name) + ": unprepare does not give the file's bytes back";
      return;
    }
    if (layout->read_row == nullptr) return;
    QuantView swapped = view;
    swapped.data = aligned;
    swapped.layout = layout;
    std::vector<std::byte> row(view.row_bytes);
    for (int r = 0; r < view.rows; ++r) {
      layout->read_row(swapped, r, row.data());
      if (std::memcmp(row.data(), view.row(r), row.size()) != 0) {
        fault = std::string(name) + ": read_row differs from the file at row " + std::to_string(r);
        return;
      }
    }
  }
};

template <class Op>
class ProblemOf final : public Problem {
 public:
  ProblemOf(typename Op::Case c, std::uint64_t seed)
      : ProblemOf(std::move(c), seed, [](ProblemOf& p) {
          Op::fill(p.case_, Filler(p.fields_, p.seed_));
        }) {}
  const std::string& case_name() const override { return case_.name; }
  std::string shape_text() const override { return case_.shape.describe(); }
  Why ineligible(int variant, const DeviceInfo& device) const override {
    return why_ineligible(*row(variant).variant, case_.shape, device);
  }
  void prepare(int variant) override {
    auto& p = prepared_.at(static_cast<std::size_t>(variant));
    if (p.ready) return;
    p.args = args_;
    if (const Layout* layout = row(variant).variant->layout) {
      Op::fields(case_.shape, p.args, ApplyLayout{layout, p.storage});
    }
    p.ready = true;
  }
  using Problem::reset;
  void reset(std::byte poison) override {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      auto& f = fields_[i];
      if (f.dir == Dir::kInOut && f.bytes() > 0)
        std::memcpy(f.data, pristine_[i].data(), f.bytes());
      if (f.dir == Dir::kOut) std::memset(f.data, static_cast<int>(poison), f.bytes());
      buffers_[i].refence();
    }
    // Scratch is undefined by contract: a kernel that trusts zeros there is found out.
    workspace_.refence();
    std::memset(workspace_.data(), static_cast<int>(poison), workspace_.size());
  }
  void run(int variant, Stream stream) override { run_on_layout_of(variant, variant, stream); }
  void run_on_layout_of(int layout_variant, int variant, Stream stream) override {
    const auto& p = prepared_.at(static_cast<std::size_t>(layout_variant));
    if (!p.ready) throw std::logic_error("run before prepare");
    if (device_) {
      device_->run(layout_variant, variant, p.args, *row(variant).variant);
      return;
    }
    const Workspace ws{workspace_.data(), workspace_.size()};
    row(variant).variant->host.fn(case_.shape, p.args, ws, stream);
  }
  std::string layout_fault(int variant) override {
    std::string fault;
    if (const Layout* layout = row(variant).variant->layout) {
      auto args = args_;
      Op::fields(case_.shape, args, CheckLayout{layout, fault});
    }
    return fault;
  }
  std::vector<Field>& fields() override { return fields_; }
  bool set_input(const Field& from) override {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      const Field& f = fields_[i];
      if (f.dir == Dir::kOut || f.name != from.name || f.dtype != from.dtype ||
          f.count != from.count)
        continue;
      set_bytes(i, from.data);
      return true;
    }
    return false;
  }
  std::uint64_t seed() const override { return seed_; }
  Numerics numerics() const override {
    if constexpr (HasNumerics<typename Op::Shape>) {
      return case_.shape.numerics;
    } else {
      return Numerics::kExact;
    }
  }
  int rows() const override {
    if constexpr (HasTokenRows<Op>) {
      return case_.shape.tokens;
    } else {
      return 0;
    }
  }
  std::unique_ptr<Problem> row_problem(int row_index) const override {
    if constexpr (HasTokenRows<Op>) {
      auto one_case = case_;
      one_case.shape.tokens = 1;
      const auto cut = [&](ProblemOf& one) {
        for (std::size_t i = 0; i < fields_.size(); ++i) {
          const std::size_t part = one.fields_.at(i).bytes();
          const std::size_t whole = fields_[i].bytes();
          const bool shared = part == whole;
          if (!shared && part * static_cast<std::size_t>(case_.shape.tokens) != whole) {
            throw std::logic_error(std::string(Op::kName) + ": field " + fields_[i].name +
                                   " is neither shared nor one part a row, against Op::kTokenRows");
          }
          if (fields_[i].dir == Dir::kOut) continue;
          const std::byte* from =
              fields_[i].dir == Dir::kIn ? fields_[i].data : pristine_[i].data();
          one.set_bytes(i, shared ? from : from + static_cast<std::size_t>(row_index) * part);
        }
      };
      std::unique_ptr<Problem> one(new ProblemOf(std::move(one_case), seed_, cut));
      if (device_) one->use_device(device_->graph());
      return one;
    } else {
      return nullptr;
    }
  }
  std::string broken_guard() const override {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      const std::ptrdiff_t at = buffers_[i].broken();
      if (at != GuardedBuffer::kIntact) return fields_[i].name + " at byte " + std::to_string(at);
    }
    const std::ptrdiff_t at = workspace_.broken();
    return at == GuardedBuffer::kIntact ? "" : "workspace at byte " + std::to_string(at);
  }
  std::vector<std::vector<double>> reference() const override {
    return Op::reference(case_.shape, args_);
  }
  double error_bound() const override { return Op::error_bound(case_.shape); }
  std::vector<std::vector<double>> reference_of(int variant, Backend backend) const override {
    return Op::reference(judged_shape(variant, backend), args_);
  }
  double error_bound_of(int variant, Backend backend) const override {
    auto* const own = row(variant).variant->column(backend).error_bound;
    const auto shape = judged_shape(variant, backend);
    return own != nullptr ? own(shape) : Op::error_bound(shape);
  }
  Numerics judged_numerics(int variant, Backend backend) const override {
    if constexpr (HasNumerics<typename Op::Shape>) {
      return judged_shape(variant, backend).numerics;
    } else {
      return numerics();
    }
  }
  void use_device(bool graph) override {
    std::vector<GuardedSpan> spans;
    for (const auto& b : buffers_) spans.push_back(b.whole());
    device_ = std::make_unique<DeviceProblem<Op>>(case_.shape, std::move(spans), graph);
  }
  void upload() override { device().upload(); }
  void launch(int variant, Stream stream) override {
    const auto& p = prepared_.at(static_cast<std::size_t>(variant));
    if (!p.ready) throw std::logic_error("launch before prepare");
    device().launch(variant, p.args, *row(variant).variant, stream);
  }
  double bytes_moved() const override { return Op::bytes_moved(case_.shape); }
  double flops() const override { return Op::flops(case_.shape); }
  bool mostly_nonfinite() const override { return case_.mostly_nonfinite; }

 private:
  struct Prepared {
    bool ready = false;
    typename Op::Args args{};
    std::vector<std::vector<std::byte>> storage;
  };
  template <class Fill>
  ProblemOf(typename Op::Case c, std::uint64_t seed, Fill&& fill)
      : case_(std::move(c)),
        seed_(seed != 0 ? seed : seed_from_name(std::string(Op::kName) + "/" + case_.name)),
        workspace_(Op::workspace_bytes(case_.shape)) {
    Op::fields(case_.shape, args_, Allocate{fields_, buffers_});
    pristine_.resize(fields_.size());
    prepared_.resize(variants<Op>().size());
    fill(*this);
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (fields_[i].dir == Dir::kInOut)
        pristine_[i].assign(fields_[i].data, fields_[i].data + fields_[i].bytes());
    }
    reset();
  }
  void set_bytes(std::size_t i, const std::byte* from) {
    const std::size_t bytes = fields_[i].bytes();
    if (bytes > 0) std::memcpy(fields_[i].data, from, bytes);
    if (fields_[i].dir == Dir::kInOut) pristine_[i].assign(from, from + bytes);
    for (auto& p : prepared_) p = {};
    if (device_) device_->forget_layouts();
  }
  // What the column computes: in the fast lane the exact lane's function, when it multiplies float activations.
  typename Op::Shape judged_shape(int variant, Backend backend) const {
    auto shape = case_.shape;
    if constexpr (HasNumerics<typename Op::Shape>) {
      if (row(variant).variant->column(backend).float_activations)
        shape.numerics = Numerics::kExact;
    }
    return shape;
  }
  DeviceProblem<Op>& device() {
    if (!device_) throw std::logic_error("use_device was not called");
    return *device_;
  }
  static const VariantRow<Op>& row(int variant) {
    return variants<Op>()[static_cast<std::size_t>(variant)];
  }

  typename Op::Case case_;
  std::uint64_t seed_;
  GuardedBuffer workspace_;
  typename Op::Args args_{};
  std::vector<Field> fields_;
  std::vector<GuardedBuffer> buffers_;
  std::vector<std::vector<std::byte>> pristine_;
  std::vector<Prepared> prepared_;
  std::unique_ptr<DeviceProblem<Op>> device_;
};

template <class Op>
concept HasCases = requires {
  Op::cases();
};

}  // namespace op_impl_detail

template <class Op>
OpInfo make_op_info(const char* folder) {
  if (std::string_view(folder) != Op::kName)
    throw std::logic_error(std::string("folder and kName differ: ") + folder);
  OpInfo info;
  info.name = Op::kName;
  info.switch_name = Op::kSwitch;
  info.summary = Op::kSummary;
  info.kind = Op::kKind;
  for (const auto& [name, v] : variants<Op>()) {
    VariantInfo row;
    row.name = name;
    row.summary = v->summary;
    row.stage = v->stage;
    row.exactness = v->exactness;
    row.bitwise_to = v->bitwise_to;
    row.deterministic = v->deterministic;
    row.batch_invariant = v->batch_invariant;
    row.host_sync = v->host_sync || v->cuda.host_sync;
    row.host_declared = v->host.declared;
    row.cuda_declared = v->cuda.declared;
    row.cuda_built = v->cuda.fn != nullptr;
    row.cuda_batch_dependent = v->cuda.batch_dependent;
    for (const Backend b : {Backend::kHost, Backend::kCuda}) {
      row.own_error_bound[static_cast<int>(b)] = v->column(b).error_bound != nullptr;
    }
    row.layout = v->layout != nullptr ? v->layout->name : "";
    row.layout_readable = v->layout != nullptr && v->layout->read_row != nullptr;
    info.variants.push_back(std::move(row));
  }
  if constexpr (op_impl_detail::HasCases<Op>) {
    for (const auto& c : Op::cases()) info.case_names.push_back(c.name);
    info.declared_ineligible = [](std::size_t index, int variant, const DeviceInfo& device) -> Why {
      static const auto all = Op::cases();
      const auto& v = *variants<Op>()[static_cast<std::size_t>(variant)].variant;
      if (v.ineligible == nullptr || !v.column(device.backend).declared) return nullptr;
      return v.ineligible(all.at(index).shape, device);
    };
    info.make_problem = [](std::size_t index, std::uint64_t seed) -> std::unique_ptr<Problem> {
      return std::make_unique<op_impl_detail::ProblemOf<Op>>(Op::cases().at(index), seed);
    };
  }
  return info;
}

}  // namespace assay
