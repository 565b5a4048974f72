#include "kernels/base/op_info.h"

#include "kernels/base/error.h"

namespace assay {

std::size_t dtype_bytes(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
      return 2;
    case DType::kI8:
    case DType::kU8:
      return 1;
  }
  return 1;
}

const char* to_string(DType type) {
  switch (type) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kI8:
      return "i8";
    case DType::kI32:
      return "i32";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

const char* to_string(OpKind kind) {
  switch (kind) {
    case OpKind::kKernel:
      return "kernel";
    case OpKind::kComposite:
      return "composite";
    case OpKind::kPolicy:
      return "policy";
  }
  return "?";
}

int OpInfo::find(std::string_view variant) const {
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (variants[i].name == variant) return static_cast<int>(i);
  }
  return -1;
}

const OpInfo& find_op(std::string_view name) {
  std::string names;
  for (const OpInfo* op : all_ops()) {
    if (op->name == name) return *op;
    names += (names.empty() ? "" : ", ") + op->name;
  }
  throw UserError("no op named '" + std::string(name) + "': valid are " + names);
}

}  // namespace assay
