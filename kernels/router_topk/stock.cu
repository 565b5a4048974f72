// ids, weights [tokens][top_k] from logits [tokens][experts], on the host: logits down, wait, top-k, ids and weights up.
//
// The source shape that the variants are measured against: one copy and one wait a layer, which drains the GPU and keeps
// the whole token out of a graph. No kernel; bound by the wait, not by bytes.
#include "kernels/base/gpu_memory.h"
#include "kernels/base/launch.cuh"
#include "kernels/base/thread_scratch.h"
#include "kernels/router_topk/rows.h"

namespace assay {

void launch_stock(const RouterTopk::Shape& s, const RouterTopk::Args& a, Workspace, Stream stream) {
  const std::size_t experts = static_cast<std::size_t>(s.experts);
  const std::size_t logits = static_cast<std::size_t>(s.tokens) * experts;
  const std::size_t chosen = static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.top_k);
  float* host_logits = thread_scratch<float, struct RouterLogits>(logits + experts);
  float* host_scale = host_logits + logits;
  auto* host_ids = thread_scratch<std::int32_t, struct RouterIds>(chosen);
  float* host_weights = thread_scratch<float, struct RouterWeights>(chosen);
  const auto down = [&](float* to, const float* from, std::size_t count) {
    gpu::download(reinterpret_cast<std::byte*>(to),
                  reinterpret_cast<const std::byte*>(from),
                  count * sizeof(float),
                  stream);
  };
  down(host_logits, a.logits, logits);
  down(host_scale, a.scale, experts);
  ASSAY_CUDA(cudaStreamSynchronize(stream.cuda));
  RouterTopk::Args host = a;
  host.logits = host_logits;
  host.scale = host_scale;
  host.ids = host_ids;
  host.weights = host_weights;
  router_topk::route_rows(s, host, nullptr);
  gpu::upload(reinterpret_cast<std::byte*>(a.ids),
              reinterpret_cast<const std::byte*>(host_ids),
              chosen * sizeof(std::int32_t),
              stream);
  gpu::upload(reinterpret_cast<std::byte*>(a.weights),
              reinterpret_cast<const std::byte*>(host_weights),
              chosen * sizeof(float),
              stream);
}

}  // namespace assay
