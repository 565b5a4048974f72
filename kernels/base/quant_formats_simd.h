// The block formats in the layout kRows16 for one vector instruction set. Included inside the unnamed namespace of a
// kernel file, after that file has defined
//   ASSAY_INLINE   inline, always_inline and the target attribute (a function without it cannot hold the intrinsics)
//   struct V       I (integers), F (floats), kRows (rows a vector holds: int32 or float lanes) and the operations below
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
