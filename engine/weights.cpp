#include "engine/weights.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "kernels/pointwise/pointwise.h"

namespace assay {
namespace {

constexpr std::size_t kAlign = 64;
std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

QuantView shape_of(const TensorInfo& t) {
  return make_quant_view(nullptr, t.type, static_cast<int>(t.rows()), static_cast<int>(t.ne[0]));
}

bool takes(const Layout* layout, const QuantView& view) {
  return layout != nullptr && layout->accepts(view);
}

}  // namespace

// Runs over the model twice with the same code: the first pass only counts bytes, the second reads.
class Weights::Loader {
 public:
  Loader(const GgufFile& file,
         const ModelConfig& config,
         const WeightLayouts& layouts,
         const MemorySpace& space,
         Weights& out)
      : file_(file), config_(config), layouts_(layouts), space_(space), out_(out) {}

  void count() {
    place_all();
    out_.bytes_ = used_;
  }
  void run() {
    count();
    out_.memory_ = space_.allocate(used_, "the weights");
    if (space_.on_card()) staging_ = PageBuffer(largest_, "a matrix on its way to the card");
    used_ = 0;
    out_.doubled_bytes_ = 0;
    reading_ = true;
    place_all();
    out_.memory_.make_read_only();
  }

 private:
  void place_all() {
    out_.attention_.assign(static_cast<std::size_t>(config_.layers), {});
    out_.ffn_.assign(static_cast<std::size_t>(config_.layers), {});
    const TensorInfo& embedding = file_.tensor("token_embd.weight");
    if (config_.tied_head) {
      out_.head_ = matrix({&embedding}, layouts_.gemv, layouts_.gemm);
      // The card's embedding step reads the file's layout only.
      const bool own = space_.on_card() && out_.head_.few.layout != nullptr;
      out_.embedding_ = own ? matrix({&embedding}, {}, {}).few : out_.head_.few;
    } else {
      out_.embedding_ = matrix({&embedding}, {}, {}).few;
      out_.head_ = matrix({&file_.tensor("output.weight")}, layouts_.gemv, layouts_.gemm);
    }
    out_.output_norm_ = vector("output_norm.weight");
    for (int i = 0; i < config_.layers; ++i) {
      place_attention(i);
      place_ffn(i);
    }
    place_rope();
  }

  void place_rope() {
    out_.rope_.clear();
    out_.rope_of_.clear();
    for (const auto& layer : config_.layer) {
      const auto same = [&](const RopeTable& t) {
        return t.base == static_cast<double>(layer.rope_base) && t.head_dim == layer.head_dim &&
               t.factors == layer.rope_factors;
      };
      const auto found = std::find_if(out_.rope_.begin(), out_.rope_.end(), same);
      out_.rope_of_.push_back(static_cast<int>(found - out_.rope_.begin()));
      if (found != out_.rope_.end()) continue;
      RopeTable table{
          static_cast<double>(layer.rope_base), layer.head_dim, layer.rope_factors, nullptr};
      const auto bytes = static_cast<std::size_t>(layer.head_dim / 2) * sizeof(double);
      table.frequency = reinterpret_cast<const double*>(place(bytes, [&](std::byte* to) {
        std::vector<float> factors;
        if (table.factors) factors = file_.read_f32(file_.tensor("rope_freqs.weight"));
        pointwise::rope_frequencies(table.base,
                                    table.head_dim,
                                    table.factors ? factors.data() : nullptr,
                                    reinterpret_cast<double*>(to));
      }));
      out_.rope_.push_back(table);
    }
  }

  void place_attention(int i) {
    const LayerConfig& c = config_.layer[static_cast<std::size_t>(i)];
    AttentionWeights& w = out_.attention_[static_cast<std::size_t>(i)];
    w.hidden = config_.hidden;
    w.heads = c.heads;
    w.kv_heads = c.kv_heads;
    w.head_dim = c.head_dim;
    w.window = c.window;
    w.has_v = c.has_v;
    w.eps = config_.eps;
    w.norm = layer_vector(i, "attn_norm.weight");
    w.q_norm = layer_vector(i, "attn_q_norm.weight");
    w.k_norm = layer_vector(i, "attn_k_norm.weight");
    w.post_norm = layer_vector(i, "post_attention_norm.weight");
    std::vector<const TensorInfo*> qkv = {&layer(i, "attn_q.weight"), &layer(i, "attn_k.weight")};
    if (c.has_v) qkv.push_back(&layer(i, "attn_v.weight"));
    w.qkv = stack(qkv);
    w.o = matrix({&layer(i, "attn_output.weight")}, layouts_.gemv, layouts_.gemm);
  }

  void place_ffn(int i) {
    const LayerConfig& c = config_.layer[static_cast<std::size_t>(i)];
    FfnWeights& w = out_.ffn_[static_cast<std::size_t>(i)];
    w.hidden = config_.hidden;
    w.dense_width = c.dense_width;
    w.experts = config_.experts;
    w.experts_used = config_.experts_used;
    w.expert_width = config_.expert_width;
    w.fused_experts = c.fused_gate_up;
    w.eps = config_.eps;
    w.dense_norm = layer_vector(i, "ffn_norm.weight");
    w.dense_post_norm = layer_vector(i, "post_ffw_norm_1.weight");
    // The router's input is rms(h) / sqrt(D) * scale: the constant is folded in here, once.
    w.router_scale = vector(layer_tensor(i, "ffn_gate_inp.scale"),
                            1.0F / std::sqrt(static_cast<float>(config_.hidden)));
    w.expert_norm = layer_vector(i, "pre_ffw_norm_2.weight");
    w.expert_scale = layer_vector(i, "ffn_down_exps.scale");
    w.expert_post_norm = layer_vector(i, "post_ffw_norm_2.weight");
    w.post_norm = layer_vector(i, "post_ffw_norm.weight");
    if (reading_) {
      w.layer_scale = file_.read_f32(file_.tensor(layer_tensor(i, "layer_output_scale.weight")))[0];
    }
    w.gate_up = stack({&layer(i, "ffn_gate.weight"), &layer(i, "ffn_up.weight")});
    w.down = matrix({&layer(i, "ffn_down.weight")}, layouts_.gemv, layouts_.gemm);
    w.router = matrix({&layer(i, "ffn_gate_inp.weight")}, layouts_.gemv, layouts_.gemm);
    const auto expert = [&](const char* suffix, QuantView ExpertMatrices::*view) {
      const Matrix m = matrix({&layer(i, suffix)}, layouts_.experts_few, layouts_.experts_many);
      w.experts_few.*view = m.few;
      w.experts_many.*view = m.many;
    };
    if (c.fused_gate_up) {
      expert("ffn_gate_up_exps.weight", &ExpertMatrices::gate_up);
    } else {
      expert("ffn_gate_exps.weight", &ExpertMatrices::gate);
      expert("ffn_up_exps.weight", &ExpertMatrices::up);
    }
    expert("ffn_down_exps.weight", &ExpertMatrices::down);
  }

  const TensorInfo& layer(int i, const char* suffix) const {
    return file_.tensor(layer_tensor(i, suffix));
  }
  const float* layer_vector(int i, const char* suffix) { return vector(layer_tensor(i, suffix)); }

  // Gives `write(host memory)` the next bytes of the block, through the staging memory when they lie on a card.
  template <class F>
  const std::byte* place(std::size_t bytes, F&& write) {
    std::byte* at = reading_ ? out_.memory_.data() + used_ : nullptr;
    used_ += aligned(bytes);
    largest_ = std::max(largest_, bytes);
    if (!reading_) return at;
    std::byte* host = space_.on_card() ? staging_.data() : at;
    write(host);
    if (space_.on_card()) space_.put(at, host, bytes);
    return at;
  }

  const float* vector(const std::string& name, float factor = 1.0F) {
    const TensorInfo& t = file_.tensor(name);
    const auto bytes = static_cast<std::size_t>(t.bytes);
    return reinterpret_cast<const float*>(place(bytes, [&](std::byte* to) {
      file_.read_finite_tensor(t, {to, bytes});
      auto* values = reinterpret_cast<float*>(to);
      for (std::size_t i = 0; i < bytes / sizeof(float); ++i) values[i] *= factor;
    }));
  }

  // Neighbours of one type become one matrix with all their rows.
  MatrixStack stack(const std::vector<const TensorInfo*>& tensors) {
    MatrixStack s;
    for (std::size_t i = 0; i < tensors.size();) {
      std::vector<const TensorInfo*> same = {tensors[i++]};
      while (i < tensors.size() && tensors[i]->type == same[0]->type) same.push_back(tensors[i++]);
      s.part[s.parts++] = matrix(same, layouts_.gemv, layouts_.gemm);
    }
    return s;
  }

  Matrix matrix(const std::vector<const TensorInfo*>& tensors, LayoutWish few, LayoutWish many) {
    QuantView view = shape_of(*tensors[0]);
    for (std::size_t i = 1; i < tensors.size(); ++i)
      view.rows += static_cast<int>(tensors[i]->rows());
    const Layout* few_layout = takes(few.layout, view) ? few.layout : nullptr;
    const Layout* many_layout = takes(many.layout, view) ? many.layout : nullptr;
    if (few.any) few_layout = many_layout;
    if (many.any) many_layout = few_layout;
    Matrix m;
    m.few = store(view, tensors, few_layout);
    m.many = m.few;
    if (few_layout != many_layout) {
      const std::size_t before = used_;
      m.many = store(view, tensors, many_layout);
      out_.doubled_bytes_ += used_ - before;
    }
    return m;
  }

  QuantView store(QuantView view,
                  const std::vector<const TensorInfo*>& tensors,
                  const Layout* layout) {
    view.layout = layout;
    const std::size_t bytes = layout != nullptr ? layout->prepared_bytes(view) : view.bytes();
    view.data = place(bytes, [&](std::byte* at) {
      std::byte* to = at;
      for (const TensorInfo* t : tensors) {
        file_.read_finite_tensor(*t, {to, static_cast<std::size_t>(t->bytes)});
        to += t->bytes;
      }
      if (layout != nullptr) {
        QuantView plain = view;
        plain.layout = nullptr;
        plain.data = at;
        layout->prepare(plain, at);
      }
    });
    return view;
  }

  const GgufFile& file_;
  const ModelConfig& config_;
  const WeightLayouts& layouts_;
  const MemorySpace& space_;
  Weights& out_;
  PageBuffer staging_;
  std::size_t used_ = 0;
  std::size_t largest_ = 0;
  bool reading_ = false;
};

Weights Weights::planned(const GgufFile& file,
                         const ModelConfig& config,
                         const WeightLayouts& layouts,
                         const MemorySpace& space) {
  Weights shapes;
  Loader(file, config, layouts, space, shapes).count();
  return shapes;
}

Weights::Weights(const GgufFile& file,
                 const ModelConfig& config,
                 const WeightLayouts& layouts,
                 const MemorySpace& space) {
  Loader(file, config, layouts, space, *this).run();
}

}  // namespace assay
