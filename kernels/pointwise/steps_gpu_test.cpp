// The card's steps against the host's: the same bits (angles: at most one float ulp apart, and almost never).
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/gpu_memory.h"
#include "kernels/base/host_pool.h"
#include "kernels/base/rng.h"
#include "kernels/pointwise/steps.h"

namespace assay {
namespace {

using pointwise::Activation;
using pointwise::Steps;

// An array on both sides.
template <class T>
class Both {
 public:
  Both(std::vector<T> values, Stream card)
      : host_(std::move(values)), card_(host_.size()), stream_(card) {
    gpu::upload(bytes(card_.data()), bytes(host_.data()), host_.size() * sizeof(T), stream_);
  }
  Both(std::size_t n, T value, Stream card) : Both(std::vector<T>(n, value), card) {}
  T* on(bool card) { return card ? card_.data() : host_.data(); }
  void expect_equal(const char* what) {
    std::vector<T> got(host_.size());
    gpu::download(bytes(got.data()), bytes(card_.data()), got.size() * sizeof(T), stream_);
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::memcmp(&got[i], &host_[i], sizeof(T)) == 0) continue;
      if constexpr (std::is_same_v<T, float>) {
        if (std::isnan(got[i]) && std::isnan(host_[i])) continue;
      }
      FAIL() << what << " element " << i << " of " << got.size() << ": " << +got[i] << ", host "
             << +host_[i];
    }
  }
  const std::vector<T>& host() const { return host_; }
  std::vector<T> card() const {
    std::vector<T> got(host_.size());
    gpu::download(bytes(got.data()), bytes(card_.data()), got.size() * sizeof(T), stream_);
    return got;
  }

 private:
  static std::byte* bytes(T* p) { return reinterpret_cast<std::byte*>(p); }
  std::vector<T> host_;
  gpu::DeviceBuffer<T> card_;
  Stream stream_;
};

class StepsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Why why = gpu::unavailable()) GTEST_SKIP() << why;
    queue_ = std::make_unique<gpu::Queue>();
    card_ = queue_->stream();
  }
  // f(steps, card, stream) on the host and on the card.
  template <class F>
  void on_both(F&& f) {
    f(pointwise::kHostSteps, false, Stream{});
    f(*pointwise::device_steps(), true, card_);
    queue_->wait();
  }
  Both<float> floats(std::size_t n, const char* name, double spread = 2.0) {
    Rng rng(seed_from_name(name));
    std::vector<float> v(n);
    for (auto& x : v) x = static_cast<float>(spread * rng.normal());
    return {std::move(v), card_};
  }
  // Outputs begin as a NaN pattern, so that what is not written is seen.
  Both<float> output(std::size_t n) { return {n, std::bit_cast<float>(0x7FC0DEADU), card_}; }
  struct Row {
    Both<float> x;
    Both<std::int8_t> codes;
    Both<std::uint16_t> scales;
    Activation on(bool card) { return {x.on(card), codes.on(card), scales.on(card)}; }
    void expect_equal(const char* what) {
      x.expect_equal(what);
      codes.expect_equal(what);
      scales.expect_equal(what);
    }
  };
  Row activation(std::size_t n) {
    return {output(n), {n, std::int8_t{99}, card_}, {n / kQ8Block + 1, std::uint16_t{7}, card_}};
  }

  std::unique_ptr<gpu::Queue> queue_;
  Stream card_;
};

std::size_t z(int n) { return static_cast<std::size_t>(n); }

TEST_F(StepsTest, NormsAndResiduals) {
  for (const auto& [tokens, n] :
       {std::pair{1, 32}, {3, 61}, {2, 2816}, {5, 256}, {1, 9000}, {2, 1}}) {
    auto x = floats(z(tokens) * z(n), "x");
    auto w = floats(z(n), "w");
    auto branch = floats(z(tokens) * z(n), "branch", 30.0);
    auto out = activation(z(tokens) * z(n));
    auto plain = output(z(tokens) * z(n));
    auto h = output(z(tokens) * z(n));
    on_both([&](const Steps& s, bool c, Stream stream) {
      s.norm(x.on(c), w.on(c), tokens, n, 1e-6F, out.on(c), stream);
      s.norm(x.on(c), nullptr, tokens, n, 1e-6F, {plain.on(c), nullptr, nullptr}, stream);
      s.add_norm(x.on(c), branch.on(c), w.on(c), tokens, n, 1e-6F, h.on(c), stream);
    });
    out.expect_equal("norm");
    plain.expect_equal("norm without a weight");
    h.expect_equal("add_norm");
  }
}

TEST_F(StepsTest, FfnInAndOut) {
  for (const auto& [tokens, n] : {std::pair{1, 64}, {3, 96}, {2, 2816}, {2, 40}}) {
    const std::size_t all = z(tokens) * z(n);
    auto h = floats(all, "h");
    auto w1 = floats(z(n), "w1");
    auto w2 = floats(z(n), "w2");
    auto w3 = floats(z(n), "w3");
    auto dense = activation(all);
    auto experts = activation(all);
    auto router = output(all);
    auto d = floats(all, "dense");
    auto m = floats(all, "routed");
    auto x = output(all);
    on_both([&](const Steps& s, bool c, Stream stream) {
      s.ffn_in({h.on(c),
                w1.on(c),
                w2.on(c),
                w3.on(c),
                dense.on(c),
                router.on(c),
                experts.on(c),
                n,
                1e-6F},
               tokens,
               stream);
      s.ffn_out({h.on(c), d.on(c), m.on(c), w1.on(c), w2.on(c), w3.on(c), 0.37F, x.on(c), n, 1e-6F},
                tokens,
                stream);
    });
    dense.expect_equal("dense input");
    experts.expect_equal("experts' input");
    router.expect_equal("router's input");
    x.expect_equal("layer's output");
  }
}

TEST_F(StepsTest, HeadsIntoAChunkAndIntoARing) {
  struct Shape {
    int tokens, heads, kv_heads, head_dim, position, slots;
    bool has_v;
  };
  for (const Shape& g : {Shape{3, 4, 2, 64, -1, 1, true},
                         Shape{2, 4, 1, 512, -1, 1, false},
                         Shape{1, 4, 2, 18, 71, 32, true},
                         Shape{1, 2, 2, 256, 5, 32, false}}) {
    const int hd = g.head_dim;
    const std::size_t width = z(g.heads + 2 * g.kv_heads) * z(hd);
    const std::size_t rows = g.position < 0 ? z(g.tokens) : z(g.slots);
    auto raw = floats(z(g.tokens) * width, "raw");
    auto qn = floats(z(hd), "qn");
    auto kn = floats(z(hd), "kn");
    auto cosine = floats(z(g.tokens) * z(hd / 2), "cos", 0.7);
    auto sine = floats(z(g.tokens) * z(hd / 2), "sin", 0.7);
    Both<std::int32_t> position(1, g.position, card_);
    for (const bool half : {false, true}) {
      auto q = output(z(g.tokens) * z(g.heads) * z(hd));
      auto k = output(rows * z(g.kv_heads) * z(hd));
      auto v = output(rows * z(g.kv_heads) * z(hd));
      Both<std::uint16_t> kh(rows * z(g.kv_heads) * z(hd), 0x7E01, card_);
      Both<std::uint16_t> vh(rows * z(g.kv_heads) * z(hd), 0x7E01, card_);
      on_both([&](const Steps& s, bool c, Stream stream) {
        const float* base = raw.on(c);
        const float* k_at = base + z(g.heads) * z(hd);
        const float* v_at = g.has_v ? k_at + z(g.kv_heads) * z(hd) : k_at;
        using pointwise::KvRow;
        s.heads({.q = {base, width},
                 .k = {k_at, width},
                 .v = {v_at, width},
                 .q_norm = qn.on(c),
                 .k_norm = kn.on(c),
                 .cosine = cosine.on(c),
                 .sine = sine.on(c),
                 .q_out = q.on(c),
                 .k_out = half ? KvRow{.f16 = kh.on(c)} : KvRow{.f32 = k.on(c)},
                 .v_out = half ? KvRow{.f16 = vh.on(c)} : KvRow{.f32 = v.on(c)},
                 .position = g.position < 0 ? nullptr : position.on(c),
                 .slots = g.slots,
                 .heads = g.heads,
                 .kv_heads = g.kv_heads,
                 .head_dim = hd,
                 .eps = 1e-6F},
                g.tokens,
                stream);
      });
      q.expect_equal("q");
      k.expect_equal("k");
      v.expect_equal("v");
      kh.expect_equal("k, half");
      vh.expect_equal("v, half");
    }
  }
}

TEST_F(StepsTest, GegluAndQuantise) {
  for (const auto& [tokens, n] : {std::pair{1, 32}, {3, 2112}, {2, 100}}) {
    const std::size_t all = z(tokens) * z(n);
    auto wide = floats(2 * all, "gate_up", 4.0);
    auto u = activation(all);
    auto x = activation(all);
    on_both([&](const Steps& s, bool c, Stream stream) {
      s.geglu({wide.on(c), 2 * z(n)}, {wide.on(c) + n, 2 * z(n)}, tokens, n, u.on(c), stream);
      if (n % kQ8Block == 0) {
        s.quantise({wide.on(c), x.codes.on(c), x.scales.on(c)}, tokens, n, stream);
      }
    });
    u.expect_equal("geglu");
    x.expect_equal("quantise");
  }
}

// Blocks of zeros, of tiny values, with a NaN and with an infinity.
TEST_F(StepsTest, QuantiseAtItsEdges) {
  std::vector<float> v(6 * kQ8Block, 0.0F);
  for (int i = 0; i < kQ8Block; ++i) {
    v[z(kQ8Block + i)] = 1e-42F * static_cast<float>(i);
    v[z(2 * kQ8Block + i)] = static_cast<float>(i) - 15.5F;
    v[z(3 * kQ8Block + i)] = static_cast<float>(i) * 1e37F;
  }
  v[z(4 * kQ8Block + 9)] = std::nanf("");
  v[z(5 * kQ8Block + 31)] = -INFINITY;
  Both<float> x(v, card_);
  Both<std::int8_t> codes(v.size(), 99, card_);
  Both<std::uint16_t> scales(6, 7, card_);
  on_both([&](const Steps& s, bool c, Stream stream) {
    s.quantise({x.on(c), codes.on(c), scales.on(c)}, 1, 6 * kQ8Block, stream);
  });
  codes.expect_equal("codes");
  scales.expect_equal("scales");
}

TEST_F(StepsTest, EmbeddingOfEveryType) {
  constexpr int kRows = 5;
  constexpr int kCols = 512;
  for (const BlockType type : kAllBlockTypes) {
    Rng rng(seed_from_name(to_string(type)));
    std::vector<float> values(kRows * kCols);
    for (auto& x : values) x = static_cast<float>(rng.normal());
    std::vector<std::byte> blocks(kRows * row_bytes(type, kCols));
    quantize(type, values.data(), values.size(), blocks.data());
    Both<std::byte> table_bytes(blocks, card_);
    Both<std::int32_t> ids(std::vector<std::int32_t>{4, 0, 3}, card_);
    auto x = output(3 * kCols);
    on_both([&](const Steps& s, bool c, Stream stream) {
      const QuantView table = make_quant_view(table_bytes.on(c), type, kRows, kCols);
      s.embed(table, ids.on(c), 3, 22.627417F, x.on(c), stream);
    });
    x.expect_equal(to_string(type));
  }
}

TEST_F(StepsTest, AnglesUpToTheEndOfTheContext) {
  constexpr int kHalf = 256;
  constexpr int kTokens = 17;
  std::vector<double> f(kHalf);
  pointwise::rope_frequencies(1e4, 2 * kHalf, nullptr, f.data());
  Both<double> frequency(f, card_);
  for (const int first : {0, 1000, 262126}) {
    Both<std::int32_t> position(1, first, card_);
    auto cosine = output(kTokens * kHalf);
    auto sine = output(kTokens * kHalf);
    on_both([&](const Steps& s, bool c, Stream stream) {
      s.angles(position.on(c), kTokens, frequency.on(c), kHalf, cosine.on(c), sine.on(c), stream);
    });
    int apart = 0;
    for (Both<float>* which : {&cosine, &sine}) {
      const auto card = which->card();
      for (std::size_t i = 0; i < card.size(); ++i) {
        if (card[i] == which->host()[i]) continue;
        ++apart;
        EXPECT_EQ(std::nextafter(card[i], which->host()[i]), which->host()[i]) << i;
      }
    }
    EXPECT_LE(apart, 2);
  }
}

TEST_F(StepsTest, SoftcapAndRouteWeights) {
  constexpr int kExperts = 37;
  constexpr int kTopK = 4;
  constexpr int kTokens = 300;
  auto l = floats(5001, "logits", 40.0);
  auto logits = floats(z(kTokens * kExperts), "router");
  auto scale = floats(kExperts, "scale");
  std::vector<std::int32_t> chosen;
  for (int i = 0; i < kTokens * kTopK; ++i) chosen.push_back((i * 7 + i / 4) % kExperts);
  Both<std::int32_t> ids(chosen, card_);
  auto weights = output(z(kTokens * kTopK));
  on_both([&](const Steps& s, bool c, Stream stream) {
    s.softcap(l.on(c), 5001, 30.0F, stream);
    s.route_weights(
        logits.on(c), kExperts, scale.on(c), ids.on(c), kTokens, kTopK, weights.on(c), stream);
  });
  l.expect_equal("softcap");
  weights.expect_equal("route_weights");
}

TEST_F(StepsTest, ArgmaxTiesAndWhatIsNotFinite) {
  const auto id_of = [&](const std::vector<float>& row) {
    Both<float> l(row, card_);
    Both<std::uint64_t> scratch(pointwise::kArgmaxScratch, 1, card_);
    Both<std::int32_t> id(1, -7, card_);
    on_both([&](const Steps& s, bool c, Stream stream) {
      s.argmax(l.on(c), static_cast<int>(row.size()), scratch.on(c), id.on(c), stream);
    });
    id.expect_equal("argmax");
    return id.host()[0];
  };
  std::vector<float> row = floats(300001, "row").host();
  row[123456] = 99.0F;
  row[234567] = 99.0F;
  EXPECT_EQ(id_of(row), 123456);
  row[300000] = 99.5F;
  EXPECT_EQ(id_of(row), 300000);
  EXPECT_EQ(id_of({-0.0F, 0.0F, -1.0F}), 0);
  EXPECT_EQ(id_of({-3.0F, -2.0F, -2.0F}), 1);
  EXPECT_EQ(id_of({-INFINITY, -5.0F}), 1);
  EXPECT_EQ(id_of({-INFINITY, -INFINITY}), -1);
  EXPECT_EQ(id_of({1.0F, INFINITY}), -1);
  row[299999] = std::nanf("");
  EXPECT_EQ(id_of(row), -1);
  row[299999] = -std::nanf("");
  EXPECT_EQ(id_of(row), -1);
}

}  // namespace
}  // namespace assay
