// Ops and variants. An op is one contract type; a variant is one constant declared by ASSAY_VARIANT; the table of
// an op's variants is generated from file names (cmake/AssayOp.cmake), so nothing registers itself at run time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/blocks.h"
#include "kernels/base/device_info.h"
#include "kernels/base/stream.h"

namespace assay {

enum class Stage : std::uint8_t { kStock, kTrial, kKept, kRejected };
const char* to_string(Stage stage);  // "stock", "trial", "kept", "rejected"

enum class Exactness : std::uint8_t { kBitwise, kSelection, kBounded, kModelLevel };
const char* to_string(Exactness exactness);

// Null: eligible. Otherwise the reason, in words, static storage.
using Why = const char*;

// A weight layout other than the file's. The loader prepares each matrix once, outside any timed region and in place
// (prepare must take out == source.data), and shares layouts by address. `unprepare` is the byte-exact inverse (tested).
struct Layout {
  const char* name = nullptr;
  bool (*accepts)(const QuantView& source) = nullptr;
  std::size_t (*prepared_bytes)(const QuantView& source) = nullptr;
  void (*prepare)(const QuantView& source, std::byte* out) = nullptr;
  // `source` gives type, rows and cols; its data pointer is not read.
  void (*unprepare)(const QuantView& source, const std::byte* prepared, std::byte* out) = nullptr;
  // One row in the file's layout (row_bytes bytes) from a prepared view: how stock runs on prepared weights.
  void (*read_row)(const QuantView& prepared, int row, std::byte* out) = nullptr;
};

// One column of the registry: a launch function for one backend. `declared` tells "not built here" from "does not exist".
template <class Op>
struct Column {
  using Fn = void (*)(const typename Op::Shape&, const typename Op::Args&, Workspace, Stream);
  Fn fn = nullptr;
  bool declared = false;
  // Scratch of this column alone, when it differs from Op::workspace_bytes.
  std::size_t (*workspace_bytes)(const typename Op::Shape&) = nullptr;
  // Relative L2 that this column may be from its reference, when its arithmetic is not the order of the contract (fp16
  // operands, a library's product); derived beside the function. Null: Op::error_bound.
  double (*error_bound)(const typename Op::Shape&) = nullptr;
  // Multiplies the float activations in the fast lane too, so that the exact lane's reference judges it in both.
  bool float_activations = false;
  // Its source shape waits for the host: never under capture. Beside Variant::host_sync, for one column alone.
  bool host_sync = false;
  // A row's bits may depend on the number of rows (a library picks its kernel by shape): takes Variant::batch_invariant
  // back for this column.
  bool batch_dependent = false;
};

// ASSAY_HOST(f): always &f. ASSAY_LAUNCH(f): &f in a build with CUDA, null without: the one place the builds differ.
// More fields of Column may follow the function: ASSAY_LAUNCH(launch_stock, .host_sync = true).
#define ASSAY_HOST(f, ...) \
  { .fn = &(f), .declared = true __VA_OPT__(, ) __VA_ARGS__ }
#if defined(ASSAY_WITH_CUDA)
#define ASSAY_LAUNCH(f, ...) \
  { .fn = &(f), .declared = true __VA_OPT__(, ) __VA_ARGS__ }
#else
#define ASSAY_LAUNCH(f, ...) \
  { .fn = nullptr, .declared = true __VA_OPT__(, ) __VA_ARGS__ }
#endif

template <class Op>
struct Variant {
  const char* summary = "";  // one line: the mechanism, not praise
  Stage stage = Stage::kTrial;
  Exactness exactness = Exactness::kBounded;
  const char* bitwise_to = "stock";  // another variant or "op:variant"; read for kBitwise only
  bool deterministic = false;        // same bits on repeat
  bool batch_invariant = false;  // a row's bits do not depend on its neighbours or the thread count
  bool host_sync = false;        // its source shape synchronises with the host: never under capture
  Why (*ineligible)(const typename Op::Shape&,
                    const DeviceInfo&) = nullptr;  // null: takes every legal shape
  const Layout* layout = nullptr;
  Column<Op> host = {};
  Column<Op> cuda = {};

  const Column<Op>& column(Backend backend) const {
    return backend == Backend::kHost ? host : cuda;
  }
};

template <class Op>
struct VariantRow {
  const char* name;
  const Variant<Op>* variant;
};

// The op's table, stock first. Defined by generated code.
template <class Op>
std::span<const VariantRow<Op>> variants();

// Opens the declaration: ASSAY_VARIANT(GemvQuant, avx2){.summary = .., .host = ASSAY_HOST(run_avx2)};
// in namespace assay. The file's stem must equal `name`, or the generated table fails to link.
#define ASSAY_VARIANT(Op, name)                   \
  extern const Variant<Op> variant_##Op##_##name; \
  const Variant<Op> variant_##Op##_##name

// Scratch that a launch of this variant needs on this backend.
template <class Op>
std::size_t workspace_bytes(const Variant<Op>& variant,
                            const typename Op::Shape& shape,
                            Backend backend) {
  auto* const own = variant.column(backend).workspace_bytes;
  return own != nullptr ? own(shape) : Op::workspace_bytes(shape);
}

// Why `variant` cannot run this shape on this device's backend; null when it can.
template <class Op>
Why why_ineligible(const Variant<Op>& variant,
                   const typename Op::Shape& shape,
                   const DeviceInfo& device) {
  const auto& column = variant.column(device.backend);
  if (!column.declared) {
    return device.backend == Backend::kHost ? "has no host implementation"
                                            : "has no CUDA implementation";
  }
  if (column.fn == nullptr) return "not built: this build has no CUDA";
  return variant.ineligible != nullptr ? variant.ineligible(shape, device) : nullptr;
}

}  // namespace assay
