// The registry with types erased: what catalog, parity, bench and docs loop over.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/device_info.h"
#include "kernels/base/registry.h"

namespace assay {

enum class DType : std::uint8_t {
  kF32,
  kF16,
  kI8,
  kI32,
  kU8
};  // kU8: raw bytes (quantised matrices)
std::size_t dtype_bytes(DType type);
const char* to_string(DType type);

// kIn: read only. kOut: written whole. kInOut: read and written (caches, accumulators).
enum class Dir : std::uint8_t { kIn, kOut, kInOut };

// One buffer of a problem. Outputs lie between guard bytes.
struct Field {
  std::string name;
  DType dtype = DType::kF32;
  std::size_t count = 0;
  Dir dir = Dir::kIn;
  std::byte* data = nullptr;
  std::size_t bytes() const { return count * dtype_bytes(dtype); }
};

struct VariantInfo {
  std::string name;
  std::string summary;
  Stage stage = Stage::kTrial;
  Exactness exactness = Exactness::kBounded;
  std::string bitwise_to;
  bool deterministic = false;
  bool batch_invariant = false;
  bool host_sync = false;
  bool host_declared = false;
  bool cuda_declared = false;
  bool cuda_built = false;
  bool cuda_batch_dependent = false;
  bool own_error_bound[2] = {};  // by Backend: the column states its own (Column::error_bound)
  std::string layout;            // empty: the file's
  bool layout_readable = false;  // it has read_row, so stock runs on weights that it prepared
};

// One case with its buffers: inputs filled from the seed, outputs poisoned. Host memory.
class Problem {
 public:
  virtual ~Problem() = default;
  virtual const std::string& case_name() const = 0;
  virtual std::string shape_text() const = 0;
  virtual Why ineligible(int variant, const DeviceInfo& device) const = 0;
  // Builds the variant's weight layout if it has one; not timed. Called before run for each variant.
  virtual void prepare(int variant) = 0;
  // Restores kInOut fields, fills kOut fields with the poison byte (0xFF: NaN in every float type) and renews the
  // guard bytes. Two runs on different poisons tell a byte that is never written from one that is.
  virtual void reset(std::byte poison) = 0;
  void reset() { reset(std::byte{0xFF}); }
  // One launch on the buffers. The variant must be eligible and prepared.
  virtual void run(int variant, Stream stream) = 0;
  // The same, on the weights that another variant's layout prepared: how the engine serves stock once a layout is in place.
  virtual void run_on_layout_of(int layout_variant, int variant, Stream stream) = 0;
  // What is wrong with the variant's layout on this case's matrices: the name of a matrix that `unprepare` does not give
  // back byte for byte, or that `read_row` reads differently. Empty when all is well or the variant has no layout.
  virtual std::string layout_fault(int variant) = 0;
  virtual std::vector<Field>& fields() = 0;
  // Overwrites an input (kIn or kInOut) with another problem's field of the same name, type and size; false when this
  // problem has no such field. Layouts prepared before are dropped.
  virtual bool set_input(const Field& from) = 0;
  // The seed that filled the inputs.
  virtual std::uint64_t seed() const = 0;
  virtual Numerics numerics() const = 0;  // the shape's lane; kExact for a shape without one
  // Rows that a batch-invariant variant computes independently (Op::kTokenRows), else 0.
  virtual int rows() const = 0;
  // A problem of one row alone, with this problem's inputs. A field with `rows` times the elements of the one-row field
  // is cut, a field of the same size is shared. Null when rows() is 0.
  virtual std::unique_ptr<Problem> row_problem(int row) const = 0;
  // Name of the first field with a changed guard byte, with the offset relative to its data; empty when intact.
  virtual std::string broken_guard() const = 0;
  // The lane's double reference: one vector per kOut or kInOut field, in field order. Reads the inputs as filled.
  virtual std::vector<std::vector<double>> reference() const = 0;
  virtual double error_bound()
      const = 0;  // relative L2 against the reference that a kBounded variant may show
  virtual double bytes_moved() const = 0;
  virtual double flops() const = 0;
  // The same two for what one variant's column of one backend computes (Column::float_activations, Column::error_bound).
  virtual std::vector<std::vector<double>> reference_of(int variant, Backend backend) const = 0;
  virtual double error_bound_of(int variant, Backend backend) const = 0;
  virtual Numerics judged_numerics(int variant,
                                   Backend backend) const = 0;  // the lane of that reference

  // Moves the problem to the GPU (HardwareError without one): from now on a run copies inputs, poisoned outputs and guards
  // over, launches there, waits and copies all of it back, so that everything here reads host memory as before. Scratch is
  // poisoned and fenced too. `graph`: a run replays a captured graph, captured once a variant and kept when inputs change.
  virtual void use_device(bool graph) = 0;
  // For timing on the GPU, without copies: the device's buffers as the last run or upload left them.
  virtual void upload() = 0;
  virtual void launch(int variant, Stream stream) = 0;

  // The case is declared to hold mostly non-finite outputs.
  virtual bool mostly_nonfinite() const = 0;
};

enum class OpKind : std::uint8_t { kKernel, kComposite, kPolicy };
const char* to_string(OpKind kind);

struct OpInfo {
  std::string name;         // folder, namespace, record key
  std::string switch_name;  // ASSAY_<NAME>
  std::string summary;
  OpKind kind = OpKind::kKernel;
  std::vector<VariantInfo> variants;  // stock first
  std::vector<std::string> case_names;
  // seed 0: the case's own seed (from its name). Index into case_names.
  std::unique_ptr<Problem> (*make_problem)(std::size_t case_index, std::uint64_t seed) = nullptr;

  // The variant's own rule on a case's shape, without making the problem and whatever this build contains: null when it
  // takes it or the backend has no column of it. For pages that must not depend on the machine that writes them.
  Why (*declared_ineligible)(std::size_t case_index,
                             int variant,
                             const DeviceInfo& device) = nullptr;

  // Index of the variant, or -1.
  int find(std::string_view variant) const;
};

// Every op of this build, in the order of kernels/CMakeLists.txt.
std::span<const OpInfo* const> all_ops();
// UserError listing the valid names when there is no such op.
const OpInfo& find_op(std::string_view name);

}  // namespace assay
