// Sixteen floats in plain C++; the compiler vectorises the loops as far as its baseline allows. Included
// inside the namespace of a file.
struct F16 {
  float v[16];
};

template <typename Fn>
static VEC_INLINE F16 Lanes(Fn fn) {
  F16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = fn(i);
  return r;
}

static VEC_INLINE F16 Zero() {
  return Lanes([](int) { return 0.0f; });
}
static VEC_INLINE F16 Set(float a) {
  return Lanes([&](int) { return a; });
}
static VEC_INLINE F16 Load(const float* p) {
  return Lanes([&](int i) { return p[i]; });
}
static VEC_INLINE void Store(const F16& a, float* p) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
// First n lanes (n in 0..16), the others zero; memory past them is not touched.
static VEC_INLINE F16 LoadN(const float* p, int64_t n) {
  return Lanes([&](int i) { return i < n ? p[i] : 0.0f; });
}
static VEC_INLINE void StoreN(const F16& a, float* p, int64_t n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
static VEC_INLINE F16 Add(const F16& a, const F16& b) {
  return Lanes([&](int i) { return a.v[i] + b.v[i]; });
}
static VEC_INLINE F16 Sub(const F16& a, const F16& b) {
  return Lanes([&](int i) { return a.v[i] - b.v[i]; });
}
static VEC_INLINE F16 Mul(const F16& a, const F16& b) {
  return Lanes([&](int i) { return a.v[i] * b.v[i]; });
}
static VEC_INLINE F16 Div(const F16& a, const F16& b) {
  return Lanes([&](int i) { return a.v[i] / b.v[i]; });
}
static VEC_INLINE F16 MulAdd(const F16& a, const F16& b, const F16& c) {
  return Lanes([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
static VEC_INLINE F16 Max(const F16& a, const F16& b) {
  return Lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
// Lanes where original < limit become value; a NaN stays.
static VEC_INLINE F16 ReplaceBelow(const F16& x, float limit, const F16& original, float value) {
  return Lanes([&](int i) { return original.v[i] < limit ? value : x.v[i]; });
}
static VEC_INLINE F16 ReplaceAbove(const F16& x, float limit, const F16& original, float value) {
  return Lanes([&](int i) { return original.v[i] > limit ? value : x.v[i]; });
}
// Lanes outside [begin, end) become value.
static VEC_INLINE F16 KeepRange(const F16& x, int begin, int end, float value) {
  return Lanes([&](int i) { return i >= begin && i < end ? x.v[i] : value; });
}
// x * 2^n for integral n (held as float) with a normal result. A NaN or infinite n, which has no integer,
// leaves x as it is; the callers replace such lanes.
static VEC_INLINE F16 ScaleByPowerOfTwo(const F16& x, const F16& n) {
  return Lanes([&](int i) {
    if (!(n.v[i] > -256.0f && n.v[i] < 256.0f)) return x.v[i];
    const uint32_t shift = static_cast<uint32_t>(static_cast<int32_t>(n.v[i])) << 23;
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x.v[i]) + shift);
  });
}
static VEC_INLINE F16 LoadBf16(const Bf16* p) {
  return Lanes([&](int i) { return ToFloat(p[i]); });
}
static VEC_INLINE void StoreBf16(const F16& a, Bf16* p) {
  for (int i = 0; i < 16; ++i) p[i] = ToBf16(a.v[i]);
}
// Sixteen BF16 pairs: the even elements and the odd ones as floats.
static VEC_INLINE void LoadPairs(const Bf16* p, F16* even, F16* odd) {
  for (int i = 0; i < 16; ++i) {
    even->v[i] = ToFloat(p[2 * i]);
    odd->v[i] = ToFloat(p[2 * i + 1]);
  }
}
// Halves are added until one lane is left: 8, 4, 2, 1. The order is the same in every implementation.
static VEC_INLINE float ReduceAdd(F16 a) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
  }
  return a.v[0];
}
static VEC_INLINE float ReduceMax(F16 a) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
  }
  return a.v[0];
}
static VEC_INLINE void Prefetch(const void*) {}
