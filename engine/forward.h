// The model's forward pass, written once over ops. A Model is loaded once; each Session is one sequence with its own
// cache. Sessions of one Model share its thread pool and counters: use them from one thread at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/gguf.h"
#include "engine/kv_cache.h"
#include "engine/memory_space.h"
#include "engine/model_config.h"
#include "engine/selection.h"
#include "engine/tokenizer.h"
#include "engine/weights.h"
#include "kernels/base/dispatch.h"
#include "kernels/base/stream.h"

namespace assay {

struct ModelSettings {
  Backend backend = Backend::kHost;
  Numerics numerics = Numerics::kExact;
  std::optional<KvType> kv = {};  // default: f32 in the exact lane, else f16
  int threads = 0;                // 0: all of the machine
  int context = 0;  // rows of a global layer; 0: the trained context, at most kDefaultContext
  // Prefill chunk in tokens; 0: on the host as many as 32 MiB of activations allow, 32..512; on a card 2048, or what fits.
  int chunk = 0;
  std::size_t vram_budget_bytes =
      0;                     // of a card, for everything this process keeps there; 0: what is free
  bool strict = false;       // ASSAY_STRICT
  Selection selection = {};  // empty: stock
};
inline constexpr int kDefaultContext = 4096;

class Session;

// Bytes of a backend's memory: the weights, and what one session takes.
struct MemoryPlan {
  std::size_t weights = 0;
  std::size_t cache = 0;
  std::size_t activations = 0;
  std::size_t logits = 0;
  std::size_t scratch = 0;
  std::size_t spare = 0;  // of a card: graphs, the kernels' code and stacks
  std::size_t total() const;
  std::string describe() const;
};

class Model {
 public:
  // Throws InputError for the file; UserError for a context that is not in 1..the trained one, and for threads;
  // HardwareError when there is no usable card or, before anything is loaded, when its memory is too small for the plan.
  Model(const std::string& path, const ModelSettings& settings);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const std::string& path() const { return path_; }
  const ModelConfig& config() const { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const Weights& weights() const { return *weights_; }
  Numerics numerics() const { return settings_.numerics; }
  KvType kv_type() const { return *settings_.kv; }
  int context() const { return settings_.context; }
  int threads() const { return settings_.threads; }
  int chunk() const { return settings_.chunk; }
  Backend backend() const { return settings_.backend; }
  const DeviceInfo& device() const;
  const MemoryPlan& plan() const { return plan_; }
  const MemorySpace& space() const { return *space_; }
  const Selection& selection() const { return settings_.selection; }

  // What every op did so far, in the registry's order.
  std::vector<DispatchReport> reports() const;

 private:
  friend class Session;
  struct Ops;
  void plan(const Weights& planned);
  MemoryPlan plan_for(const Weights& planned, int chunk) const;

  std::string path_;
  ModelSettings settings_;
  ModelConfig config_;
  std::optional<Tokenizer> tokenizer_;
  MemoryPlan plan_;
  std::unique_ptr<MemorySpace> space_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Weights> weights_;
};

// One layer's routing of a chunk, during the call that computes it.
struct RoutedChunk {
  int layer = 0;
  int first_position = 0;
  int tokens = 0;
  int top_k = 0;
  const std::int32_t* ids = nullptr;  // [tokens][top_k], largest first
  const float* weights = nullptr;     // [tokens][top_k], per-expert scale included
};

// An intermediate tensor of a chunk, during the call that computes it. Names and meaning: the list kStageNames.
struct StageChunk {
  const char* name = "";
  int layer = 0;
  int first_position = 0;
  int tokens = 0;
  int width = 0;                // floats a token
  const float* data = nullptr;  // [tokens][width]; router_ids as whole numbers
};
// q_normed, k_normed, v_normed: after the per-head norm, before RoPE. attn_out: after the output projection, before the
// post-norm. router_probs: softmax over all experts. router_weights: after the per-expert scale. dense_out, experts_out:
// before their post-norms. layer_out: the residual after layer_output_scale.
inline constexpr const char* kStageNames[] = {"attn_norm",
                                              "q_normed",
                                              "k_normed",
                                              "v_normed",
                                              "attn_out",
                                              "router_probs",
                                              "router_weights",
                                              "router_ids",
                                              "dense_out",
                                              "experts_out",
                                              "layer_out"};

// Expert ids of every layer and position, for routing by another run's choice.
class RouteTable {
 public:
  RouteTable(int layers, int top_k) : layers_(layers), top_k_(top_k) {}
  void record(const RoutedChunk& chunk);
  // [top_k]; std::out_of_range when the position was not recorded.
  const std::int32_t* at(int layer, int position) const;
  int positions() const { return positions_; }

 private:
  int layers_;
  int top_k_;
  int positions_ = 0;
  std::vector<std::int32_t> ids_;  // [position][layer][top_k]
};

// What may watch or steer a session. Empty functions cost nothing.
struct SessionHooks {
  // A row of `hidden` floats to stand in the residual stream instead of that position's embedding, or null.
  std::function<const float*(int position)> frame = {};
  std::function<void(const RoutedChunk&)> routed = {};
  std::function<void(const StageChunk&)> stage = {};
  const RouteTable* routes = nullptr;  // take these experts instead of the router's
  // The tokens of one feed() see one another in local layers, the later ones too; the window still bounds what they see
  // of the past. UserError when there are more of them than a chunk holds, and on a card.
  bool same_block = false;
};

class Session {
 public:
  // slack: tokens that the sequence can be cut back by, see KvCache.
  explicit Session(Model& model, int slack = 0);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Tokens fed so far: the next token's position.
  int position() const;
  int room() const;  // tokens that still fit
  // Forgets the sequence; the cache keeps its memory.
  void reset();
  void set_hooks(SessionHooks hooks);

  using WantsLogits = std::function<bool(int position)>;
  using LogitsSink = std::function<void(int position, std::span<const float> logits)>;
  // Appends ids (0 <= id < vocab) and hands the logits of the wanted positions to the sink, in order. A token's results
  // do not depend on how a sequence is cut into calls. Throws UserError when ids do not fit or name no token.
  void feed(std::span<const TokenId> ids, const WantsLogits& wants, const LogitsSink& sink);
  // The same, keeping the logits of the last token: valid until the next call. ids must not be empty.
  std::span<const float> feed(std::span<const TokenId> ids);
  // The same, and the most likely next token, chosen where the logits lie: greedy_token() of them.
  TokenId feed_greedy(std::span<const TokenId> ids);

  const KvCache& cache() const { return sequence().cache; }
  // Where the sequence stands; a caller may cut it back or restore it between calls.
  Sequence& sequence() const;
  // Puts this session's sequence aside for another of the same model.
  void exchange(Sequence& other);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace assay
