// Which variant runs, resolved once per op and device; the engine's calls go through here.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/env.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/measure.h"
#include "kernels/base/op_impl.h"
#include "kernels/base/range.h"
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
  std::uint64_t broke_rules =
      0;  // calls in which the variant threw, left its buffers or changed an input
};

// Throws for ASSAY_STRICT; otherwise logs the first time a reason is seen.
void note_fallback(DispatchReport& report, Why reason, bool strict);
// A variant under parity broke a rule: counted, logged the first time.
void note_broken(DispatchReport& report, const std::string& what);

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

  // The calls between two reports once more: what a captured graph's replay runs.
  void count_again(const DispatchReport& before, const DispatchReport& after) {
    report_.selected += after.selected - before.selected;
    report_.stock += after.stock - before.stock;
    for (const auto& [reason, calls] : after.fallback) {
      const auto it = before.fallback.find(reason);
      report_.fallback[reason] += calls - (it != before.fallback.end() ? it->second : 0);
    }
  }

  const DeviceInfo& device() const { return device_; }
  const Variant<Op>& stock() const { return *stock_; }
  const Variant<Op>& chosen() const { return *chosen_; }
  const DispatchReport& report() const { return report_; }

 private:
  // Private, fenced copies of everything a call may touch except the weights, on the call's backend.
  class Shadow {
   public:
    Shadow(Backend backend, Stream stream) : device_(backend == Backend::kCuda), stream_(stream) {}
    template <class T>
    void operator()(const char* name, T*& pointer, std::size_t count, Dir dir) {
      if (pointer == nullptr) return;
      using Value = std::remove_const_t<T>;
      auto* real = reinterpret_cast<std::byte*>(const_cast<Value*>(pointer));
      fields_.push_back({name, dtype_of<Value>(), dir, real, count * sizeof(T), {}, {}, {}});
      pointer = reinterpret_cast<T*>(fields_.back().shadow(device_, stream_));
    }
    void quant(const char*, QuantView&, BlockType, int, int) {}
    Workspace workspace(std::size_t bytes) {
      fields_.push_back({"workspace", DType::kU8, Dir::kInOut, nullptr, bytes, {}, {}, {}});
      return {fields_.back().shadow(device_, stream_), bytes};
    }
    // Compares the copies with the real buffers after both have run.
    void compare(DispatchReport& report) {
      std::string broken;
      for (auto& f : fields_) {
        const auto got = f.fetch(device_, stream_);
        if (f.left_its_buffer(got)) broken = "wrote out of bounds of " + f.name;
        if (f.real == nullptr) continue;
        const auto want = f.fetch_real(device_, stream_);
        const Difference d = measure_bytes(f.dtype, got.data() + kFence, want.data(), f.bytes);
        if (f.dir == Dir::kIn) {
          if (d.mismatched_bytes > 0) broken = "changed its input " + f.name;
          continue;
        }
        report.worst_rel_l2 = worse(report.worst_rel_l2, d.rel_l2);
        report.worst_ulp = std::max(report.worst_ulp, d.max_ulp);
        report.mismatched_bytes += d.mismatched_bytes;
      }
      if (!broken.empty()) note_broken(report, broken);
    }

   private:
    static constexpr std::size_t kFence = 256;
    static constexpr std::byte kFenceByte{0xA5};
    struct Copy {
      std::string name;
      DType dtype;
      Dir dir;
      std::byte* real;
      std::size_t bytes;
      std::vector<std::byte> host_owner;
      std::byte* host;
      gpu::Buffer card;

      std::byte* shadow(bool on_card, Stream stream) {
        const std::size_t whole = bytes + 2 * kFence;
        if (on_card) {
          card = gpu::Buffer(whole);
          gpu::fill(card.data(), kFenceByte, whole, stream);
          if (real != nullptr) gpu::copy(card.data() + kFence, real, bytes, stream);
          return card.data() + kFence;
        }
        host_owner.assign(whole + kFence, kFenceByte);
        host = host_owner.data() +
               (kFence - reinterpret_cast<std::uintptr_t>(host_owner.data()) % kFence);
        if (real != nullptr && bytes > 0) std::memcpy(host + kFence, real, bytes);
        return host + kFence;
      }
      // The copy with its fences.
      std::vector<std::byte> fetch(bool on_card, Stream stream) const {
        std::vector<std::byte> all(bytes + 2 * kFence);
        if (on_card) {
          gpu::download(all.data(), card.data(), all.size(), stream);
        } else {
          std::memcpy(all.data(), host, all.size());
        }
        return all;
      }
      std::vector<std::byte> fetch_real(bool on_card, Stream stream) const {
        std::vector<std::byte> all(bytes);
        if (on_card) {
          gpu::download(all.data(), real, bytes, stream);
        } else if (bytes > 0) {
          std::memcpy(all.data(), real, bytes);
        }
        return all;
      }
      bool left_its_buffer(const std::vector<std::byte>& all) const {
        for (std::size_t i = 0; i < kFence; ++i) {
          if (all[i] != kFenceByte || all[all.size() - 1 - i] != kFenceByte) return true;
        }
        return false;
      }
    };
    bool device_;
    Stream stream_;
    std::vector<Copy> fields_;
  };

  void call(const Variant<Op>& v,
            const typename Op::Shape& s,
            const typename Op::Args& a,
            Workspace ws,
            Stream stream) {
    const Range range(Op::kName);
    v.column(device_.backend).fn(s, a, ws, stream);
  }

  // The variant runs on copies, then stock on the real buffers, so that nothing the variant does (a wrong value, a store
  // out of bounds, a changed input, a throw) can reach what is served. The weights are shared: they are mapped read-only.
  void run_both(const typename Op::Shape& shape,
                const typename Op::Args& args,
                Workspace ws,
                Stream stream) {
    // Every op with a list of fields, composites included: what they name is what is compared.
    if constexpr (requires(typename Op::Args a, Shadow & s) { Op::fields(shape, a, s); }) {
      auto copy = args;
      Shadow shadow(device_.backend, stream);
      Op::fields(shape, copy, shadow);
      const Workspace scratch =
          shadow.workspace(assay::workspace_bytes(*chosen_, shape, device_.backend));
      bool ran = true;
      try {
        call(*chosen_, shape, copy, scratch, stream);
      } catch (const std::exception& e) {
        note_broken(report_, std::string("threw: ") + e.what());
        ran = false;
      }
      call(*stock_, shape, args, ws, stream);
      if (ran) {
        shadow.compare(report_);
        ++report_.compared;
      }
    } else {
      call(*stock_, shape, args, ws, stream);
    }
    ++report_.stock;
  }

  DeviceInfo device_;
  bool strict_;
  const Variant<Op>* stock_ = nullptr;
  const Variant<Op>* chosen_ = nullptr;
  DispatchReport report_;
};

}  // namespace assay
