// Row kernels, written once over F16. Included after simd/math.inc.h. Tails shorter than 16 go through the
// same lanes, so that an element's result does not depend on where the vector ends.

static float RmsScale(const float* x, float eps, int64_t n) {
  F16 sum = Zero();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 v = Load(x + i);
    sum = MulAdd(v, v, sum);
  }
  if (i < n) {
    const F16 v = LoadN(x + i, n - i);
    sum = MulAdd(v, v, sum);
  }
  return 1.0f / __builtin_sqrtf(ReduceAdd(sum) / static_cast<float>(n) + eps);
}

static VEC_INLINE F16 Normalized(const float* x, const float* weight, F16 scale, int64_t n) {
  const F16 v = Mul(LoadN(x, n), scale);
  return weight == nullptr ? v : Mul(v, LoadN(weight, n));
}

static void RmsNormRow(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const F16 scale = Set(RmsScale(x, eps, n));
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    StoreN(Normalized(x + i, weight == nullptr ? nullptr : weight + i, scale, count), out + i, count);
  }
}

static VEC_INLINE void StoreBf16N(F16 v, Bf16* out, int64_t n) {
  if (n == 16) {
    StoreBf16(v, out);
    return;
  }
  Bf16 lanes[16];
  StoreBf16(v, lanes);
  for (int64_t i = 0; i < n; ++i) out[i] = lanes[i];
}

static void RmsNormRowBf16(const float* x, const float* weight, float eps, int64_t n, Bf16* out) {
  const F16 scale = Set(RmsScale(x, eps, n));
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    StoreBf16N(Normalized(x + i, weight == nullptr ? nullptr : weight + i, scale, count), out + i, count);
  }
}

static void RopeNeoxRow(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t n = half - i < 16 ? half - i : 16;
    const F16 a = LoadN(x + i, n);
    const F16 b = LoadN(x + half + i, n);
    const F16 c = LoadN(cos + i, n);
    const F16 s = LoadN(sin + i, n);
    StoreN(Sub(Mul(a, c), Mul(b, s)), x + i, n);
    StoreN(Add(Mul(b, c), Mul(a, s)), x + half + i, n);
  }
}

static void GluRow(const Glu& glu, const float* gate, const float* up, int64_t n, Bf16* out) {
  const F16 scale = Set(-glu.sigmoid_scale);
  const F16 offset = Set(glu.up_offset);
  const F16 one = Set(1.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    F16 g = LoadN(gate + i, count);
    g = ReplaceAbove(g, glu.limit, g, glu.limit);
    F16 u = LoadN(up + i, count);
    u = ReplaceAbove(ReplaceBelow(u, -glu.limit, u, -glu.limit), glu.limit, u, glu.limit);
    const F16 gated = Div(g, Add(one, Exp(Mul(scale, g))));
    StoreBf16N(Mul(gated, Add(u, offset)), out + i, count);
  }
}

static void ToBf16Row(const float* x, int64_t n, Bf16* out) {
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    StoreBf16N(LoadN(x + i, count), out + i, count);
  }
}

static void ToFloatRow(const Bf16* x, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Store(LoadBf16(x + i), out + i);
  for (; i < n; ++i) out[i] = ToFloat(x[i]);
}

static void ScaleAddRow(float a, const float* x, int64_t n, float* y) {
  const F16 scale = Set(a);
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    StoreN(MulAdd(scale, LoadN(x + i, count), LoadN(y + i, count)), y + i, count);
  }
}

static void MergeRow(float a, float* y, float b, const float* x, int64_t n) {
  const F16 scale_y = Set(a);
  const F16 scale_x = Set(b);
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    const F16 scaled = Mul(scale_y, LoadN(y + i, count));
    StoreN(MulAdd(scale_x, LoadN(x + i, count), scaled), y + i, count);
  }
}

static float ExpSumRow(const float* x, float shift, int64_t n, float* out) {
  const F16 s = Set(shift);
  F16 sum = Zero();
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    const F16 e = KeepRange(Exp(Sub(LoadN(x + i, count), s)), 0, static_cast<int>(count), 0.0f);
    StoreN(e, out + i, count);
    sum = Add(sum, e);
  }
  return ReduceAdd(sum);
}
