#include "engine/forward.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/attention_block/op.h"
#include "kernels/attention_decode/op.h"
#include "kernels/attention_prefill/op.h"
#include "kernels/base/error.h"
#include "kernels/decode_token/op.h"
#include "kernels/experts_host/op.h"
#include "kernels/experts_prefill/op.h"
#include "kernels/ffn_block/op.h"
#include "kernels/gemm_quant/op.h"
#include "kernels/gemv_quant/op.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/router_topk/op.h"

namespace assay {
namespace {

constexpr int kFewTokens =
    8;  // up to here gemv_quant and experts_host, beyond gemm_quant and experts_prefill
constexpr int kMaxHeadDim = 1024;  // of the attention ops
constexpr std::size_t kActivationBytes = std::size_t{32} << 20;
constexpr std::size_t kLogitsBytes = std::size_t{8} << 20;

std::size_t z(int n) { return static_cast<std::size_t>(n); }

// The widest of every buffer over all layers.
struct Widths {
  int hidden = 0;
  int qkv = 0;
  int q = 0;
  int kv = 0;
  int gate_up = 0;
  int dense = 0;
  int experts = 0;
  int top_k = 0;
  int half_head = 0;
  int q8 = 0;  // columns of the widest matrix input

  explicit Widths(const ModelConfig& c)
      : hidden(c.hidden), experts(c.experts), top_k(c.experts_used) {
    for (const auto& l : c.layer) {
      qkv = std::max(qkv, l.q_width() + 2 * l.kv_width());
      q = std::max(q, l.q_width());
      kv = std::max(kv, l.kv_width());
      gate_up = std::max(gate_up, 2 * l.dense_width);
      dense = std::max(dense, l.dense_width);
      half_head = std::max(half_head, l.head_dim / 2);
    }
    q8 = std::max({hidden, q, dense});
  }
};

// Hands out 64-byte aligned arrays; counts only while `base` is null.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::size_t count) {
    std::byte* at = base_ != nullptr ? base_ + used_ : nullptr;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

// An activation matrix with, in the fast lane, its int8 form.
struct Activation {
  float* x = nullptr;
  std::int8_t* codes = nullptr;
  std::uint16_t* scales = nullptr;
  Q8View q8() const { return {codes, scales}; }
};

// Activations of one chunk; every array is [tokens][width].
struct Buffers {
  float* x = nullptr;            // residual at the layer's input
  float* h = nullptr;            // residual between the halves
  Activation a;                  // normed input of qkv, and of the dense branch; width hidden
  float* qkv = nullptr;          // raw projections
  float* q = nullptr;            // normed and rotated
  std::byte* k_fresh = nullptr;  // of the chunk, in the cache's type
  std::byte* v_fresh = nullptr;
  Activation o;             // attention's output; width q
  float* branch = nullptr;  // attn_out, later dense_out; width hidden
  float* gate_up = nullptr;
  Activation u;  // width dense
  float* router_in = nullptr;
  float* router_logits = nullptr;
  std::int32_t* ids = nullptr;
  float* weights = nullptr;
  Activation m;  // experts' input; width hidden
  float* experts_out = nullptr;
  float* cosine = nullptr;  // [table][tokens][half_head]
  float* sine = nullptr;

  // The attention half and the FFN half never live at once, so their arrays share memory.
  static std::size_t carve(std::byte* base,
                           int tokens,
                           const Widths& w,
                           int rope_tables,
                           KvType kv,
                           bool fast,
                           Buffers* b) {
    Carver c(base);
    const std::size_t t = z(tokens);
    const auto activation = [&](Carver& from, int width) {
      Activation made;
      made.x = from.take<float>(t * z(width));
      if (fast) {
        made.codes = from.take<std::int8_t>(t * z(width));
        made.scales = from.take<std::uint16_t>(t * z(width) / kQ8Block + 1);
      }
      return made;
    };
    Buffers out;
    out.x = c.take<float>(t * z(w.hidden));
    out.h = c.take<float>(t * z(w.hidden));
    out.a = activation(c, w.hidden);
    out.branch = c.take<float>(t * z(w.hidden));
    out.cosine = c.take<float>(z(rope_tables) * t * z(w.half_head));
    out.sine = c.take<float>(z(rope_tables) * t * z(w.half_head));
    out.ids = c.take<std::int32_t>(t * z(w.top_k));
    out.weights = c.take<float>(t * z(w.top_k));
    const std::size_t shared = c.used();
    std::byte* half = base != nullptr ? base + shared : nullptr;
    Carver first(half);
    out.qkv = first.take<float>(t * z(w.qkv));
    out.q = first.take<float>(t * z(w.q));
    out.k_fresh = first.take<std::byte>(t * z(w.kv) * kv_bytes(kv));
    out.v_fresh = first.take<std::byte>(t * z(w.kv) * kv_bytes(kv));
    out.o = activation(first, w.q);
    Carver second(half);
    out.gate_up = second.take<float>(t * z(w.gate_up));
    out.u = activation(second, w.dense);
    out.router_in = second.take<float>(t * z(w.hidden));
    out.router_logits = second.take<float>(t * z(w.experts));
    out.m = activation(second, w.hidden);
    out.experts_out = second.take<float>(t * z(w.hidden));
    if (b != nullptr) *b = out;
    return shared + std::max(first.used(), second.used());
  }
};

}  // namespace

struct Model::Ops {
  Dispatch<GemvQuant> gemv;
  Dispatch<GemmQuant> gemm;
  Dispatch<ExpertsHost> experts_few;
  Dispatch<ExpertsPrefill> experts_many;
  Dispatch<AttentionPrefill> attention_prefill;
  Dispatch<AttentionDecode> attention_decode;
  Dispatch<RouterTopk> router;
  Dispatch<AttentionBlock> attention_block;
  Dispatch<FfnBlock> ffn_block;
  Dispatch<DecodeToken> decode_token;

  explicit Ops(const ModelSettings& s)
      : gemv(make<GemvQuant>(s)),
        gemm(make<GemmQuant>(s)),
        experts_few(make<ExpertsHost>(s)),
        experts_many(make<ExpertsPrefill>(s)),
        attention_prefill(make<AttentionPrefill>(s)),
        attention_decode(make<AttentionDecode>(s)),
        router(make<RouterTopk>(s)),
        attention_block(make<AttentionBlock>(s)),
        ffn_block(make<FfnBlock>(s)),
        decode_token(make<DecodeToken>(s)) {}

  template <class Op>
  static Dispatch<Op> make(const ModelSettings& s) {
    const auto it = s.selection.choices.find(Op::kName);
    return Dispatch<Op>(
        it != s.selection.choices.end() ? it->second : Choice{}, host_device(), s.strict);
  }
  template <class Op>
  static LayoutWish wish(const Dispatch<Op>& d) {
    return {d.chosen().layout, d.chosen().stage == Stage::kStock};
  }
  WeightLayouts layouts() const {
    return {wish(gemv), wish(gemm), wish(experts_few), wish(experts_many)};
  }
  std::vector<DispatchReport> reports() const {
    return {gemv.report(),
            gemm.report(),
            experts_few.report(),
            experts_many.report(),
            attention_prefill.report(),
            attention_decode.report(),
            router.report(),
            attention_block.report(),
            ffn_block.report(),
            decode_token.report()};
  }
};

Model::Model(const std::string& path, const ModelSettings& settings)
    : path_(path), settings_(settings) {
  const GgufFile file = GgufFile::open(path);
  config_ = read_config(file);
  for (const auto& layer : config_.layer) {
    if (layer.head_dim > kMaxHeadDim) {
      throw InputError(path + ": head size " + std::to_string(layer.head_dim) + " is above " +
                       std::to_string(kMaxHeadDim));
    }
  }
  if (settings_.context == 0) settings_.context = std::min(config_.context, kDefaultContext);
  if (settings_.context < 1 || settings_.context > config_.context) {
    throw UserError("--ctx " + std::to_string(settings_.context) + ": must be 1.." +
                    std::to_string(config_.context) + ", the context that " + path +
                    " was trained for");
  }
  if (!settings_.kv) {
    settings_.kv = settings_.numerics == Numerics::kExact ? KvType::kF32 : KvType::kF16;
  }
  if (settings_.threads == 0) settings_.threads = std::clamp(host_device().threads, 1, 256);
  tokenizer_ = Tokenizer::load(file);
  pool_ = std::make_unique<HostPool>(settings_.threads);
  ops_ = std::make_unique<Ops>(settings_);
  weights_ = std::make_unique<Weights>(file, config_, ops_->layouts());
  if (settings_.chunk == 0) {
    const std::size_t token = Buffers::carve(nullptr,
                                             64,
                                             Widths(config_),
                                             static_cast<int>(weights_->rope().size()),
                                             *settings_.kv,
                                             settings_.numerics == Numerics::kFast,
                                             nullptr) /
                              64;
    settings_.chunk =
        static_cast<int>(std::clamp<std::size_t>(kActivationBytes / token / 32 * 32, 32, 512));
  }
}

Model::~Model() = default;

std::vector<DispatchReport> Model::reports() const { return ops_->reports(); }

void RouteTable::record(const RoutedChunk& chunk) {
  const int end = chunk.first_position + chunk.tokens;
  if (end > positions_) {
    positions_ = end;
    ids_.resize(z(end) * z(layers_) * z(top_k_), -1);
  }
  for (int t = 0; t < chunk.tokens; ++t) {
    const std::size_t at = (z(chunk.first_position + t) * z(layers_) + z(chunk.layer)) * z(top_k_);
    std::copy_n(
        chunk.ids + z(t) * z(top_k_), top_k_, ids_.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

const std::int32_t* RouteTable::at(int layer, int position) const {
  if (position >= positions_) {
    throw std::out_of_range("no recorded route for position " + std::to_string(position));
  }
  return ids_.data() + (z(position) * z(layers_) + z(layer)) * z(top_k_);
}

struct Session::State {
  Model& model;
  const ModelConfig& config;
  const Weights& weights;
  Model::Ops& ops;
  Stream stream;
  bool fast;
  Sequence sequence;
  KvCache& cache = sequence.cache;
  int& position = sequence.position;
  SessionHooks hooks;

  Widths widths;
  PageBuffer memory;
  Buffers b;
  PageBuffer head_memory;
  int head_rows;            // logits rows computed at once
  Activation head_in;       // [head_rows][hidden]
  float* logits = nullptr;  // [head_rows][vocab]
  PageBuffer scratch;
  std::vector<std::int32_t> forced;  // [tokens][top_k] while hooks.routes is set

  // The chunk and layer being computed; the composites' chains read them.
  const TokenId* ids = nullptr;
  int tokens = 0;
  int layer = 0;

  State(Model& m, int slack)
      : model(m),
        config(m.config_),
        weights(*m.weights_),
        ops(*m.ops_),
        stream{.pool = m.pool_.get()},
        fast(m.numerics() == Numerics::kFast),
        sequence(m.config_, m.kv_type(), m.context(), slack),
        widths(m.config_),
        head_rows(static_cast<int>(std::clamp<std::size_t>(
            kLogitsBytes / (z(m.config_.vocab) * sizeof(float)), 1, z(m.chunk())))) {
    const int tables = static_cast<int>(weights.rope().size());
    const std::size_t bytes =
        Buffers::carve(nullptr, m.chunk(), widths, tables, m.kv_type(), fast, nullptr);
    memory = PageBuffer(bytes, "a chunk's activations");
    Buffers::carve(memory.data(), m.chunk(), widths, tables, m.kv_type(), fast, &b);
    for (const bool count : {true, false}) {
      Carver c(count ? nullptr : head_memory.data());
      const std::size_t n = z(head_rows) * z(config.hidden);
      head_in.x = c.take<float>(n);
      head_in.codes = c.take<std::int8_t>(n);
      head_in.scales = c.take<std::uint16_t>(n / kQ8Block + 1);
      logits = c.take<float>(z(head_rows) * z(config.vocab));
      if (count) head_memory = PageBuffer(c.used(), "the logits");
    }
  }

  // ---- helpers ----

  template <class F>
  void each_token(F&& row) {
    parallel_for(stream.pool, z(tokens), 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t t = begin; t < end; ++t) row(t);
    });
  }

  Workspace workspace(std::size_t bytes) {
    if (bytes > scratch.bytes()) scratch = PageBuffer(bytes, "an op's scratch");
    return {scratch.data(), scratch.bytes()};
  }

  // The row's int8 form where a matrix of the fast lane will read it.
  void quantise(const Activation& a, std::size_t row, int width) const {
    if (!fast || width % kQ8Block != 0) return;
    const std::size_t at = row * z(width);
    quantize_q8(a.x + at, z(width), a.codes + at, a.scales + at / kQ8Block);
  }

  void multiply(const Matrix& m, const float* x, Q8View xq, int rows, float* y) {
    if (rows <= kFewTokens) {
      const GemvQuant::Shape shape{rows, m.few.rows, m.few.cols, m.few.type, model.numerics()};
      ops.gemv(shape, {m.few, x, xq, y}, workspace(ops.gemv.workspace_bytes(shape)), stream);
    } else {
      const GemmQuant::Shape shape{rows, m.many.rows, m.many.cols, m.many.type, model.numerics()};
      ops.gemm(shape, {m.many, x, xq, y}, workspace(ops.gemm.workspace_bytes(shape)), stream);
    }
  }
  // Part after part into y, each [tokens][its rows].
  void multiply(const MatrixStack& s, const Activation& a, float* y) {
    for (int p = 0; p < s.parts; ++p) {
      multiply(s.part[p], a.x, a.q8(), tokens, y);
      y += z(tokens) * z(s.part[p].few.rows);
    }
  }
  // Where stacked row `first` of token 0 lies in the output of multiply, and the distance between tokens.
  struct Column {
    float* base;
    std::size_t stride;
    float* row(std::size_t t) const { return base + t * stride; }
  };
  Column column(const MatrixStack& s, float* y, int first) const {
    int p = 0;
    while (first >= s.part[p].few.rows) {
      first -= s.part[p].few.rows;
      y += z(tokens) * z(s.part[p].few.rows);
      ++p;
    }
    return {y + first, z(s.part[p].few.rows)};
  }

  void stage(const char* name, int width, const float* data) const {
    hooks.stage({name, layer, position, tokens, width, data});
  }

  // ---- the layer's two halves: stock chains of the composites ----

  void attention_chain() {
    const AttentionWeights& w = weights.attention()[z(layer)];
    const int d = config.hidden;
    each_token([&](std::size_t t) {
      pointwise::rms_norm(b.x + t * z(d), w.norm, d, w.eps, b.a.x + t * z(d));
      quantise(b.a, t, d);
    });
    if (hooks.stage) stage("attn_norm", d, b.a.x);
    multiply(w.qkv, b.a, b.qkv);
    if (hooks.stage) stage_normed(w);
    rotate_and_store(w);
    attend(w);
    const int q_width = w.q_width();
    if (fast) {
      each_token([&](std::size_t t) { quantise(b.o, t, q_width); });
    }
    multiply(w.o, b.o.x, b.o.q8(), tokens, b.branch);
    if (hooks.stage) stage("attn_out", d, b.branch);
    each_token([&](std::size_t t) {
      float* h = b.h + t * z(d);
      pointwise::rms_norm(b.branch + t * z(d), w.post_norm, d, w.eps, h);
      pointwise::add(b.x + t * z(d), h, d, h);
    });
  }

  // Per-head norms, RoPE, and the new rows: into the cache for a single token, else into the fresh block.
  void rotate_and_store(const AttentionWeights& w) {
    const int hd = w.head_dim;
    const Column q = column(w.qkv, b.qkv, 0);
    const Column k = column(w.qkv, b.qkv, w.q_width());
    // Without a V projection V comes from the raw K: before its norm and its rotation.
    const Column v = w.has_v ? column(w.qkv, b.qkv, w.q_width() + w.kv_width()) : k;
    const std::size_t half = z(hd / 2);
    const auto angle =
        angles();  // not a structured binding: clang does not let a lambda capture one
    each_token([&](std::size_t t) {
      const float* c = angle.first + t * half;
      const float* s = angle.second + t * half;
      for (int h = 0; h < w.heads; ++h) {
        float* to = b.q + (t * z(w.heads) + z(h)) * z(hd);
        pointwise::rms_norm(q.row(t) + z(h) * z(hd), w.q_norm, hd, w.eps, to);
        pointwise::rope(to, hd, c, s);
      }
      const auto [k_to, v_to] = new_rows(w, t);
      alignas(64) float head[kMaxHeadDim];
      for (int h = 0; h < w.kv_heads; ++h) {
        const std::size_t at = z(h) * z(hd);
        pointwise::rms_norm(v.row(t) + at, nullptr, hd, w.eps, head);
        pointwise::store_kv(head, hd, advance(v_to, at));
        pointwise::rms_norm(k.row(t) + at, w.k_norm, hd, w.eps, head);
        pointwise::rope(head, hd, c, s);
        pointwise::store_kv(head, hd, advance(k_to, at));
      }
    });
  }

  static pointwise::KvRow advance(pointwise::KvRow row, std::size_t n) {
    return row.f32 != nullptr ? pointwise::KvRow{.f32 = row.f32 + n}
                              : pointwise::KvRow{.f16 = row.f16 + n};
  }
  std::pair<pointwise::KvRow, pointwise::KvRow> new_rows(const AttentionWeights& w,
                                                         std::size_t t) const {
    if (tokens == 1) return {cache.key_row(layer, position), cache.value_row(layer, position)};
    const std::size_t at = t * z(w.kv_width());
    if (cache.type() == KvType::kF32) {
      return {{.f32 = reinterpret_cast<float*>(b.k_fresh) + at},
              {.f32 = reinterpret_cast<float*>(b.v_fresh) + at}};
    }
    return {{.f16 = reinterpret_cast<std::uint16_t*>(b.k_fresh) + at},
            {.f16 = reinterpret_cast<std::uint16_t*>(b.v_fresh) + at}};
  }
  KvRows fresh(const std::byte* rows) const {
    if (cache.type() == KvType::kF32) return {.f32 = reinterpret_cast<const float*>(rows)};
    return {.f16 = reinterpret_cast<const std::uint16_t*>(rows)};
  }

  void attend(const AttentionWeights& w) {
    const int slots = cache.layer(layer).slots;
    if (tokens == 1) {
      const int keys = w.window > 0 ? std::min(position + 1, w.window) : position + 1;
      const AttentionDecode::Shape shape{
          w.heads, w.kv_heads, w.head_dim, position, keys, slots, cache.type()};
      ops.attention_decode(shape,
                           {b.q, cache.keys(layer), cache.values(layer), b.o.x},
                           workspace(ops.attention_decode.workspace_bytes(shape)),
                           stream);
      return;
    }
    const AttentionPrefill::Shape shape{
        tokens, w.heads, w.kv_heads, w.head_dim, position, slots, w.window, cache.type()};
    ops.attention_prefill(
        shape,
        {b.q, cache.keys(layer), cache.values(layer), fresh(b.k_fresh), fresh(b.v_fresh), b.o.x},
        workspace(ops.attention_prefill.workspace_bytes(shape)),
        stream);
    // Only now: the ring's old rows were still visible to the chunk's first tokens.
    cache.commit(layer, position, tokens, fresh(b.k_fresh), fresh(b.v_fresh));
  }

  void ffn_chain() {
    const FfnWeights& w = weights.ffn()[z(layer)];
    const int d = config.hidden;
    const int k = w.experts_used;
    each_token([&](std::size_t t) {
      // One root mean square serves the three norms of h.
      const float* h = b.h + t * z(d);
      const float r = pointwise::rms_scale(h, d, w.eps);
      pointwise::scale_row(h, r, w.dense_norm, d, b.a.x + t * z(d));
      pointwise::scale_row(h, r, w.router_scale, d, b.router_in + t * z(d));
      pointwise::scale_row(h, r, w.expert_norm, d, b.m.x + t * z(d));
      quantise(b.a, t, d);
      quantise(b.m, t, d);
    });
    multiply(w.router, b.router_in, {}, tokens, b.router_logits);
    route(w);
    if (hooks.routed) hooks.routed({layer, position, tokens, k, b.ids, b.weights});
    if (hooks.stage) stage_router(w);

    multiply(w.gate_up, b.a, b.gate_up);
    const Column gate = column(w.gate_up, b.gate_up, 0);
    const Column up = column(w.gate_up, b.gate_up, w.dense_width);
    each_token([&](std::size_t t) {
      pointwise::geglu(gate.row(t), up.row(t), w.dense_width, b.u.x + t * z(w.dense_width));
      quantise(b.u, t, w.dense_width);
    });
    multiply(w.down, b.u.x, b.u.q8(), tokens, b.branch);
    if (hooks.stage) stage("dense_out", d, b.branch);

    experts(w);
    if (hooks.stage) stage("experts_out", d, b.experts_out);
    each_token([&](std::size_t t) {
      const std::size_t at = t * z(d);
      float* dense = b.branch + at;
      float* routed = b.experts_out + at;
      pointwise::rms_norm(dense, w.dense_post_norm, d, w.eps, dense);
      pointwise::rms_norm(routed, w.expert_post_norm, d, w.eps, routed);
      pointwise::add(dense, routed, d, dense);
      pointwise::rms_norm(dense, w.post_norm, d, w.eps, dense);
      pointwise::add_scaled(b.h + at, dense, w.layer_scale, d, b.x + at);
    });
    if (hooks.stage) stage("layer_out", d, b.x);
  }

  void route(const FfnWeights& w) {
    const int k = w.experts_used;
    if (hooks.routes != nullptr) {
      each_token([&](std::size_t t) {
        std::copy_n(hooks.routes->at(layer, position + static_cast<int>(t)), k, b.ids + t * z(k));
        pointwise::route_weights(b.router_logits + t * z(w.experts),
                                 w.expert_scale,
                                 b.ids + t * z(k),
                                 k,
                                 b.weights + t * z(k));
      });
      return;
    }
    const RouterTopk::Shape shape{tokens, w.experts, k};
    ops.router(shape,
               {b.router_logits, w.expert_scale, b.ids, b.weights},
               workspace(ops.router.workspace_bytes(shape)),
               stream);
  }

  template <class Op>
  void run_experts(Dispatch<Op>& op, const FfnWeights& w, const ExpertMatrices& e) {
    const QuantView& first = w.fused_experts ? e.gate_up : e.gate;
    const typename Op::Shape shape{tokens,
                                   w.hidden,
                                   w.expert_width,
                                   w.experts,
                                   w.experts_used,
                                   w.fused_experts,
                                   first.type,
                                   e.down.type,
                                   model.numerics()};
    op(shape,
       {e.gate_up, e.gate, e.up, e.down, b.ids, b.weights, b.m.x, b.m.q8(), b.experts_out},
       workspace(op.workspace_bytes(shape)),
       stream);
  }
  void experts(const FfnWeights& w) {
    if (tokens <= kFewTokens) {
      run_experts(ops.experts_few, w, w.experts_few);
    } else {
      run_experts(ops.experts_many, w, w.experts_many);
    }
  }

  // ---- stages that need their own copy ----

  void stage_normed(const AttentionWeights& w) const {
    const auto normed = [&](const char* name, int first, int heads, const float* weight) {
      const Column from = column(w.qkv, b.qkv, first);
      const int width = heads * w.head_dim;
      std::vector<float> rows(z(tokens) * z(width));
      for (std::size_t t = 0; t < z(tokens); ++t) {
        for (std::size_t h = 0; h < z(heads); ++h) {
          pointwise::rms_norm(from.row(t) + h * z(w.head_dim),
                              weight,
                              w.head_dim,
                              w.eps,
                              rows.data() + t * z(width) + h * z(w.head_dim));
        }
      }
      stage(name, width, rows.data());
    };
    normed("q_normed", 0, w.heads, w.q_norm);
    normed("k_normed", w.q_width(), w.kv_heads, w.k_norm);
    normed("v_normed", w.q_width() + (w.has_v ? w.kv_width() : 0), w.kv_heads, nullptr);
  }

  void stage_router(const FfnWeights& w) const {
    std::vector<float> rows(z(tokens) * z(w.experts));
    for (std::size_t t = 0; t < z(tokens); ++t) {
      pointwise::softmax(
          b.router_logits + t * z(w.experts), w.experts, rows.data() + t * z(w.experts));
    }
    stage("router_probs", w.experts, rows.data());
    stage("router_weights", w.experts_used, b.weights);
    rows.assign(b.ids, b.ids + z(tokens) * z(w.experts_used));
    stage("router_ids", w.experts_used, rows.data());
  }

  // ---- the chunk ----

  std::pair<const float*, const float*> angles() const {
    const std::size_t at = z(weights.rope_of(layer)) * z(model.chunk()) * z(widths.half_head);
    return {b.cosine + at, b.sine + at};
  }

  void embed() {
    const int d = config.hidden;
    const float scale = std::sqrt(static_cast<float>(d));
    each_token([&](std::size_t t) {
      const float* frame = hooks.frame ? hooks.frame(position + static_cast<int>(t)) : nullptr;
      if (frame != nullptr) {
        std::copy_n(frame, d, b.x + t * z(d));
      } else {
        pointwise::embed(weights.embedding(), ids[t], scale, b.x + t * z(d));
      }
      for (std::size_t r = 0; r < weights.rope().size(); ++r) {
        const auto& table = weights.rope()[r];
        const std::size_t half = z(table.head_dim / 2);
        const std::size_t at = r * z(model.chunk()) * z(widths.half_head) + t * half;
        pointwise::rope_angles(position + static_cast<int>(t),
                               table.frequency.data(),
                               static_cast<int>(half),
                               b.cosine + at,
                               b.sine + at);
      }
    });
  }

  void layers() {
    for (layer = 0; layer < config.layers; ++layer) {
      const AttentionWeights& w = weights.attention()[z(layer)];
      const KvCache::Layer& rows = cache.layer(layer);
      const auto [cosine, sine] = angles();
      ops.attention_block(
          {tokens,
           position,
           rows.slots,
           config.hidden,
           w.kv_width(),
           cache.type(),
           model.numerics()},
          {.weights = &w,
           .x = b.x,
           .cosine = cosine,
           .sine = sine,
           .k_f32 = rows.k_f32,
           .v_f32 = rows.v_f32,
           .k_f16 = rows.k_f16,
           .v_f16 = rows.v_f16,
           .h = b.h,
           .chain = {[](void* s) { static_cast<State*>(s)->attention_chain(); }, this}},
          {},
          stream);
      const std::int32_t* routes = nullptr;
      if (hooks.routes != nullptr) {
        forced.resize(z(tokens) * z(config.experts_used));
        for (int t = 0; t < tokens; ++t) {
          std::copy_n(hooks.routes->at(layer, position + t),
                      config.experts_used,
                      forced.begin() + static_cast<std::ptrdiff_t>(t) * config.experts_used);
        }
        routes = forced.data();
      }
      ops.ffn_block({tokens, config.hidden, config.experts_used, model.numerics()},
                    {.weights = &weights.ffn()[z(layer)],
                     .h = b.h,
                     .forced_ids = routes,
                     .ids = b.ids,
                     .weights_out = b.weights,
                     .out = b.x,
                     .chain = {[](void* s) { static_cast<State*>(s)->ffn_chain(); }, this}},
                    {},
                    stream);
    }
  }

  // Logits of `rows` activation rows (indices into the chunk) into `logits`.
  void head(std::span<const int> rows) {
    const int d = config.hidden;
    const int v = config.vocab;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      pointwise::rms_norm(
          b.x + z(rows[i]) * z(d), weights.output_norm(), d, config.eps, head_in.x + i * z(d));
      quantise(head_in, i, d);
    }
    multiply(weights.head(), head_in.x, head_in.q8(), static_cast<int>(rows.size()), logits);
    constexpr int kStep = 1024;
    parallel_for(stream.pool, rows.size() * z(v), kStep, [&](std::size_t begin, std::size_t end) {
      pointwise::softcap(logits + begin, static_cast<int>(end - begin), config.softcap);
    });
  }

  void decode_chain() {
    embed();
    layers();
    const int row = 0;
    head({&row, 1});
  }

  void decode_one() {
    const DecodeToken::Shape shape{config.layers,
                                   config.hidden,
                                   config.vocab,
                                   position,
                                   cache.elements(),
                                   cache.type(),
                                   model.numerics()};
    ops.decode_token(shape,
                     {.id = ids[0],
                      .embedding = weights.embedding(),
                      .embedding_scale = std::sqrt(static_cast<float>(config.hidden)),
                      .attention = weights.attention().data(),
                      .ffn = weights.ffn().data(),
                      .layers = cache.offsets().data(),
                      .cache_f32 = cache.f32(),
                      .cache_f16 = cache.f16(),
                      .output_norm = weights.output_norm(),
                      .head = weights.head(),
                      .softcap = config.softcap,
                      .logits = logits,
                      .chain = {[](void* s) { static_cast<State*>(s)->decode_chain(); }, this}},
                     {},
                     stream);
  }

  void check(std::span<const TokenId> all) const {
    if (static_cast<int>(all.size()) > cache.context() - position) {
      throw UserError("context full: " + std::to_string(all.size()) + " tokens after " +
                      std::to_string(position) + " do not fit into " +
                      std::to_string(cache.context()) + " (--ctx)");
    }
    for (const TokenId id : all) {
      if (id < 0 || id >= config.vocab) {
        throw UserError("token id " + std::to_string(id) + ": must be 0.." +
                        std::to_string(config.vocab - 1));
      }
    }
  }

  void feed(std::span<const TokenId> all, const WantsLogits& wants, const LogitsSink& sink) {
    check(all);
    std::vector<int> wanted;
    while (!all.empty()) {
      const auto n = std::min<std::size_t>(all.size(), z(model.chunk()));
      ids = all.data();
      tokens = static_cast<int>(n);
      if (n == 1 && wants(position) &&
          !hooks.frame) {  // a frame is no token for the whole-token op
        decode_one();
        sink(position, {logits, z(config.vocab)});
      } else {
        embed();
        layers();
        for (int t = 0; t < tokens;) {
          wanted.clear();
          for (; t < tokens && static_cast<int>(wanted.size()) < head_rows; ++t) {
            if (wants(position + t)) wanted.push_back(t);
          }
          if (wanted.empty()) continue;
          head(wanted);
          for (std::size_t i = 0; i < wanted.size(); ++i) {
            sink(position + wanted[i], {logits + i * z(config.vocab), z(config.vocab)});
          }
        }
      }
      position += tokens;
      sequence.wrote();
      all = all.subspan(n);
    }
  }
};

Session::Session(Model& model, int slack) : state_(std::make_unique<State>(model, slack)) {}
Session::~Session() = default;
int Session::position() const { return state_->position; }
int Session::room() const { return state_->cache.context() - state_->position; }
void Session::reset() {
  state_->position = 0;
  state_->sequence.local_from = 0;
}
void Session::set_hooks(SessionHooks hooks) { state_->hooks = std::move(hooks); }
Sequence& Session::sequence() const { return state_->sequence; }
void Session::exchange(Sequence& other) { std::swap(state_->sequence, other); }

void Session::feed(std::span<const TokenId> ids, const WantsLogits& wants, const LogitsSink& sink) {
  state_->feed(ids, wants, sink);
}

std::span<const float> Session::feed(std::span<const TokenId> ids) {
  if (ids.empty()) throw UserError("no tokens to feed");
  const int last = position() + static_cast<int>(ids.size()) - 1;
  std::span<const float> logits;
  state_->feed(
      ids,
      [&](int p) { return p == last; },
      [&](int, std::span<const float> row) { logits = row; });
  return logits;
}

}  // namespace assay
