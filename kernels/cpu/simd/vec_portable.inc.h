// Sixteen floats as four vectors of four, with the compiler's vector extension (GCC and Clang): SSE2 on
// x86-64, NEON on AArch64, plain code elsewhere. Included inside the namespace of a file.
typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef uint32_t U4 __attribute__((vector_size(16)));

struct F16 {
  F4 v[4];
};

template <typename Fn>
static VEC_INLINE F16 Quarters(Fn fn) {
  return {{fn(0), fn(1), fn(2), fn(3)}};
}
static VEC_INLINE F4 Broadcast(float a) { return F4{a, a, a, a}; }
static VEC_INLINE F4 Select(I4 mask, F4 a, F4 b) {
  return reinterpret_cast<F4>((mask & reinterpret_cast<I4>(a)) | (~mask & reinterpret_cast<I4>(b)));
}

static VEC_INLINE F16 Set(float a) {
  const F4 q = Broadcast(a);
  return {{q, q, q, q}};
}
static VEC_INLINE F16 Zero() { return Set(0.0f); }
static VEC_INLINE F16 Load(const float* p) {
  F16 r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}
static VEC_INLINE void Store(const F16& a, float* p) { __builtin_memcpy(p, &a, sizeof(a)); }
// First n lanes (n in 0..16), the others zero; memory past them is not touched.
static VEC_INLINE F16 LoadN(const float* p, int64_t n) {
  if (n == 16) return Load(p);
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return Load(lanes);
}
static VEC_INLINE void StoreN(const F16& a, float* p, int64_t n) {
  if (n == 16) return Store(a, p);
  float lanes[16];
  Store(a, lanes);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}
static VEC_INLINE F16 Add(const F16& a, const F16& b) {
  return Quarters([&](int i) VEC_LAMBDA_INLINE { return a.v[i] + b.v[i]; });
}
static VEC_INLINE F16 Sub(const F16& a, const F16& b) {
  return Quarters([&](int i) VEC_LAMBDA_INLINE { return a.v[i] - b.v[i]; });
}
static VEC_INLINE F16 Mul(const F16& a, const F16& b) {
  return Quarters([&](int i) VEC_LAMBDA_INLINE { return a.v[i] * b.v[i]; });
}
static VEC_INLINE F16 Div(const F16& a, const F16& b) {
  return Quarters([&](int i) VEC_LAMBDA_INLINE { return a.v[i] / b.v[i]; });
}
static VEC_INLINE F16 MulAdd(const F16& a, const F16& b, const F16& c) {
  return Quarters([&](int i) VEC_LAMBDA_INLINE { return a.v[i] * b.v[i] + c.v[i]; });
}
static VEC_INLINE F16 Max(const F16& a, const F16& b) {
  return Quarters([&](int i) VEC_LAMBDA_INLINE { return Select(a.v[i] > b.v[i], a.v[i], b.v[i]); });
}
// Lanes where original < limit become value; a NaN stays.
static VEC_INLINE F16 ReplaceBelow(const F16& x, float limit, const F16& original, float value) {
  return Quarters([&](int i) VEC_LAMBDA_INLINE {
    return Select(original.v[i] < Broadcast(limit), Broadcast(value), x.v[i]);
  });
}
static VEC_INLINE F16 ReplaceAbove(const F16& x, float limit, const F16& original, float value) {
  return Quarters([&](int i) VEC_LAMBDA_INLINE {
    return Select(original.v[i] > Broadcast(limit), Broadcast(value), x.v[i]);
  });
}
// Lanes outside [begin, end) become value.
static VEC_INLINE F16 KeepRange(const F16& x, int begin, int end, float value) {
  return Quarters([&](int i) VEC_LAMBDA_INLINE {
    const I4 lane = I4{0, 1, 2, 3} + 4 * i;
    return Select((lane >= begin) & (lane < end), x.v[i], Broadcast(value));
  });
}
// x * 2^n for integral n in -150..150 (held as float) with a normal result. Adding 1.5 * 2^23 leaves n in the
// low bits without a conversion, which would be undefined for a NaN.
static VEC_INLINE F16 ScaleByPowerOfTwo(const F16& x, const F16& n) {
  return Quarters([&](int i) VEC_LAMBDA_INLINE {
    const U4 shift = reinterpret_cast<U4>(n.v[i] + Broadcast(0x1.8p23f)) << 23;
    return reinterpret_cast<F4>(reinterpret_cast<U4>(x.v[i]) + shift);
  });
}
static VEC_INLINE F16 LoadBf16(const Bf16* p) {
  return Quarters([&](int i) VEC_LAMBDA_INLINE {
    return reinterpret_cast<F4>(U4{p[4 * i].bits, p[4 * i + 1].bits, p[4 * i + 2].bits, p[4 * i + 3].bits}
                                << 16);
  });
}
static VEC_INLINE void StoreBf16(const F16& a, Bf16* p) {
  float lanes[16];
  Store(a, lanes);
  for (int i = 0; i < 16; ++i) p[i] = ToBf16(lanes[i]);
}
// Sixteen BF16 pairs: the even elements and the odd ones as floats.
static VEC_INLINE void LoadPairs(const Bf16* p, F16* even, F16* odd) {
  for (int i = 0; i < 4; ++i) {
    U4 pairs;
    __builtin_memcpy(&pairs, p + 8 * i, sizeof(pairs));
    // The element at the lower address is the even one, whatever the byte order.
    constexpr bool kLittleEndian = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
    const F4 low = reinterpret_cast<F4>(pairs << 16);
    const F4 high = reinterpret_cast<F4>(pairs & 0xffff0000u);
    even->v[i] = kLittleEndian ? low : high;
    odd->v[i] = kLittleEndian ? high : low;
  }
}
struct E4M3Values {
  float value[256];
  constexpr E4M3Values() : value() {
    for (int i = 0; i < 256; ++i) value[i] = nvfp4::E4M3ToFloat(static_cast<uint8_t>(i)) / 256;
  }
};
static constexpr E4M3Values kE4M3Values;
// Sixteen E4M3 codes, none of them NaN, divided by 256.
static VEC_INLINE F16 LoadE4M3(const std::byte* p) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = kE4M3Values.value[static_cast<uint8_t>(p[i])];
  return Load(lanes);
}
// Halves are added until one lane is left: 8, 4, 2, 1. The order is the same in every implementation.
static VEC_INLINE float ReduceAdd(const F16& a) {
  const F4 s4 = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (s4[0] + s4[2]) + (s4[1] + s4[3]);
}
static VEC_INLINE float ReduceMax(const F16& a) {
  const auto max = [](F4 x, F4 y) VEC_LAMBDA_INLINE { return Select(x > y, x, y); };
  const F4 m4 = max(max(a.v[0], a.v[2]), max(a.v[1], a.v[3]));
  float m = m4[0];
  for (int i = 1; i < 4; ++i) m = m > m4[i] ? m : m4[i];
  return m;
}
static VEC_INLINE void Prefetch(const void*) {}
static VEC_INLINE void PrefetchL2(const void*) {}
