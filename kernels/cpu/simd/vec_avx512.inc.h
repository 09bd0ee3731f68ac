// Sixteen floats in one AVX-512 register. Included inside the namespace of a file compiled for AVX-512.
struct F16 {
  __m512 v;
};

static VEC_INLINE F16 Zero() { return {_mm512_setzero_ps()}; }
static VEC_INLINE F16 Set(float a) { return {_mm512_set1_ps(a)}; }
static VEC_INLINE F16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
static VEC_INLINE void Store(F16 a, float* p) { _mm512_storeu_ps(p, a.v); }
static VEC_INLINE __mmask16 FirstLanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
// First n lanes (n in 0..16), the others zero; memory past them is not touched.
static VEC_INLINE F16 LoadN(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(FirstLanes(n), p)}; }
static VEC_INLINE void StoreN(F16 a, float* p, int64_t n) { _mm512_mask_storeu_ps(p, FirstLanes(n), a.v); }
static VEC_INLINE F16 Add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static VEC_INLINE F16 Sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static VEC_INLINE F16 Mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static VEC_INLINE F16 Div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static VEC_INLINE F16 MulAdd(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static VEC_INLINE F16 Max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
// Lanes where x < limit become value; a NaN in x stays.
static VEC_INLINE F16 ReplaceBelow(F16 x, float limit, F16 original, float value) {
  const __mmask16 below = _mm512_cmp_ps_mask(original.v, _mm512_set1_ps(limit), _CMP_LT_OQ);
  return {_mm512_mask_mov_ps(x.v, below, _mm512_set1_ps(value))};
}
static VEC_INLINE F16 ReplaceAbove(F16 x, float limit, F16 original, float value) {
  const __mmask16 above = _mm512_cmp_ps_mask(original.v, _mm512_set1_ps(limit), _CMP_GT_OQ);
  return {_mm512_mask_mov_ps(x.v, above, _mm512_set1_ps(value))};
}
// Lanes outside [begin, end) become value.
static VEC_INLINE F16 KeepRange(F16 x, int begin, int end, float value) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __mmask16 keep = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(begin)) &
                         _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(end));
  return {_mm512_mask_mov_ps(_mm512_set1_ps(value), keep, x.v)};
}
// x * 2^n for integral n (held as float) with a normal result.
static VEC_INLINE F16 ScaleByPowerOfTwo(F16 x, F16 n) {
  const __m512i shift = _mm512_slli_epi32(_mm512_cvtps_epi32(n.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.v), shift))};
}
static VEC_INLINE F16 LoadBf16(const Bf16* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
static VEC_INLINE void StoreBf16(F16 a, Bf16* p) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
// Sixteen BF16 pairs: the even elements and the odd ones as floats.
static VEC_INLINE void LoadPairs(const Bf16* p, F16* even, F16* odd) {
  const __m512i raw = _mm512_loadu_si512(p);
  even->v = _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16));
  odd->v = _mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
// Sixteen E4M3 codes, none of them NaN, divided by 256: binary16 numbers once their fields are moved into place.
static VEC_INLINE F16 LoadE4M3(const std::byte* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i shifted =
      _mm256_slli_epi16(_mm256_cvtepi8_epi16(raw), 7);  // the sign also in the bit below it
  return {_mm512_cvtph_ps(_mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<short>(0xbfff))))};
}
// Halves are added until one lane is left: 8, 4, 2, 1. The order is the same in every implementation.
static VEC_INLINE float ReduceAdd(F16 a) {
  const __m256 lo = _mm512_castps512_ps256(a.v);
  const __m256 hi = _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(a.v), 1));
  const __m256 s8 = _mm256_add_ps(lo, hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
static VEC_INLINE float ReduceMax(F16 a) {
  const __m256 lo = _mm512_castps512_ps256(a.v);
  const __m256 hi = _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(a.v), 1));
  const __m256 s8 = _mm256_max_ps(lo, hi);
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}
static VEC_INLINE void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
static VEC_INLINE void PrefetchL2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
