// Matrix tiles for AVX-512: sixteen output rows in the lanes, the panel's tokens in registers.
//
// Two ways to multiply a register of BF16 weight pairs by a token's pair of activations:
//   FmaDot  two float FMAs, odd column first, then even; activations as float. Intel: 32 products a cycle.
//   Bf16Dot vdpbf16ps; activations as BF16 pairs. One instruction in place of four, but on Intel it issues
//           every other cycle only: 16 products a cycle. Best when a weight is used once.
// vdpbf16ps is specified as those same two steps with subnormals flushed to zero. isa_avx512bf16.cc mixes the
// two, under that flush mode, after having checked on the machine at hand that they agree bit for bit.

static constexpr int kMaxTokens = 12;  // 2 accumulators a token and 6 other registers fit in 32
static constexpr int kRegisterTokens = kMaxTokens;
// BF16 tiles of more tokens have their totals in memory: a load and a store a block.
static constexpr int kMaxBf16Tokens = 16;

struct FmaDot {
  using Value = float;
  struct Weights {
    __m512 even, odd;
  };
  static VEC_INLINE Weights Split(__m512i pairs) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  static VEC_INLINE __m512 Dot(Weights w, const float* x, __m512 sum) {
    sum = _mm512_fmadd_ps(w.odd, _mm512_set1_ps(x[1]), sum);
    return _mm512_fmadd_ps(w.even, _mm512_set1_ps(x[0]), sum);
  }
};

// E2M1 codes to BF16, times 256 (the scales below come out divided by 256), twice.
alignas(64) static const uint16_t kE2M1Table[32] = {
    0x0000, 0x4300, 0x4380, 0x43c0, 0x4400, 0x4440, 0x4480, 0x44c0,  //
    0x8000, 0xc300, 0xc380, 0xc3c0, 0xc400, 0xc440, 0xc480, 0xc4c0,  //
    0x0000, 0x4300, 0x4380, 0x43c0, 0x4400, 0x4440, 0x4480, 0x44c0,  //
    0x8000, 0xc300, 0xc380, 0xc3c0, 0xc400, 0xc440, 0xc480, 0xc4c0};

// Sixteen block scales divided by 256.
struct E4M3Scales {
  // Not negative: shifted left by 7 they are binary16 numbers with that value, subnormals included.
  static VEC_INLINE __m512 Decode(const std::byte* p) {
    const __m128i raw = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(raw), 7));
  }
};
struct E8M0Scales {
  // A float's exponent; what would be subnormal is zero.
  static VEC_INLINE __m512 Decode(const std::byte* p) {
    const __m128i raw = _mm_subs_epu8(_mm_load_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(8));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(raw), 23));
  }
};

template <typename Scales, typename D, int T>
static void Fp4TileT(const std::byte* tile, int64_t k, const void* panel, float* out) {
  const typename D::Value* x = static_cast<const typename D::Value*>(panel);
  const __m512i table = _mm512_load_si512(kE2M1Table);
  __m512 total[T];
  VEC_UNROLL
  for (int t = 0; t < T; ++t) total[t] = _mm512_setzero_ps();
  for (int64_t blocks = k / 16; blocks > 0; blocks -= 4, tile += 576) {
    const int in_group = blocks < 4 ? static_cast<int>(blocks) : 4;
    for (int b = 0; b < in_group; ++b) {
      // Far enough ahead to cover memory latency at full bandwidth; past the tile it fetches the next one.
      Prefetch(tile + kPrefetchBytes + b * 144);
      Prefetch(tile + kPrefetchBytes + b * 144 + 64);
      if (b == 3) Prefetch(tile + kPrefetchBytes + 512);
      __m512 sum[T];
      VEC_UNROLL
      for (int t = 0; t < T; ++t) sum[t] = _mm512_setzero_ps();
      VEC_UNROLL
      for (int half = 0; half < 2; ++half) {
        const __m512i codes = _mm512_load_si512(tile + 64 + b * 128 + half * 64);
        const auto step = [&](__m512i index) VEC_LAMBDA_INLINE {
          const typename D::Weights w = D::Split(_mm512_permutexvar_epi16(index, table));
          VEC_UNROLL
          for (int t = 0; t < T; ++t) sum[t] = D::Dot(w, x + 2 * t, sum[t]);
          x += 2 * T;
        };
        step(codes);
        step(_mm512_srli_epi16(codes, 4));
        step(_mm512_srli_epi16(codes, 8));
        step(_mm512_srli_epi16(codes, 12));
      }
      const __m512 scale = Scales::Decode(tile + b * 16);
      VEC_UNROLL
      for (int t = 0; t < T; ++t) total[t] = _mm512_fmadd_ps(sum[t], scale, total[t]);
    }
  }
  VEC_UNROLL
  for (int t = 0; t < T; ++t) _mm512_storeu_ps(out + 16 * t, total[t]);
}

template <typename D, int T>
static void Bf16TileT(const std::byte* tile, int64_t k, const void* panel, float* out) {
  constexpr bool kInRegisters = T <= kRegisterTokens;
  const typename D::Value* x = static_cast<const typename D::Value*>(panel);
  __m512 total[T];
  VEC_UNROLL
  for (int t = 0; t < T; ++t) {
    total[t] = _mm512_setzero_ps();
    if (!kInRegisters) _mm512_storeu_ps(out + 16 * t, total[t]);
  }
  for (int64_t pairs = (k + 1) / 2; pairs > 0; pairs -= 16) {
    const int in_block = pairs < 16 ? static_cast<int>(pairs) : 16;
    __m512 sum[T];
    VEC_UNROLL
    for (int t = 0; t < T; ++t) sum[t] = _mm512_setzero_ps();
    for (int p = 0; p < in_block; ++p, tile += 64, x += 2 * T) {
      Prefetch(tile + kPrefetchBytes);
      const typename D::Weights w = D::Split(_mm512_load_si512(tile));
      VEC_UNROLL
      for (int t = 0; t < T; ++t) sum[t] = D::Dot(w, x + 2 * t, sum[t]);
    }
    VEC_UNROLL
    for (int t = 0; t < T; ++t) {
      if (kInRegisters) {
        total[t] = _mm512_add_ps(total[t], sum[t]);
      } else {
        _mm512_storeu_ps(out + 16 * t, _mm512_add_ps(_mm512_loadu_ps(out + 16 * t), sum[t]));
      }
    }
  }
  if (!kInRegisters) return;
  VEC_UNROLL
  for (int t = 0; t < T; ++t) _mm512_storeu_ps(out + 16 * t, total[t]);
}

// The instance for t tokens.
template <typename Scales, typename D, int T = kMaxTokens>
static void Fp4Tile(const std::byte* tile, int64_t k, const void* panel, int t, float* out) {
  if (t == T) return Fp4TileT<Scales, D, T>(tile, k, panel, out);
  if constexpr (T > 1) Fp4Tile<Scales, D, T - 1>(tile, k, panel, t, out);
}

template <typename D, int T = kMaxBf16Tokens>
static void Bf16Tile(const std::byte* tile, int64_t k, const void* panel, int t, float* out) {
  if (t == T) return Bf16TileT<D, T>(tile, k, panel, out);
  if constexpr (T > 1) Bf16Tile<D, T - 1>(tile, k, panel, t, out);
}
