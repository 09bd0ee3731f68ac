// Matrix tiles in plain C++.

static constexpr int kMaxTokens = 8;
static constexpr int kMaxBf16Tokens = kMaxTokens;
static constexpr int kRegisterTokens = kMaxTokens;

alignas(64) static constexpr float kE2M1Table[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

static VEC_INLINE void AccumulatePair(const F16& even, const F16& odd, const float* x, int t, F16* sum) {
  for (int i = 0; i < t; ++i) {
    sum[i] = MulAdd(odd, Set(x[2 * i + 1]), sum[i]);
    sum[i] = MulAdd(even, Set(x[2 * i]), sum[i]);
  }
}

struct E4M3Scales {
  static VEC_INLINE float Decode(uint8_t scale) { return nvfp4::E4M3ToFloat(scale); }
};
struct E8M0Scales {
  // A float's exponent. What the other sets take for zero is zero here.
  static VEC_INLINE float Decode(uint8_t scale) {
    return scale > 8 ? __builtin_bit_cast(float, static_cast<uint32_t>(scale) << 23) : 0.0f;
  }
};

template <typename Scales>
static void Fp4Tile(const std::byte* tile, int64_t k, const void* panel, int t, float* out) {
  const float* x = static_cast<const float*>(panel);
  F16 total[kMaxTokens];
  for (int i = 0; i < t; ++i) total[i] = Zero();
  for (int64_t block = 0; block < k / 16; ++block) {
    const std::byte* group = tile + block / 4 * kNvfp4GroupBytes;
    const std::byte* codes = group + 64 + block % 4 * 128;
    F16 sum[kMaxTokens];
    for (int i = 0; i < t; ++i) sum[i] = Zero();
    for (int p = 0; p < 8; ++p) {  // pairs of columns; four in each half
      float even[16], odd[16];
      for (int r = 0; r < 16; ++r) {
        uint32_t lane;
        __builtin_memcpy(&lane, codes + p / 4 * 64 + r * 4, 4);
        even[r] = kE2M1Table[(lane >> (p % 4 * 4)) & 0xf];
        odd[r] = kE2M1Table[(lane >> (16 + p % 4 * 4)) & 0xf];
      }
      AccumulatePair(Load(even), Load(odd), x, t, sum);
      x += 2 * t;
    }
    float scale[16];
    for (int r = 0; r < 16; ++r) scale[r] = Scales::Decode(static_cast<uint8_t>(group[block % 4 * 16 + r]));
    for (int i = 0; i < t; ++i) total[i] = MulAdd(sum[i], Load(scale), total[i]);
  }
  for (int i = 0; i < t; ++i) Store(total[i], out + 16 * i);
}

static void Bf16Tile(const std::byte* tile, int64_t k, const void* panel, int t, float* out) {
  const float* x = static_cast<const float*>(panel);
  F16 total[kMaxTokens];
  for (int i = 0; i < t; ++i) total[i] = Zero();
  for (int64_t pairs = (k + 1) / 2; pairs > 0; pairs -= 16) {
    F16 sum[kMaxTokens];
    for (int i = 0; i < t; ++i) sum[i] = Zero();
    for (int p = 0; p < 16 && p < pairs; ++p) {
      F16 even, odd;
      LoadPairs(reinterpret_cast<const Bf16*>(tile), &even, &odd);
      AccumulatePair(even, odd, x, t, sum);
      tile += 64;
      x += 2 * t;
    }
    for (int i = 0; i < t; ++i) total[i] = Add(total[i], sum[i]);
  }
  for (int i = 0; i < t; ++i) Store(total[i], out + 16 * i);
}
