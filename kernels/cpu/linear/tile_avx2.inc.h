// Matrix tiles for AVX2 and FMA, eight rows (half a tile) at a time.
//
// NVFP4: byte lookups give the upper and the lower bytes of the BF16 weights; interleaving them yields, in a
// 32-bit lane, elements of two different pairs of columns, and its halves as floats are lanes of
// (row, column 2p), (row, column 2p+1) side by side. They meet a token's pair of activations broadcast as 64
// bits; one horizontal addition a block brings the rows together. Fewer instructions than one lookup a lane.
// For more than a few tokens a block of weights is decoded into memory, which the first-level cache holds.

static constexpr int kMaxTokens = 24;
static constexpr int kMaxBf16Tokens = kMaxTokens;
// Tokens whose sums are in registers at once, two each beside weights and activations: with the weights decoded on the
// way, and with them coming from memory.
static constexpr int kRegisterTokens = 4;
static constexpr int kBlockTokens = 6;

// For pair p of a block of 16 columns: rows 0, 1, 4, 5 and rows 2, 3, 6, 7 of the eight, two columns each.
struct PairWeights {
  __m256 rows01, rows23;
};

static VEC_INLINE __m256 HighHalves(__m256i x) {
  return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
static VEC_INLINE __m256 LowHalves(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }

// Decodes 8 rows x 8 columns (32 bytes) into four pairs.
static VEC_INLINE void DecodeHalf(const std::byte* p, PairWeights* w) {
  // BF16 of the codes, times 256 like kE2M1Table of AVX-512: upper and lower bytes.
  const __m256i upper =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0x00, 0x43, 0x43, 0x43, 0x44, 0x44, 0x44, 0x44, -0x80, -0x3d,
                                                -0x3d, -0x3d, -0x3c, -0x3c, -0x3c, -0x3c));
  const __m256i lower =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0x00, 0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40, 0x00,
                                                0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40));
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  const __m256i codes = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  // Bytes of a row's lane: columns (0, 2), (4, 6), (1, 3), (5, 7), low nibble first.
  const __m256i first = _mm256_and_si256(codes, nibble);                         // columns 0, 4, 1, 5
  const __m256i second = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);  // columns 2, 6, 3, 7
  const __m256i first_upper = _mm256_shuffle_epi8(upper, first);
  const __m256i first_lower = _mm256_shuffle_epi8(lower, first);
  const __m256i second_upper = _mm256_shuffle_epi8(upper, second);
  const __m256i second_lower = _mm256_shuffle_epi8(lower, second);
  const __m256i first01 = _mm256_unpacklo_epi8(first_lower, first_upper);
  const __m256i first23 = _mm256_unpackhi_epi8(first_lower, first_upper);
  const __m256i second01 = _mm256_unpacklo_epi8(second_lower, second_upper);
  const __m256i second23 = _mm256_unpackhi_epi8(second_lower, second_upper);
  w[0] = {LowHalves(first01), LowHalves(first23)};
  w[1] = {LowHalves(second01), LowHalves(second23)};
  w[2] = {HighHalves(first01), HighHalves(first23)};
  w[3] = {HighHalves(second01), HighHalves(second23)};
}

static VEC_INLINE __m256 BroadcastPair(const float* x) {
  return _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(x)));
}

// Eight block scales divided by 256.
struct E4M3Scales {
  // Not negative; by way of binary16.
  static VEC_INLINE __m256 Decode(const std::byte* p) {
    const __m128i raw = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(raw), 7));
  }
};
struct E8M0Scales {
  // A float's exponent; what would be subnormal is zero.
  static VEC_INLINE __m256 Decode(const std::byte* p) {
    const __m128i raw = _mm_subs_epu8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(8));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(raw), 23));
  }
};

// Adds the products of eight rows of a block with N tokens to their totals, 16 floats apart. x: the panel's columns
// of the block for the first of the tokens, pairs of columns x_stride floats apart. Not inlined: the weights are to
// come from memory, the registers are for the sums.
template <int N>
static __attribute__((noinline)) void AddBlock(const PairWeights* w, __m256 scale, const float* x, int64_t x_stride,
                                               float* total) {
  __m256 sum01[N], sum23[N];
  VEC_UNROLL
  for (int t = 0; t < N; ++t) sum01[t] = sum23[t] = _mm256_setzero_ps();
  for (int p = 0; p < 8; ++p, x += x_stride) {
    const __m256 rows01 = w[p].rows01, rows23 = w[p].rows23;
    VEC_UNROLL
    for (int t = 0; t < N; ++t) {
      const __m256 pair = BroadcastPair(x + 2 * t);
      sum01[t] = _mm256_fmadd_ps(rows01, pair, sum01[t]);
      sum23[t] = _mm256_fmadd_ps(rows23, pair, sum23[t]);
    }
  }
  VEC_UNROLL
  for (int t = 0; t < N; ++t) {
    const __m256 sum = _mm256_hadd_ps(sum01[t], sum23[t]);
    _mm256_storeu_ps(total + 16 * t, _mm256_fmadd_ps(sum, scale, _mm256_loadu_ps(total + 16 * t)));
  }
}

template <int N = kBlockTokens>
static VEC_INLINE void AddBlockUpTo(int t, const PairWeights* w, __m256 scale, const float* x, int64_t x_stride,
                                    float* total) {
  if (t == N) return AddBlock<N>(w, scale, x, x_stride, total);
  if constexpr (N > 3) AddBlockUpTo<N - 1>(t, w, scale, x, x_stride, total);
}

// For more than kRegisterTokens: each block is decoded once and meets a few tokens at a time.
template <typename Scales>
static void Fp4TileMany(const std::byte* tile, int64_t k, const float* x, int t, float* out) {
  __builtin_memset(out, 0, sizeof(float) * 16 * t);
  const int groups = (t + kBlockTokens - 1) / kBlockTokens;
  for (int64_t block = 0; block < k / 16; ++block, x += 16 * t) {
    const std::byte* group = tile + block / 4 * kNvfp4GroupBytes;
    const std::byte* codes = group + 64 + block % 4 * 128;
    Prefetch(codes + kPrefetchBytes);
    Prefetch(codes + kPrefetchBytes + 64);
    for (int rows = 0; rows < 2; ++rows) {
      PairWeights w[8];
      DecodeHalf(codes + rows * 32, w);
      DecodeHalf(codes + 64 + rows * 32, w + 4);
      const __m256 scale = Scales::Decode(group + block % 4 * 16 + rows * 8);
      for (int g = 0; g < groups; ++g) {
        const int i = t * g / groups;
        AddBlockUpTo(t * (g + 1) / groups - i, w, scale, x + 2 * i, 2 * t, out + 16 * i + 8 * rows);
      }
    }
  }
}

template <typename Scales, int T>
static void Fp4TileT(const std::byte* tile, int64_t k, const void* panel, float* out) {
  const float* x = static_cast<const float*>(panel);
  __m256 total[2 * T];
  VEC_UNROLL
  for (int i = 0; i < 2 * T; ++i) total[i] = _mm256_setzero_ps();
  for (int64_t block = 0; block < k / 16; ++block, x += 16 * T) {
    const std::byte* group = tile + block / 4 * kNvfp4GroupBytes;
    const std::byte* codes = group + 64 + block % 4 * 128;
    Prefetch(codes + kPrefetchBytes);
    Prefetch(codes + kPrefetchBytes + 64);
    VEC_UNROLL
    for (int rows = 0; rows < 2; ++rows) {
      __m256 sum01[T], sum23[T];
      VEC_UNROLL
      for (int t = 0; t < T; ++t) sum01[t] = sum23[t] = _mm256_setzero_ps();
      VEC_UNROLL
      for (int half = 0; half < 2; ++half) {
        PairWeights w[4];
        DecodeHalf(codes + half * 64 + rows * 32, w);
        VEC_UNROLL
        for (int p = 0; p < 4; ++p) {
          VEC_UNROLL
          for (int t = 0; t < T; ++t) {
            const __m256 pair = BroadcastPair(x + ((half * 4 + p) * T + t) * 2);
            sum01[t] = _mm256_fmadd_ps(w[p].rows01, pair, sum01[t]);
            sum23[t] = _mm256_fmadd_ps(w[p].rows23, pair, sum23[t]);
          }
        }
      }
      const __m256 scale = Scales::Decode(group + block % 4 * 16 + rows * 8);
      VEC_UNROLL
      for (int t = 0; t < T; ++t) {
        const __m256 sum = _mm256_hadd_ps(sum01[t], sum23[t]);
        total[2 * t + rows] = _mm256_fmadd_ps(sum, scale, total[2 * t + rows]);
      }
    }
  }
  VEC_UNROLL
  for (int i = 0; i < 2 * T; ++i) _mm256_storeu_ps(out + 8 * i, total[i]);
}

// For T tokens whose pairs of columns are x_stride floats apart.
template <int T>
static void Bf16TileT(const std::byte* tile, int64_t k, const float* x, int64_t x_stride, float* out) {
  __m256 total[2 * T];
  VEC_UNROLL
  for (int i = 0; i < 2 * T; ++i) total[i] = _mm256_setzero_ps();
  for (int64_t pairs = (k + 1) / 2; pairs > 0; pairs -= 16) {
    const int in_block = pairs < 16 ? static_cast<int>(pairs) : 16;
    __m256 sum[2 * T];
    VEC_UNROLL
    for (int i = 0; i < 2 * T; ++i) sum[i] = _mm256_setzero_ps();
    for (int p = 0; p < in_block; ++p, tile += 64, x += x_stride) {
      Prefetch(tile + kPrefetchBytes);
      F16 even, odd;
      LoadPairs(reinterpret_cast<const Bf16*>(tile), &even, &odd);
      VEC_UNROLL
      for (int t = 0; t < T; ++t) {
        const __m256 x0 = _mm256_broadcast_ss(x + 2 * t);
        const __m256 x1 = _mm256_broadcast_ss(x + 2 * t + 1);
        sum[2 * t] = _mm256_fmadd_ps(odd.lo, x1, sum[2 * t]);
        sum[2 * t + 1] = _mm256_fmadd_ps(odd.hi, x1, sum[2 * t + 1]);
        sum[2 * t] = _mm256_fmadd_ps(even.lo, x0, sum[2 * t]);
        sum[2 * t + 1] = _mm256_fmadd_ps(even.hi, x0, sum[2 * t + 1]);
      }
    }
    VEC_UNROLL
    for (int i = 0; i < 2 * T; ++i) total[i] = _mm256_add_ps(total[i], sum[i]);
  }
  VEC_UNROLL
  for (int i = 0; i < 2 * T; ++i) _mm256_storeu_ps(out + 8 * i, total[i]);
}

// The instance for t tokens, at most T.
template <typename Scales, int T = kRegisterTokens>
static void Fp4Tile(const std::byte* tile, int64_t k, const void* panel, int t, float* out) {
  if (t > kRegisterTokens) return Fp4TileMany<Scales>(tile, k, static_cast<const float*>(panel), t, out);
  if (t == T) return Fp4TileT<Scales, T>(tile, k, panel, out);
  if constexpr (T > 1) Fp4Tile<Scales, T - 1>(tile, k, panel, t, out);
}

template <int T = kRegisterTokens>
static void Bf16TileUpTo(const std::byte* tile, int64_t k, const float* x, int64_t x_stride, int t, float* out) {
  if (t == T) return Bf16TileT<T>(tile, k, x, x_stride, out);
  if constexpr (T > 1) Bf16TileUpTo<T - 1>(tile, k, x, x_stride, t, out);
}

static void Bf16Tile(const std::byte* tile, int64_t k, const void* panel, int t, float* out) {
  const float* x = static_cast<const float*>(panel);
  const int groups = (t + kRegisterTokens - 1) / kRegisterTokens;
  for (int g = 0; g < groups; ++g) {
    const int first = t * g / groups;
    Bf16TileUpTo(tile, k, x + 2 * first, 2 * t, t * (g + 1) / groups - first, out + 16 * first);
  }
}
