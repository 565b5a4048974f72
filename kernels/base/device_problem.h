// A problem's buffers on the GPU. Every field lies there between the same guard bytes as on the host, so the whole of it
// travels both ways and every check (poison, fences, comparators) reads host memory, whatever the backend.
#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/gpu_memory.h"
#include "kernels/base/op_info.h"
#include "kernels/base/registry.h"

namespace assay::op_impl_detail {

// Host bytes of one field, guards included.
struct GuardedSpan {
  std::byte* raw;
  std::size_t raw_bytes;
  std::size_t guard_bytes;
};

template <class Op>
class DeviceProblem {
 public:
  using Args = typename Op::Args;

  // `spans`: one per field, in field order.
  DeviceProblem(const typename Op::Shape& shape, std::vector<GuardedSpan> spans, bool graph)
      : shape_(shape), graph_(graph), spans_(std::move(spans)) {
    for (const auto& s : spans_) {
      buffers_.emplace_back(s.raw_bytes);
      data_.push_back(buffers_.back().data() + s.guard_bytes);
    }
  }
  bool graph() const { return graph_; }

  // Copies the host's bytes over: inputs, poisoned outputs and all guards.
  void upload() {
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      gpu::upload(buffers_[i].data(), spans_[i].raw, spans_[i].raw_bytes, queue_.stream());
    }
    queue_.wait();
  }

  // One launch, or one replay, between the two copies. `args`: host arguments, of `layout_variant`'s layout.
  void run(int layout_variant, int variant, const Args& args, const Variant<Op>& declaration) {
    Made& m = make(layout_variant, variant, args, declaration);
    const auto start = [&] { declaration.cuda.fn(shape_, m.args, scratch(m), queue_.stream()); };
    if (graph_ && !m.graph) {
      // A direct launch first: what a library or the driver sets up once must not be part of the graph.
      upload();
      fence(m);
      start();
      queue_.wait();
      m.graph = gpu::Graph::capture(queue_.stream(), start);
    }
    upload();
    fence(m);
    if (graph_) {
      m.graph.launch(queue_.stream());
    } else {
      start();
    }
    // Inputs come back too: a kernel that writes one is caught.
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      gpu::download(spans_[i].raw, buffers_[i].data(), spans_[i].raw_bytes, queue_.stream());
    }
    check_fences(m);
  }
  // Queues the bare launch.
  void launch(int variant, const Args& args, const Variant<Op>& declaration, Stream stream) {
    Made& m = make(variant, variant, args, declaration);
    declaration.cuda.fn(shape_, m.args, scratch(m), stream);
  }

  // After an input changed: what was uploaded in a layout is out of date. Everything else keeps its place, and its graph.
  void forget_layouts() {
    std::erase_if(made_, [](const auto& entry) { return !entry.second.layouts.empty(); });
  }
  // Where the last run wrote past its scratch; empty when it did not.
  const std::string& broken_workspace() const { return broken_workspace_; }

 private:
  static constexpr std::size_t kFenceBytes = 256;
  static constexpr std::byte kFence{0xA5};
  static constexpr std::byte kPoison{0xFF};

  struct Made {
    Args args{};
    std::vector<gpu::Buffer> layouts;
    gpu::Buffer workspace;
    std::size_t workspace_bytes = 0;
    gpu::Graph graph;
  };

  // Visits the fields and points every argument at its device copy.
  struct Rebase {
    DeviceProblem& problem;
    Made& made;
    std::size_t next = 0;
    template <class T>
    void operator()(const char*, T*& pointer, std::size_t, Dir) {
      pointer = reinterpret_cast<T*>(problem.data_.at(next++));
    }
    void quant(const char*, QuantView& view, BlockType, int, int) {
      std::byte* plain = problem.data_.at(next++);
      if (view.layout == nullptr) {
        view.data = plain;
        return;
      }
      const std::size_t bytes = view.layout->prepared_bytes(view);
      made.layouts.emplace_back(bytes);
      gpu::upload(made.layouts.back().data(), view.data, bytes, problem.queue_.stream());
      problem.queue_.wait();
      view.data = made.layouts.back().data();
    }
  };

  Made& make(int layout_variant, int variant, const Args& args, const Variant<Op>& declaration) {
    const auto [it, fresh] = made_.try_emplace({layout_variant, variant});
    Made& m = it->second;
    if (!fresh) return m;
    m.args = args;
    Op::fields(shape_, m.args, Rebase{*this, m});
    m.workspace_bytes = workspace_bytes(declaration, shape_, Backend::kCuda);
    m.workspace = gpu::Buffer(m.workspace_bytes + 2 * kFenceBytes);
    return m;
  }
  static Workspace scratch(const Made& m) {
    return {m.workspace.data() + kFenceBytes, m.workspace_bytes};
  }
  void fence(Made& m) {
    std::byte* p = m.workspace.data();
    gpu::fill(p, kFence, kFenceBytes, queue_.stream());
    gpu::fill(p + kFenceBytes, kPoison, m.workspace_bytes, queue_.stream());
    gpu::fill(p + kFenceBytes + m.workspace_bytes, kFence, kFenceBytes, queue_.stream());
  }
  void check_fences(const Made& m) {
    std::byte fences[2 * kFenceBytes];
    const std::byte* p = m.workspace.data();
    gpu::download(fences, p, kFenceBytes, queue_.stream());
    gpu::download(
        fences + kFenceBytes, p + kFenceBytes + m.workspace_bytes, kFenceBytes, queue_.stream());
    queue_.wait();
    broken_workspace_.clear();
    for (std::size_t i = 0; i < sizeof(fences); ++i) {
      if (fences[i] == kFence) continue;
      broken_workspace_ = i < kFenceBytes ? "workspace at byte -" + std::to_string(kFenceBytes - i)
                                          : "workspace at byte " +
                                                std::to_string(m.workspace_bytes + i - kFenceBytes);
      return;
    }
  }

  typename Op::Shape shape_;
  bool graph_;
  std::vector<GuardedSpan> spans_;
  gpu::Queue queue_;
  std::vector<gpu::Buffer> buffers_;
  std::vector<std::byte*> data_;
  std::map<std::pair<int, int>, Made> made_;
  std::string broken_workspace_;
};

}  // namespace assay::op_impl_detail
