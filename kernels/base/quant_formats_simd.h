// The block formats in the layout kRows16 and the fast lane's tiles over them, for one vector instruction set. Included
// inside the unnamed namespace of a kernel file, after that file has defined
//   ASSAY_TARGET   the target attribute (a function without it cannot hold the intrinsics)
//   ASSAY_INLINE   inline, always_inline and the target attribute
//   kTile          tokens a tile takes
//   struct V       I (integers), F (floats), kRows (rows a vector holds: its int32 or float lanes), and the operations
//                  used below; V::dot<Format>(w, codes, first, count) is the int32 sums of units first .. first + count
// There is no include guard: each kernel file includes it once, with its own V.

// codes(): w[j] holds, for each row (a 4-byte lane), the codes of elements 4j .. 4j+3 of block s (of 32 elements) as
// bytes: unsigned with the offset still in, or signed for Q8_0. `p`: the block's first line, moved to the first row.
// kDots: how many of the 8 products of unsigned codes and int8 fit into one int16 sum of pairs.

struct FormatQ4_0 {
  static constexpr int kLines = 4, kHalves = 1, kSubs = 1, kOffset = 8, kDots = 8;
  static constexpr bool kMinimum = false, kMultipliers = false, kSigned = false, kSplit = false;
  ASSAY_INLINE static void codes(const std::uint8_t* p, int, V::I (&w)[8]) {
    const V::I low = V::bytes(15);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const V::I v = V::load(p + 64 * j);
      w[j] = V::both(v, low);
      w[j + 4] = V::both(V::right<4>(v), low);
    }
  }
};

struct FormatQ4_1 : FormatQ4_0 {
  static constexpr int kHalves = 2, kOffset = 0;
  static constexpr bool kMinimum = true;
};

struct FormatQ5_0 {
  static constexpr int kLines = 5, kHalves = 1, kSubs = 1, kOffset = 16, kDots = 4;
  static constexpr bool kMinimum = false, kMultipliers = false, kSigned = false, kSplit = false;
  ASSAY_INLINE static void codes(const std::uint8_t* p, int s, V::I (&w)[8]) {
    FormatQ4_0::codes(p + 64, s, w);
    const V::I high = V::load(p);  // bit j of byte k: the fifth bit of element 4j + k
    const V::I bit = V::bytes(16);
    w[0] = V::either(w[0], V::both(V::left<4>(high), bit));
    w[1] = V::either(w[1], V::both(V::left<3>(high), bit));
    w[2] = V::either(w[2], V::both(V::left<2>(high), bit));
    w[3] = V::either(w[3], V::both(V::left<1>(high), bit));
    w[4] = V::either(w[4], V::both(high, bit));
    w[5] = V::either(w[5], V::both(V::right<1>(high), bit));
    w[6] = V::either(w[6], V::both(V::right<2>(high), bit));
    w[7] = V::either(w[7], V::both(V::right<3>(high), bit));
  }
};

struct FormatQ5_1 : FormatQ5_0 {
  static constexpr int kHalves = 2, kOffset = 0;
  static constexpr bool kMinimum = true;
};

struct FormatQ8_0 {
  static constexpr int kLines = 8, kHalves = 1, kSubs = 1, kOffset = 128, kDots = 1;
  static constexpr bool kMinimum = false, kMultipliers = false, kSigned = true, kSplit = false;
  ASSAY_INLINE static void codes(const std::uint8_t* p, int, V::I (&w)[8]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) w[j] = V::load(p + 64 * j);
  }
};

// Scale and minimum of sub-block s in the 12 bytes (3 lines) at p.
ASSAY_INLINE void k_scales(const std::uint8_t* p, int s, V::I* scale, V::I* minimum) {
  const V::I low = V::words(15);
  const V::I six = V::words(63);
  const V::I first = V::load(p);
  const V::I second = V::load(p + 64);
  if (s < 4) {
    *scale = V::both(V::right(first, 8 * s), six);
    *minimum = V::both(V::right(second, 8 * s), six);
  } else {
    const V::I third = V::load(p + 128);
    const V::I top = V::words(48);
    const int t = 8 * (s - 4);
    *scale = V::either(V::both(V::right(third, t), low), V::both(V::right(first, t + 2), top));
    *minimum =
        V::either(V::both(V::right(third, t + 4), low), V::both(V::right(second, t + 2), top));
  }
}

struct FormatQ4_K {
  static constexpr int kLines = 35, kHalves = 2, kSubs = 8, kOffset = 0, kDots = 8;
  static constexpr bool kMinimum = true, kMultipliers = true, kSigned = false, kSplit = false;
  ASSAY_INLINE static void nibbles(const std::uint8_t* qs, int s, V::I (&w)[8]) {
    const V::I low = V::bytes(15);
    const std::uint8_t* chunk = qs + 64 * 8 * (s / 2);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) w[j] = V::both(V::right(V::load(chunk + 64 * j), 4 * (s % 2)), low);
  }
  ASSAY_INLINE static void codes(const std::uint8_t* p, int s, V::I (&w)[8]) {
    nibbles(p + 64 * 3, s, w);
  }
  ASSAY_INLINE static void multipliers(const std::uint8_t* p, int s, V::I* first, V::I* second) {
    k_scales(p, s, first, second);
  }
};

struct FormatQ5_K {
  static constexpr int kLines = 43, kHalves = 2, kSubs = 8, kOffset = 0, kDots = 4;
  static constexpr bool kMinimum = true, kMultipliers = true, kSigned = false, kSplit = false;
  ASSAY_INLINE static void codes(const std::uint8_t* p, int s, V::I (&w)[8]) {
    FormatQ4_K::nibbles(p + 64 * 11, s, w);
    const V::I one = V::bytes(1);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const V::I bit = V::both(V::right(V::load(p + 64 * (3 + j)), s), one);
      w[j] = V::either(w[j], V::left<4>(bit));
    }
  }
  ASSAY_INLINE static void multipliers(const std::uint8_t* p, int s, V::I* first, V::I* second) {
    k_scales(p, s, first, second);
  }
};

struct FormatQ6_K {
  static constexpr int kLines = 52, kHalves = 1, kSubs = 8, kOffset = 32, kDots = 2;
  static constexpr bool kMinimum = false, kMultipliers = true, kSigned = false, kSplit = true;
  ASSAY_INLINE static void codes(const std::uint8_t* p, int s, V::I (&w)[8]) {
    const int n = s / 4;
    const int g = s % 4;
    const V::I low = V::bytes(15);
    const V::I two = V::bytes(3);
    const std::uint8_t* lo = p + 64 * (16 * n + 8 * (g % 2));
    const std::uint8_t* hi = p + 64 * (32 + 8 * n);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const V::I nibble = V::both(V::right(V::load(lo + 64 * j), g < 2 ? 0 : 4), low);
      const V::I high = V::both(V::right(V::load(hi + 64 * j), 2 * g), two);
      w[j] = V::either(nibble, V::left<4>(high));
    }
  }
  // The signed scales of elements 0..15 and 16..31.
  ASSAY_INLINE static void multipliers(const std::uint8_t* p, int s, V::I* first, V::I* second) {
    const int at = 8 * (s / 4) + 2 * (s % 4);  // byte of the first, even
    const V::I unit = V::load(p + 64 * (48 + at / 4));
    *first = V::signed_byte(unit, at % 4);
    *second = V::signed_byte(unit, at % 4 + 1);
  }
};

// ---- the fast lane ----

// Bytes ahead of the block being multiplied that are asked for, in the order of memory: past the end of a group lies the
// next one. The processor's own prefetch stops at 4 KB and takes no notice of groups.
constexpr std::size_t kPrefetchBytes = 8192;
ASSAY_INLINE void prefetch(const std::uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

// Block s of a superblock, ready for activations.
template <class Format>
struct Block {
  V::I w[8];
  V::F d;
  V::F m;              // kMinimum
  V::F multiplier[2];  // kMultipliers
};
template <class Format>
ASSAY_INLINE void open_block(const std::uint8_t* lines,
                             const std::uint8_t* halves,
                             int s,
                             Block<Format>& block) {
  Format::codes(lines, s, block.w);
  block.d = V::halves(halves);
  if constexpr (Format::kMinimum) block.m = V::halves(halves + 32);
  if constexpr (Format::kMultipliers) {
    V::I first;
    V::I second;
    Format::multipliers(lines, s, &first, &second);
    block.multiplier[0] = V::to_float(first);
    block.multiplier[1] = V::to_float(second);
    if constexpr (Format::kMinimum) block.m = V::negative(block.m);
  }
}

// chain plus the block's term, as quant_dot.h writes it. Products of integers below 2^24 are exact in float.
template <class Format>
ASSAY_INLINE V::F add_block(const Block<Format>& block, const Q8Record& q, V::F chain) {
  const V::F dx = V::broadcast(q.scale);
  V::F product;
  if constexpr (Format::kSplit) {
    const auto low = static_cast<std::int16_t>(q.correction & 0xFFFFU);
    const auto high = static_cast<std::int16_t>(q.correction >> 16);
    const V::I i0 =
        V::add(V::template dot<Format>(block.w, q.codes, 0, 4), V::words(-Format::kOffset * low));
    const V::I i1 =
        V::add(V::template dot<Format>(block.w, q.codes, 4, 4), V::words(-Format::kOffset * high));
    product =
        V::fma(V::to_float(i1), block.multiplier[1], V::mul(V::to_float(i0), block.multiplier[0]));
  } else {
    V::I i = V::template dot<Format>(block.w, q.codes, 0, 8);
    if constexpr (!Format::kMinimum && !(Format::kSigned && V::kSignedDot)) {
      i = V::add(i, V::words(static_cast<int>(q.correction)));
    }
    product = V::to_float(i);
    if constexpr (Format::kMultipliers) product = V::mul(product, block.multiplier[0]);
  }
  chain = V::fma(V::mul(block.d, dx), product, chain);
  if constexpr (Format::kMinimum) {
    V::F total = V::broadcast(std::bit_cast<float>(q.correction));
    if constexpr (Format::kMultipliers) total = V::mul(total, block.multiplier[1]);
    chain = V::fma(V::mul(block.m, dx), total, chain);
  }
  return chain;
}

ASSAY_INLINE V::F chain_tree(const V::F (&c)[8]) {
  return V::canonical(V::add(V::add(V::add(c[0], c[1]), V::add(c[2], c[3])),
                             V::add(V::add(c[4], c[5]), V::add(c[6], c[7]))));
}

constexpr int kParts = kGroupRows / V::kRows;

// One token: the chains of a group stay in registers (AVX2: on the stack), and groups follow one another without a
// return.
template <class Format>
ASSAY_TARGET void fast_groups(
    const std::byte* group, int groups, int cols, const Q8Record* x, float* y) {
  constexpr int kBlockBytes = 64 * Format::kLines + 32 * Format::kHalves;
  constexpr int kSupersAStep = 8 / Format::kSubs;
  const int supers = cols / (32 * Format::kSubs);
  const auto* lines = reinterpret_cast<const std::uint8_t*>(group);
  for (int g = 0; g < groups; ++g, y += kGroupRows) {
    const std::uint8_t* halves = lines + static_cast<std::size_t>(supers) * Format::kLines * 64;
    const std::uint8_t* next = lines + static_cast<std::size_t>(supers) * kBlockBytes;
    const std::uint8_t* ahead = lines + kPrefetchBytes;
    const Q8Record* q = x;
    V::F chain[kParts][8];
    for (int part = 0; part < kParts; ++part) {
#pragma GCC unroll 8
      for (int c = 0; c < 8; ++c) chain[part][c] = V::zero();
    }
    for (int super = 0; super < supers; super += kSupersAStep, q += 8) {
#pragma GCC unroll 8
      for (int c = 0; c < 8; ++c) {
        if (c % Format::kSubs == 0) {
          if (super + c / Format::kSubs >= supers) break;
          for (int at = 0; at < kBlockBytes; at += 64) prefetch(ahead + at);
          ahead += kBlockBytes;
        }
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
          Block<Format> block;
          open_block<Format>(lines + 32 * part, halves + 16 * part, c % Format::kSubs, block);
          chain[part][c] = add_block<Format>(block, q[c], chain[part][c]);
        }
        if (c % Format::kSubs == Format::kSubs - 1) {
          lines += 64 * Format::kLines;
          halves += 32 * Format::kHalves;
        }
      }
    }
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part)
      V::store(y + V::kRows * part, chain_tree(chain[part]));
    lines = next;
  }
}

// Several tokens: a block's codes stay in registers while up to kTile tokens pass, the chains in the first cache.
template <class Format>
ASSAY_INLINE void fast_tile_of(const std::byte* group,
                               int cols,
                               const Q8Record* const* x,
                               const std::int32_t* to,
                               int tokens,
                               float* y,
                               std::size_t stride) {
  constexpr int kBlockBytes = 64 * Format::kLines + 32 * Format::kHalves;
  const int supers = cols / (32 * Format::kSubs);
  const auto* lines = reinterpret_cast<const std::uint8_t*>(group);
  const std::uint8_t* halves = lines + static_cast<std::size_t>(supers) * Format::kLines * 64;
  const std::uint8_t* ahead = lines + kPrefetchBytes;
  alignas(64) float chains[kTile][8][kGroupRows];
  if (supers * Format::kSubs < 8)
    std::memset(chains, 0, sizeof(chains[0]) * static_cast<std::size_t>(tokens));
  for (int super = 0; super < supers;
       ++super, lines += 64 * Format::kLines, halves += 32 * Format::kHalves) {
    for (int at = 0; at < kBlockBytes; at += 64) prefetch(ahead + at);
    ahead += kBlockBytes;
#pragma GCC unroll 8
    for (int s = 0; s < Format::kSubs; ++s) {
      const int b = super * Format::kSubs + s;
      for (int part = 0; part < kParts; ++part) {
        Block<Format> block;
        open_block<Format>(lines + 32 * part, halves + 16 * part, s, block);
        if (b < 8) {
          for (int t = 0; t < tokens; ++t) {
            V::store(&chains[t][b][V::kRows * part], add_block<Format>(block, x[t][b], V::zero()));
          }
        } else {
          for (int t = 0; t < tokens; ++t) {
            float* chain = &chains[t][b % 8][V::kRows * part];
            V::store(chain, add_block<Format>(block, x[t][b], V::load_floats(chain)));
          }
        }
      }
    }
  }
  for (int t = 0; t < tokens; ++t) {
    float* out = y + static_cast<std::size_t>(to[t]) * stride;
    for (int part = 0; part < kParts; ++part) {
      V::F c[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) c[i] = V::load_floats(&chains[t][i][V::kRows * part]);
      V::store(out + V::kRows * part, chain_tree(c));
    }
  }
}

template <class Format>
ASSAY_TARGET void fast_tile(const std::byte* group,
                            int cols,
                            const Q8Record* const* x,
                            const std::int32_t* to,
                            int tokens,
                            float* y,
                            std::size_t stride) {
  if (cols == 32) {
    // One block: chain 0 holds it, the others +0.
    const auto* lines = reinterpret_cast<const std::uint8_t*>(group);
    for (int part = 0; part < kParts; ++part) {
      Block<Format> block;
      open_block<Format>(lines + 32 * part, lines + 64 * Format::kLines + 16 * part, 0, block);
      for (int t = 0; t < tokens; ++t) {
        V::F c[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) c[i] = V::zero();
        c[0] = add_block<Format>(block, *x[t], c[0]);
        V::store(y + static_cast<std::size_t>(to[t]) * stride + V::kRows * part, chain_tree(c));
      }
    }
    return;
  }
  for (int from = 0; from < tokens; from += kTile) {
    fast_tile_of<Format>(
        group, cols, x + from, to + from, std::min(kTile, tokens - from), y, stride);
  }
}

RowKernels::FastTile fast(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0:
      return fast_tile<FormatQ4_0>;
    case BlockType::kQ4_1:
      return fast_tile<FormatQ4_1>;
    case BlockType::kQ5_0:
      return fast_tile<FormatQ5_0>;
    case BlockType::kQ5_1:
      return fast_tile<FormatQ5_1>;
    case BlockType::kQ8_0:
      return fast_tile<FormatQ8_0>;
    case BlockType::kQ4_K:
      return fast_tile<FormatQ4_K>;
    case BlockType::kQ5_K:
      return fast_tile<FormatQ5_K>;
    case BlockType::kQ6_K:
      return fast_tile<FormatQ6_K>;
    case BlockType::kF32:
    case BlockType::kF16:
    case BlockType::kBF16:
      break;
  }
  return nullptr;
}

RowKernels::FastGroups fast_one(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0:
      return fast_groups<FormatQ4_0>;
    case BlockType::kQ4_1:
      return fast_groups<FormatQ4_1>;
    case BlockType::kQ5_0:
      return fast_groups<FormatQ5_0>;
    case BlockType::kQ5_1:
      return fast_groups<FormatQ5_1>;
    case BlockType::kQ8_0:
      return fast_groups<FormatQ8_0>;
    case BlockType::kQ4_K:
      return fast_groups<FormatQ4_K>;
    case BlockType::kQ5_K:
      return fast_groups<FormatQ5_K>;
    case BlockType::kQ6_K:
      return fast_groups<FormatQ6_K>;
    case BlockType::kF32:
    case BlockType::kF16:
    case BlockType::kBF16:
      break;
  }
  return nullptr;
}

// ---- between the products ----

// gelu_fixed of fixed_math.h, operation by operation.
ASSAY_INLINE V::F gelu(V::F z) {
  using namespace fixed_math;
  const V::F one = V::broadcast(1.0F);
  const V::F t = V::fma(V::mul(z, z), V::broadcast(kGeluCubic), one);
  const V::F x = V::mul(V::mul(z, V::broadcast(kGeluOuter)), t);
  const V::F rounded = V::fma(x, V::broadcast(kLog2E), V::broadcast(kRound));
  const V::F n = V::add(rounded, V::broadcast(-kRound));
  const V::F r = V::fma(n, V::broadcast(-kLn2Low), V::fma(n, V::broadcast(-kLn2High), x));
  V::F p = V::broadcast(kExp[0]);
#pragma GCC unroll 5
  for (int i = 1; i < 6; ++i) p = V::fma(p, r, V::broadcast(kExp[i]));
  const V::F q = V::fma(p, V::mul(r, r), r);
  const V::I exponent = V::add(V::bits(rounded), V::words(static_cast<int>(127U - kRoundBits)));
  V::F e = V::mul(V::add(q, one), V::floats(V::template left<23>(exponent)));
  e = V::where_less(x, V::broadcast(kExpLowest), V::zero(), e);
  e = V::where_less(V::broadcast(kExpHighest), x, V::broadcast(INFINITY), e);
  return V::div(z, V::add(one, e));
}

ASSAY_TARGET void geglu(const float* gate, const float* up, std::size_t n, float* u) {
  for (std::size_t i = 0; i < n; i += V::kRows) {
    V::store(u + i, V::mul(gelu(V::load_floats(gate + i)), V::load_floats(up + i)));
  }
}

ASSAY_TARGET void combine(const std::int32_t* ids,
                          const float* weights,
                          int tokens,
                          int top_k,
                          const float* y,
                          std::size_t n,
                          float* out,
                          std::size_t out_stride) {
  for (int t = 0; t < tokens; ++t,
           ids += top_k,
           weights += top_k,
           y += static_cast<std::size_t>(top_k) * n,
           out += out_stride) {
    std::size_t i = 0;
    for (; i + V::kRows <= n; i += V::kRows) {
      V::F sum = V::zero();
      for (int k = 0; k < top_k; ++k) {
        if (ids[k] < 0) continue;
        sum = V::fma(
            V::broadcast(weights[k]), V::load_floats(y + static_cast<std::size_t>(k) * n + i), sum);
      }
      V::store(out + i, V::canonical(sum));
    }
    for (; i < n; ++i) {
      float sum = 0.0F;
      for (int k = 0; k < top_k; ++k) {
        if (ids[k] >= 0)
          sum = __builtin_fmaf(weights[k], y[static_cast<std::size_t>(k) * n + i], sum);
      }
      out[i] = sum != sum ? std::bit_cast<float>(std::uint32_t{0x7FC00000}) : sum;
    }
  }
}
