// Which variant runs, resolved once per op and device; the engine's calls go through here.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/env.h"
#include "kernels/base/measure.h"
#include "kernels/base/op_impl.h"
#include "kernels/base/registry.h"

namespace assay {

// The choice for one op and where it came from.
struct Choice {
  std::string variant = "stock";
  bool parity = false;
  std::string source = "stock";  // "stock", "profile" or "switch"
};
// Variant by op name, from a profile.
using Profile = std::map<std::string, std::string>;
// A switch overrides the profile; unset and no profile entry: stock.
Choice choose(const std::string& op, const Env& env, const Profile& profile);

// What one op did in this process; printed at exit, stored in records.
struct DispatchReport {
  std::string op;
  Choice choice;
  std::uint64_t selected = 0;                     // calls served by the chosen variant
  std::uint64_t stock = 0;                        // calls served by stock
  std::map<std::string, std::uint64_t> fallback;  // reason -> calls
  // parity:<variant> only
  std::uint64_t compared = 0;
  double worst_rel_l2 = 0.0;
  std::uint64_t worst_ulp = 0;
  std::uint64_t mismatched_bytes = 0;
};

// Throws for ASSAY_STRICT; otherwise logs the first time a reason is seen.
void note_fallback(DispatchReport& report, Why reason, bool strict);

template <class Op>
class Dispatch {
 public:
  Dispatch(const Choice& choice, const DeviceInfo& device, bool strict)
      : device_(device), strict_(strict) {
    report_.op = Op::kName;
    report_.choice = choice;
    stock_ = variants<Op>()[0].variant;
    chosen_ = stock_;
    for (const auto& [name, v] : variants<Op>()) {
      if (choice.variant == name) chosen_ = v;
    }
  }

  // Serves stock when the chosen variant is ineligible for this shape (counted) and always under parity.
  void operator()(const typename Op::Shape& shape,
                  const typename Op::Args& args,
                  Workspace ws,
                  Stream stream) {
    if (chosen_ == stock_) {
      call(*stock_, shape, args, ws, stream);
      ++report_.stock;
      return;
    }
    if (const Why why = why_ineligible(*chosen_, shape, device_)) {
      note_fallback(report_, why, strict_);
      call(*stock_, shape, args, ws, stream);
      ++report_.stock;
      return;
    }
    if (!report_.choice.parity) {
      call(*chosen_, shape, args, ws, stream);
      ++report_.selected;
      return;
    }
    run_both(shape, args, ws, stream);
  }

  // Scratch that a call may need, whichever variant ends up serving it.
  std::size_t workspace_bytes(const typename Op::Shape& shape) const {
    const std::size_t stock = assay::workspace_bytes(*stock_, shape, device_.backend);
    return chosen_ == stock_
               ? stock
               : std::max(stock, assay::workspace_bytes(*chosen_, shape, device_.backend));
  }

  const Variant<Op>& chosen() const { return *chosen_; }
  const DispatchReport& report() const { return report_; }

 private:
  struct Outputs {
    struct Span {
      std::byte* data;
      std::size_t bytes;
      DType dtype;
    };
    std::vector<Span>& spans;
    template <class T>
    void operator()(const char*, T*& p, std::size_t count, Dir dir) {
      if constexpr (!std::is_const_v<T>) {
        if (dir != Dir::kIn && p != nullptr)
          spans.push_back({reinterpret_cast<std::byte*>(p), count * sizeof(T), dtype_of<T>()});
      }
    }
    void quant(const char*, QuantView&, BlockType, int, int) {}
  };

  void call(const Variant<Op>& v,
            const typename Op::Shape& s,
            const typename Op::Args& a,
            Workspace ws,
            Stream stream) {
    v.column(device_.backend).fn(s, a, ws, stream);
  }

  // The variant runs first, on the real buffers; then its outputs are set aside, the buffers are restored and stock
  // runs: whatever a broken variant wrote into a declared output is gone before anyone reads it.
  void run_both(const typename Op::Shape& shape,
                const typename Op::Args& args,
                Workspace ws,
                Stream stream) {
    // Every op with a list of fields, composites included: what they name is what is compared.
    if constexpr (requires(typename Op::Args a, Outputs o) { Op::fields(shape, a, o); }) {
      auto copy = args;
      std::vector<typename Outputs::Span> spans;
      Op::fields(shape, copy, Outputs{spans});
      std::vector<std::vector<std::byte>> before;
      for (const auto& s : spans) before.emplace_back(s.data, s.data + s.bytes);
      call(*chosen_, shape, args, ws, stream);
      std::vector<std::vector<std::byte>> got;
      for (std::size_t i = 0; i < spans.size(); ++i) {
        got.emplace_back(spans[i].data, spans[i].data + spans[i].bytes);
        std::memcpy(spans[i].data, before[i].data(), before[i].size());
      }
      call(*stock_, shape, args, ws, stream);
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const Difference d =
            measure_bytes(spans[i].dtype, got[i].data(), spans[i].data, spans[i].bytes);
        report_.worst_rel_l2 = worse(report_.worst_rel_l2, d.rel_l2);
        report_.worst_ulp = std::max(report_.worst_ulp, d.max_ulp);
        report_.mismatched_bytes += d.mismatched_bytes;
      }
      ++report_.compared;
      ++report_.stock;
    } else {
      call(*stock_, shape, args, ws, stream);
      ++report_.stock;
    }
  }

  DeviceInfo device_;
  bool strict_;
  const Variant<Op>* stock_ = nullptr;
  const Variant<Op>* chosen_ = nullptr;
  DispatchReport report_;
};

}  // namespace assay
