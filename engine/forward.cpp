#include "engine/forward.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "engine/activations.h"
#include "engine/model_ops.h"
#include "engine/sampler.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/range.h"

namespace assay {
namespace {

// Of a chunk's activations on the host; a card's chunk is as long as its memory allows.
constexpr std::size_t kActivationBytes = std::size_t{32} << 20;
constexpr int kCardChunk = 2048;
constexpr std::size_t kLogitsBytes = std::size_t{8} << 20;
// Of a card, beside what is counted: graphs, the kernels' code and stacks.
constexpr std::size_t kSpareBytes = std::size_t{64} << 20;

std::size_t z(int n) { return static_cast<std::size_t>(n); }

// Logits of some rows of a chunk, and the normed rows that they come from.
struct HeadArrays {
  pointwise::Activation in;  // [rows][hidden]
  float* logits = nullptr;   // [rows][vocab]
  std::uint64_t* scratch = nullptr;
  std::int32_t* best = nullptr;  // [1]

  static std::size_t carve(std::byte* base, int rows, int hidden, int vocab, HeadArrays* out) {
    Carver c(base);
    HeadArrays b;
    b.in = c.activation(z(rows), hidden, true);
    b.logits = c.take<float>(z(rows) * z(vocab));
    b.scratch = c.take<std::uint64_t>(pointwise::kArgmaxScratch);
    b.best = c.take<std::int32_t>(1);
    if (out != nullptr) *out = b;
    return c.used();
  }
};
int head_rows(int vocab, int chunk) {
  return static_cast<int>(
      std::clamp<std::size_t>(kLogitsBytes / (z(vocab) * sizeof(float)), 1, z(chunk)));
}

}  // namespace

std::size_t MemoryPlan::total() const {
  return weights + cache + activations + logits + scratch + spare;
}

std::string MemoryPlan::describe() const {
  return std::to_string(weights) + " weights, " + std::to_string(cache) + " cache, " +
         std::to_string(activations) + " activations, " + std::to_string(logits) + " logits, " +
         std::to_string(scratch) + " scratch, " + std::to_string(spare) + " spare";
}

Model::Model(const std::string& path, const ModelSettings& settings)
    : path_(path), settings_(settings) {
  if (settings_.threads == 0) settings_.threads = std::clamp(host_device().threads, 1, 256);
  space_ = std::make_unique<MemorySpace>(settings_.backend, settings_.threads);
  const GgufFile file = GgufFile::open(path);
  config_ = read_config(file);
  for (const auto& layer : config_.layer) {
    if (layer.head_dim > pointwise::kMaxHeadDim) {
      throw InputError(path + ": head size " + std::to_string(layer.head_dim) + " is above " +
                       std::to_string(pointwise::kMaxHeadDim));
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
  tokenizer_ = Tokenizer::load(file);
  ops_ = std::make_unique<Ops>(settings_, space_->device());
  const WeightLayouts layouts = ops_->layouts();
  plan(Weights::planned(file, config_, layouts, *space_));
  weights_ = std::make_unique<Weights>(file, config_, layouts, *space_);
  const std::string why = space_->on_card() ? ops_->why_no_graph() : "";
  if (!why.empty()) ASSAY_LOG(info, "decode runs op by op, not as one graph: {}", why);
}

Model::~Model() = default;

MemoryPlan Model::plan_for(const Weights& planned, int chunk) const {
  const ActivationShape shape{
      chunk, static_cast<int>(planned.rope().size()), kv_type(), numerics() == Numerics::kFast};
  MemoryPlan p;
  p.weights = planned.bytes();
  p.cache = KvCache::bytes_for(config_, kv_type(), context());
  p.activations = Activations::carve(nullptr, shape, Widths(config_), nullptr);
  p.logits = HeadArrays::carve(
      nullptr, head_rows(config_.vocab, chunk), config_.hidden, config_.vocab, nullptr);
  p.scratch = ops_->scratch_bytes(planned, chunk, context(), kv_type(), numerics());
  p.spare = space_->on_card() ? kSpareBytes : 0;
  return p;
}

// Chooses the chunk, if it was not given, and refuses before anything is loaded what a card cannot hold.
void Model::plan(const Weights& planned) {
  int& chunk = settings_.chunk;
  const bool given = chunk != 0;
  if (!space_->on_card()) {
    if (!given) {
      const std::size_t token = plan_for(planned, 64).activations / 64;
      chunk =
          static_cast<int>(std::clamp<std::size_t>(kActivationBytes / token / 32 * 32, 32, 512));
    }
    plan_ = plan_for(planned, chunk);
    return;
  }
  const gpu::MemoryState memory = gpu::memory();
  std::size_t available = memory.free_bytes;
  const char* limit = "free on the card";
  if (settings_.vram_budget_bytes > 0) {
    const std::size_t left = settings_.vram_budget_bytes > memory.held_bytes
                                 ? settings_.vram_budget_bytes - memory.held_bytes
                                 : 0;
    if (left < available) limit = "left of --vram-budget";
    available = std::min(available, left);
  }
  if (!given) chunk = std::min(kCardChunk, context());
  for (;;) {
    plan_ = plan_for(planned, chunk);
    if (plan_.total() <= available) return;
    if (given || chunk <= 32) break;
    chunk = std::max(32, chunk / 2);
  }
  throw HardwareError("the card's memory is " + std::to_string(plan_.total() - available) +
                      " bytes short for " + path_ + ": " + std::to_string(plan_.total()) +
                      " bytes needed (" + plan_.describe() + "), " + std::to_string(available) +
                      " " + limit + "; --ctx " + std::to_string(context()) +
                      " sets the cache, --kv f16 halves it");
}

std::vector<DispatchReport> Model::reports() const { return ops_->reports(); }
const DeviceInfo& Model::device() const { return space_->device(); }

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
  const MemorySpace& space;
  const pointwise::Steps& steps;
  Model::Ops& ops;
  Stream stream;
  bool fast;
  Sequence sequence;
  KvCache& cache = sequence.cache;
  int& position = sequence.position;
  SessionHooks hooks;

  Widths widths;
  SpaceBuffer memory;
  Activations b;
  int rows_at_once;  // rows of logits computed at once
  SpaceBuffer head_memory;
  HeadArrays out;
  SpaceBuffer scratch;
  SpaceBuffer block_rows;          // keys and values around a block, see attend_block
  gpu::Buffer landing;             // pinned, of a card's logits
  std::vector<std::int32_t> sent;  // position and ids of the chunk

  // The chunk and layer being computed; the composites' chains read them.
  const TokenId* ids = nullptr;
  int tokens = 0;
  int layer = 0;
  // Of a token whose launches are recorded, or repeated as recorded: the largest position that they serve. Else -1.
  int live_to = -1;
  struct TokenGraph {
    bool ran = false;
    gpu::Graph graph;
    std::vector<DispatchReport> before, after;  // around the recording: what every replay counts
  };
  std::map<int, TokenGraph> graphs;  // by the largest position that they serve
  std::string why_no_graph;          // empty: nothing known against it

  State(Model& m, int slack)
      : model(m),
        config(m.config_),
        weights(*m.weights_),
        space(*m.space_),
        steps(m.space_->steps()),
        ops(*m.ops_),
        stream(m.space_->stream()),
        fast(m.numerics() == Numerics::kFast),
        sequence(m.config_, m.kv_type(), m.context(), *m.space_, slack),
        widths(m.config_),
        rows_at_once(head_rows(m.config_.vocab, m.chunk())) {
    const ActivationShape shape{
        m.chunk(), static_cast<int>(weights.rope().size()), m.kv_type(), fast};
    memory = space.allocate(Activations::carve(nullptr, shape, widths, nullptr),
                            "a chunk's activations");
    Activations::carve(memory.data(), shape, widths, &b);
    head_memory = space.allocate(
        HeadArrays::carve(nullptr, rows_at_once, config.hidden, config.vocab, nullptr),
        "the logits");
    HeadArrays::carve(head_memory.data(), rows_at_once, config.hidden, config.vocab, &out);
    if (!fast) out.in.codes = nullptr;
    if (space.on_card()) {
      why_no_graph = ops.why_no_graph();
      // All at once and now: a call must not allocate, and a graph keeps the address.
      scratch = space.allocate(m.plan().scratch, "the ops' scratch");
      landing = gpu::Buffer(z(rows_at_once) * z(config.vocab) * sizeof(float), gpu::Place::kPinned);
    }
  }

  // ---- helpers ----

  Workspace workspace(std::size_t bytes) {
    if (bytes > scratch.bytes()) {
      if (space.on_card()) {
        throw std::logic_error("an op asks for " + std::to_string(bytes) + " bytes of scratch, " +
                               std::to_string(scratch.bytes()) + " were planned");
      }
      scratch = space.allocate(bytes, "an op's scratch");
    }
    return {scratch.data(), scratch.bytes()};
  }

  void multiply(const Matrix& m, const float* x, Q8View xq, int rows, float* y) {
    if (rows <= kFewTokens) {
      const auto shape = product_shape<GemvQuant>(m.few, rows, model.numerics());
      ops.gemv(shape, {m.few, x, xq, y}, workspace(ops.gemv.workspace_bytes(shape)), stream);
    } else {
      const auto shape = product_shape<GemmQuant>(m.many, rows, model.numerics());
      ops.gemm(shape, {m.many, x, xq, y}, workspace(ops.gemm.workspace_bytes(shape)), stream);
    }
  }
  // Part after part into y, each [tokens][its rows].
  void multiply(const MatrixStack& s, const pointwise::Activation& a, float* y) {
    for (int p = 0; p < s.parts; ++p) {
      multiply(s.part[p], a.x, a.q8(), tokens, y);
      y += z(tokens) * z(s.part[p].few.rows);
    }
  }
  // Where stacked row `first` of every token lies in the output of multiply.
  pointwise::Columns column(const MatrixStack& s, const float* y, int first) const {
    int p = 0;
    while (first >= s.part[p].few.rows) {
      first -= s.part[p].few.rows;
      y += z(tokens) * z(s.part[p].few.rows);
      ++p;
    }
    return {y + first, z(s.part[p].few.rows)};
  }

  void stage(const char* name, int width, const float* data) const {
    std::vector<float> copy;
    data = space.view(data, z(tokens) * z(width), copy);
    stage_host(name, width, data);
  }
  void stage_host(const char* name, int width, const float* data) const {
    hooks.stage({name, layer, position, tokens, width, data});
  }

  // ---- the layer's two halves: stock chains of the composites ----

  void attention_chain() {
    const Range range("attention half");
    const AttentionWeights& w = weights.attention()[z(layer)];
    const int d = config.hidden;
    steps.norm(b.x, w.norm, tokens, d, w.eps, b.a, stream);
    if (hooks.stage) stage("attn_norm", d, b.a.x);
    multiply(w.qkv, b.a, b.qkv);
    if (hooks.stage) stage_normed(w);
    split_heads(w);
    attend(w);
    steps.quantise(b.o, tokens, w.q_width(), stream);
    multiply(w.o, b.o.x, b.o.q8(), tokens, b.branch);
    if (hooks.stage) stage("attn_out", d, b.branch);
    steps.add_norm(b.x, b.branch, w.post_norm, tokens, d, w.eps, b.h, stream);
  }

  // The new rows go into the cache for a single token, else into the fresh block.
  void split_heads(const AttentionWeights& w) {
    const auto k = column(w.qkv, b.qkv, w.q_width());
    const auto [cosine, sine] = angles();
    const bool one = tokens == 1;
    steps.heads({.q = column(w.qkv, b.qkv, 0),
                 .k = k,
                 // Without a V projection V comes from the raw K: before its norm and its rotation.
                 .v = w.has_v ? column(w.qkv, b.qkv, w.q_width() + w.kv_width()) : k,
                 .q_norm = w.q_norm,
                 .k_norm = w.k_norm,
                 .cosine = cosine,
                 .sine = sine,
                 .q_out = b.q,
                 .k_out = one ? cache.key_rows(layer) : fresh_out(b.k_fresh),
                 .v_out = one ? cache.value_rows(layer) : fresh_out(b.v_fresh),
                 .position = one ? b.position : nullptr,
                 .slots = cache.layer(layer).slots,
                 .heads = w.heads,
                 .kv_heads = w.kv_heads,
                 .head_dim = w.head_dim,
                 .eps = w.eps},
                tokens,
                stream);
  }
  pointwise::KvRow fresh_out(std::byte* rows) const {
    if (cache.type() == KvType::kF32) return {.f32 = reinterpret_cast<float*>(rows)};
    return {.f16 = reinterpret_cast<std::uint16_t*>(rows)};
  }
  KvRows fresh(std::byte* rows) const {
    const auto out_rows = fresh_out(rows);
    return {out_rows.f32, out_rows.f16};
  }

  void attend(const AttentionWeights& w) {
    const int slots = cache.layer(layer).slots;
    if (tokens == 1) {
      const bool live = live_to >= 0;
      const auto shape = decode_shape(w, live ? live_to : position, slots, cache.type(), live);
      ops.attention_decode(shape,
                           {b.q, cache.keys(layer), cache.values(layer), b.o.x, b.position},
                           workspace(ops.attention_decode.workspace_bytes(shape)),
                           stream);
      return;
    }
    if (hooks.same_block && cache.layer(layer).window > 0) {
      attend_block(w);
    } else {
      const auto shape = prefill_shape(w, tokens, position, slots, cache.type());
      ops.attention_prefill(
          shape,
          {b.q, cache.keys(layer), cache.values(layer), fresh(b.k_fresh), fresh(b.v_fresh), b.o.x},
          workspace(ops.attention_prefill.workspace_bytes(shape)),
          stream);
    }
    // Only now: the ring's old rows were still visible to the chunk's first tokens.
    cache.commit(layer, position, tokens, fresh(b.k_fresh), fresh(b.v_fresh));
  }

  // A block whose tokens see one another: every query is the decode op's, standing at the block's end and seeing so many
  // keys more that its window begins where it would. The keys lie together for it, as a ring of just their number.
  void attend_block(const AttentionWeights& w) {
    const int window = cache.layer(layer).window;
    const int first = std::max(0, position - (window - 1));
    const int end = position + tokens;
    const int slots = end - first;
    const std::size_t row = z(w.kv_width()) * kv_bytes(cache.type());
    const std::size_t half = (z(slots) * row + 63) / 64 * 64;
    if (2 * half > block_rows.bytes()) block_rows = space.allocate(2 * half, "a block's rows");
    const auto start = [](const pointwise::KvRow& r) {
      return r.f32 != nullptr ? reinterpret_cast<const std::byte*>(r.f32)
                              : reinterpret_cast<const std::byte*>(r.f16);
    };
    std::byte* const keys = block_rows.data();
    std::byte* const values = keys + half;
    for (int j = first; j < end; ++j) {
      const std::size_t to = z(j % slots) * row;
      const std::size_t at = z(std::max(0, j - position)) * row;
      const bool old = j < position;
      space.copy(keys + to, old ? start(cache.key_row(layer, j)) : b.k_fresh + at, row);
      space.copy(values + to, old ? start(cache.value_row(layer, j)) : b.v_fresh + at, row);
    }
    for (int t = 0; t < tokens; ++t) {
      AttentionDecode::Shape shape = decode_shape(w, end - 1, slots, cache.type(), false);
      shape.keys = end - std::max(0, position + t - (window - 1));
      const std::size_t q = z(t) * z(w.q_width());
      ops.attention_decode(shape,
                           {b.q + q, fresh(keys), fresh(values), b.o.x + q, nullptr},
                           workspace(ops.attention_decode.workspace_bytes(shape)),
                           stream);
    }
  }

  void ffn_chain() {
    const Range range("FFN half");
    const FfnWeights& w = weights.ffn()[z(layer)];
    const int d = config.hidden;
    steps.ffn_in({.h = b.h,
                  .dense_norm = w.dense_norm,
                  .router_scale = w.router_scale,
                  .expert_norm = w.expert_norm,
                  .dense = b.a,
                  .router = b.router_in,
                  .experts = b.m,
                  .hidden = d,
                  .eps = w.eps},
                 tokens,
                 stream);
    multiply(w.router, b.router_in, {}, tokens, b.router_logits);
    route(w);
    if (hooks.routed) show_routes(w);
    if (hooks.stage) stage_router(w);

    multiply(w.gate_up, b.a, b.gate_up);
    steps.geglu(column(w.gate_up, b.gate_up, 0),
                column(w.gate_up, b.gate_up, w.dense_width),
                tokens,
                w.dense_width,
                b.u,
                stream);
    multiply(w.down, b.u.x, b.u.q8(), tokens, b.branch);
    if (hooks.stage) stage("dense_out", d, b.branch);

    experts(w);
    if (hooks.stage) stage("experts_out", d, b.experts_out);
    steps.ffn_out({.h = b.h,
                   .dense = b.branch,
                   .routed = b.experts_out,
                   .dense_norm = w.dense_post_norm,
                   .routed_norm = w.expert_post_norm,
                   .norm = w.post_norm,
                   .layer_scale = w.layer_scale,
                   .x = b.x,
                   .hidden = d,
                   .eps = w.eps},
                  tokens,
                  stream);
    if (hooks.stage) stage("layer_out", d, b.x);
  }

  void route(const FfnWeights& w) {
    const int k = w.experts_used;
    if (hooks.routes != nullptr) {
      space.copy(b.ids, b.forced, z(tokens) * z(k) * sizeof(std::int32_t));
      steps.route_weights(
          b.router_logits, w.experts, w.expert_scale, b.ids, tokens, k, b.weights, stream);
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
    const auto shape = experts_shape<Op>(w, e, tokens, model.numerics());
    op(shape,
       {e.gate_up, e.gate, e.up, e.down, b.ids, b.weights, b.m.x, b.m.q8(), b.experts_out},
       workspace(op.workspace_bytes(shape)),
       stream);
  }
  void experts(const FfnWeights& w) {
    if (tokens <= kFewTokens) {
      ops.with_few_experts([&](auto& op) { run_experts(op, w, w.experts_few); });
    } else {
      run_experts(ops.experts_prefill, w, w.experts_many);
    }
  }

  // ---- what hooks see ----

  void show_routes(const FfnWeights& w) const {
    std::vector<std::int32_t> chosen;
    std::vector<float> mixed;
    const std::size_t n = z(tokens) * z(w.experts_used);
    hooks.routed({layer,
                  position,
                  tokens,
                  w.experts_used,
                  space.view(b.ids, n, chosen),
                  space.view(b.weights, n, mixed)});
  }

  void stage_normed(const AttentionWeights& w) const {
    std::vector<float> raw_copy;
    std::vector<float> weight_copy;
    const float* raw = space.view(b.qkv, z(tokens) * z(w.qkv_rows()), raw_copy);
    const auto normed = [&](const char* name, int first, int heads, const float* weight) {
      const auto from = column(w.qkv, raw, first);
      if (weight != nullptr) weight = space.view(weight, z(w.head_dim), weight_copy);
      const int width = heads * w.head_dim;
      std::vector<float> rows(z(tokens) * z(width));
      for (std::size_t t = 0; t < z(tokens); ++t) {
        for (std::size_t h = 0; h < z(heads); ++h) {
          pointwise::rms_norm(from.base + t * from.stride + h * z(w.head_dim),
                              weight,
                              w.head_dim,
                              w.eps,
                              rows.data() + t * z(width) + h * z(w.head_dim));
        }
      }
      stage_host(name, width, rows.data());
    };
    normed("q_normed", 0, w.heads, w.q_norm);
    normed("k_normed", w.q_width(), w.kv_heads, w.k_norm);
    normed("v_normed", w.q_width() + (w.has_v ? w.kv_width() : 0), w.kv_heads, nullptr);
  }

  void stage_router(const FfnWeights& w) const {
    std::vector<float> logits_copy;
    const float* router = space.view(b.router_logits, z(tokens) * z(w.experts), logits_copy);
    std::vector<float> rows(z(tokens) * z(w.experts));
    for (std::size_t t = 0; t < z(tokens); ++t) {
      pointwise::softmax(router + t * z(w.experts), w.experts, rows.data() + t * z(w.experts));
    }
    stage_host("router_probs", w.experts, rows.data());
    stage("router_weights", w.experts_used, b.weights);
    std::vector<std::int32_t> chosen;
    const std::size_t n = z(tokens) * z(w.experts_used);
    const std::int32_t* chosen_ids = space.view(b.ids, n, chosen);
    rows.assign(chosen_ids, chosen_ids + n);
    stage_host("router_ids", w.experts_used, rows.data());
  }

  // ---- the chunk ----

  std::pair<float*, float*> angles_of(std::size_t table) const {
    const std::size_t at = table * z(model.chunk()) * z(widths.half_head);
    return {b.cosine + at, b.sine + at};
  }
  std::pair<const float*, const float*> angles() const {
    return angles_of(z(weights.rope_of(layer)));
  }

  // The chunk's position and ids to where the steps read them.
  void send_ids() {
    sent.assign(1, position);
    sent.insert(sent.end(), ids, ids + tokens);
    space.put(b.position, sent.data(), sent.size() * sizeof(std::int32_t));
  }

  void embed() {
    const int d = config.hidden;
    steps.embed(
        weights.embedding(), b.token_ids, tokens, std::sqrt(static_cast<float>(d)), b.x, stream);
    for (int t = 0; hooks.frame && t < tokens; ++t) {
      if (const float* frame = hooks.frame(position + t))
        space.put(b.x + z(t) * z(d), frame, z(d) * sizeof(float));
    }
    for (std::size_t r = 0; r < weights.rope().size(); ++r) {
      const auto& table = weights.rope()[r];
      const auto [cosine, sine] = angles_of(r);
      steps.angles(b.position, tokens, table.frequency, table.head_dim / 2, cosine, sine, stream);
    }
  }

  void layers() {
    for (layer = 0; layer < config.layers; ++layer) {
      const AttentionWeights& w = weights.attention()[z(layer)];
      const KvCache::Layer& rows = cache.layer(layer);
      const auto [cosine, sine] = angles();
      if (hooks.same_block) {  // what no composite knows
        attention_chain();
      } else {
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
      }
      if (hooks.routes != nullptr) send_routes();
      ops.ffn_block({tokens, config.hidden, config.experts_used, model.numerics()},
                    {.weights = &weights.ffn()[z(layer)],
                     .h = b.h,
                     .forced_ids = hooks.routes != nullptr ? b.forced : nullptr,
                     .ids = b.ids,
                     .weights_out = b.weights,
                     .out = b.x,
                     .chain = {[](void* s) { static_cast<State*>(s)->ffn_chain(); }, this}},
                    {},
                    stream);
    }
  }

  void send_routes() {
    const int k = config.experts_used;
    std::vector<std::int32_t> forced;
    for (int t = 0; t < tokens; ++t) {
      const std::int32_t* from = hooks.routes->at(layer, position + t);
      forced.insert(forced.end(), from, from + k);
    }
    space.put(b.forced, forced.data(), forced.size() * sizeof(std::int32_t));
  }

  // Logits of `rows` activation rows (rising indices into the chunk) into out.logits.
  void head(std::span<const int> rows) {
    const Range range("head");
    const int d = config.hidden;
    for (std::size_t i = 0; i < rows.size();) {
      std::size_t end = i + 1;
      while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
      pointwise::Activation in = out.in;
      in.x += i * z(d);
      if (in.codes != nullptr) {
        in.codes += i * z(d);
        in.scales += i * z(d) / kQ8Block;
      }
      steps.norm(b.x + z(rows[i]) * z(d),
                 weights.output_norm(),
                 static_cast<int>(end - i),
                 d,
                 config.eps,
                 in,
                 stream);
      i = end;
    }
    multiply(weights.head(), out.in.x, out.in.q8(), static_cast<int>(rows.size()), out.logits);
    steps.softcap(out.logits, rows.size() * z(config.vocab), config.softcap, stream);
  }

  // The first rows of logits where the host can read them, until the next call.
  const float* logits_on_host(std::size_t rows) {
    if (!space.on_card()) return out.logits;
    auto* to = reinterpret_cast<float*>(landing.data());
    space.get(to, out.logits, rows * z(config.vocab) * sizeof(float));
    return to;
  }

  void token_chain() {
    embed();
    layers();
    const int row = 0;
    head({&row, 1});
  }

  // ---- a whole token as one graph ----

  // Whether a token's launches may be recorded: on a card, when nothing watches or steers them and no op waits for the host.
  bool may_record() const {
    return space.on_card() && why_no_graph.empty() && !hooks.stage && !hooks.routed &&
           hooks.routes == nullptr;
  }
  // Position and ids are read on the card, so one graph serves many tokens; launch shapes still grow with the depth. So a
  // graph serves positions up to the next multiple of a quarter of their power of two, and of 256 at least.
  int served_to(int at) const {
    int step = 256;
    while (8 * step <= at) step *= 2;
    return std::min((at / step + 1) * step, cache.context()) - 1;
  }
  void record(TokenGraph& to) {
    const auto before = ops.reports();
    try {
      to.graph = gpu::Graph::capture(stream, [this] { token_chain(); });
    } catch (const Error& e) {
      why_no_graph = e.what();
      ASSAY_LOG(info, "decode runs op by op, not as one graph: {}", why_no_graph);
      return;
    }
    to.before = before;
    to.after = ops.reports();
  }

  void decode_chain() {
    if (!may_record()) {
      token_chain();
      return;
    }
    live_to = served_to(position);
    TokenGraph& g = graphs[live_to];
    const bool fresh = !g.graph;
    // The first token runs op by op: what a library or the driver sets up once must not be part of a graph.
    if (fresh && g.ran) record(g);
    g.ran = true;
    if (g.graph) {
      g.graph.launch(stream);
      if (!fresh) ops.count_again(g.before, g.after);
    } else {
      token_chain();
    }
    live_to = -1;
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
                      .logits = out.logits,
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

  // The tokens of one chunk; logits of one token stay in out.logits when it is wanted.
  void feed_chunk(std::span<const TokenId> chunk, bool one_wanted) {
    ids = chunk.data();
    tokens = static_cast<int>(chunk.size());
    send_ids();
    if (one_wanted) {
      const Range range("decode token");
      decode_one();
    } else {
      const Range range("prefill chunk");
      embed();
      layers();
    }
  }

  void feed(std::span<const TokenId> all, const WantsLogits& wants, const LogitsSink& sink) {
    check(all);
    if (hooks.same_block && (space.on_card() || all.size() > z(model.chunk()))) {
      throw UserError("a block whose tokens see one another must fit one chunk of " +
                      std::to_string(model.chunk()) + " tokens, on the host");
    }
    std::vector<int> wanted;
    while (!all.empty()) {
      const auto n = std::min<std::size_t>(all.size(), z(model.chunk()));
      // A frame is no token for the whole-token op.
      const bool one_wanted = n == 1 && wants(position) && !hooks.frame;
      feed_chunk(all.first(n), one_wanted);
      if (one_wanted) {
        sink(position, {logits_on_host(1), z(config.vocab)});
      } else {
        for (int t = 0; t < tokens;) {
          wanted.clear();
          for (; t < tokens && static_cast<int>(wanted.size()) < rows_at_once; ++t) {
            if (wants(position + t)) wanted.push_back(t);
          }
          if (wanted.empty()) continue;
          head(wanted);
          const float* rows = logits_on_host(wanted.size());
          for (std::size_t i = 0; i < wanted.size(); ++i) {
            sink(position + wanted[i], {rows + i * z(config.vocab), z(config.vocab)});
          }
        }
      }
      position += tokens;
      sequence.wrote();
      all = all.subspan(n);
    }
  }

  // The most likely token after the last of `all`; its logits stay where they are.
  TokenId feed_greedy(std::span<const TokenId> all) {
    check(all);
    while (!all.empty()) {
      const auto n = std::min<std::size_t>(all.size(), z(model.chunk()));
      const bool last = n == all.size();
      feed_chunk(all.first(n), last && n == 1);
      if (last && n > 1) {
        const int row = tokens - 1;
        head({&row, 1});
      }
      position += tokens;
      sequence.wrote();
      all = all.subspan(n);
    }
    steps.argmax(out.logits, config.vocab, out.scratch, out.best, stream);
    std::int32_t chosen = -1;
    auto* best = space.on_card() ? reinterpret_cast<std::int32_t*>(landing.data()) : &chosen;
    space.get(best, out.best, sizeof(*best));
    // Names what is wrong with the logits.
    if (*best < 0) return greedy_token({logits_on_host(1), z(config.vocab)});
    return *best;
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
void Session::exchange(Sequence& other) {
  std::swap(state_->sequence, other);
  state_->graphs.clear();  // they write where the other sequence's rows lie
}

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

TokenId Session::feed_greedy(std::span<const TokenId> ids) {
  if (ids.empty()) throw UserError("no tokens to feed");
  return state_->feed_greedy(ids);
}

}  // namespace assay
