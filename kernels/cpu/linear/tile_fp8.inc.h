// FP8 matrix tiles, written once over the sixteen-lane vector type: output rows in the lanes, products and sums in
// float. LoadE4M3 gives values divided by 256; packed scales make up for it.

static VEC_INLINE float PanelValue(float x) { return x; }
static VEC_INLINE float PanelValue(Bf16 x) { return ToFloat(x); }

// For T tokens whose pairs of columns are x_stride values apart.
template <typename Value, int T>
static void Fp8TileT(const std::byte* tile, int64_t k, const Value* x, int64_t x_stride, float* out) {
  F16 total[T];
  VEC_UNROLL
  for (int t = 0; t < T; ++t) total[t] = Zero();
  for (int64_t pairs = (k + 1) / 2; pairs > 0; pairs -= kFp8GroupColumns / 2) {
    const int64_t in_group = pairs < kFp8GroupColumns / 2 ? pairs : kFp8GroupColumns / 2;
    const F16 scale = Load(reinterpret_cast<const float*>(tile));
    tile += 64;
    F16 sum[T];
    VEC_UNROLL
    for (int t = 0; t < T; ++t) sum[t] = Zero();
    for (int64_t p = 0; p < in_group; ++p, tile += 32, x += x_stride) {
      Prefetch(tile + kPrefetchBytes);
      const F16 even = LoadE4M3(tile);
      const F16 odd = LoadE4M3(tile + 16);
      VEC_UNROLL
      for (int t = 0; t < T; ++t) {
        sum[t] = MulAdd(odd, Set(PanelValue(x[2 * t + 1])), sum[t]);
        sum[t] = MulAdd(even, Set(PanelValue(x[2 * t])), sum[t]);
      }
    }
    VEC_UNROLL
    for (int t = 0; t < T; ++t) total[t] = MulAdd(sum[t], scale, total[t]);
  }
  VEC_UNROLL
  for (int t = 0; t < T; ++t) Store(total[t], out + 16 * t);
}

template <typename Value, int T = kRegisterTokens>
static void Fp8TileUpTo(const std::byte* tile, int64_t k, const Value* x, int64_t x_stride, int t, float* out) {
  if (t == T) return Fp8TileT<Value, T>(tile, k, x, x_stride, out);
  if constexpr (T > 1) Fp8TileUpTo<Value, T - 1>(tile, k, x, x_stride, t, out);
}

// A panel, kRegisterTokens at a time.
template <typename Value>
static void Fp8Tile(const std::byte* tile, int64_t k, const void* panel, int t, float* out) {
  const Value* x = static_cast<const Value*>(panel);
  const int groups = (t + kRegisterTokens - 1) / kRegisterTokens;
  for (int g = 0; g < groups; ++g) {
    const int first = t * g / groups;
    Fp8TileUpTo(tile, k, x + 2 * first, 2 * t, t * (g + 1) / groups - first, out + 16 * first);
  }
}
