// Sixteen floats in two AVX2 registers. Included inside the namespace of a file compiled for AVX2 and FMA.
struct F16 {
  __m256 lo, hi;
};

static VEC_INLINE F16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static VEC_INLINE F16 Set(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
static VEC_INLINE F16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static VEC_INLINE void Store(F16 a, float* p) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
static VEC_INLINE __m256i LaneIndex(int first) {
  return _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
}
static VEC_INLINE __m256i LanesBelow(int first, int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), LaneIndex(first));
}
// First n lanes (n in 0..16), the others zero; memory past them is not touched.
static VEC_INLINE F16 LoadN(const float* p, int64_t n) {
  return {_mm256_maskload_ps(p, LanesBelow(0, n)), _mm256_maskload_ps(p + 8, LanesBelow(8, n))};
}
static VEC_INLINE void StoreN(F16 a, float* p, int64_t n) {
  _mm256_maskstore_ps(p, LanesBelow(0, n), a.lo);
  _mm256_maskstore_ps(p + 8, LanesBelow(8, n), a.hi);
}
static VEC_INLINE F16 Add(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static VEC_INLINE F16 Sub(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static VEC_INLINE F16 Mul(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static VEC_INLINE F16 Div(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static VEC_INLINE F16 MulAdd(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static VEC_INLINE F16 Max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static VEC_INLINE __m256 ReplaceWhere(__m256 x, __m256 mask, float value) {
  return _mm256_blendv_ps(x, _mm256_set1_ps(value), mask);
}
// Lanes where original < limit become value; a NaN stays.
static VEC_INLINE F16 ReplaceBelow(F16 x, float limit, F16 original, float value) {
  const __m256 l = _mm256_set1_ps(limit);
  return {ReplaceWhere(x.lo, _mm256_cmp_ps(original.lo, l, _CMP_LT_OQ), value),
          ReplaceWhere(x.hi, _mm256_cmp_ps(original.hi, l, _CMP_LT_OQ), value)};
}
static VEC_INLINE F16 ReplaceAbove(F16 x, float limit, F16 original, float value) {
  const __m256 l = _mm256_set1_ps(limit);
  return {ReplaceWhere(x.lo, _mm256_cmp_ps(original.lo, l, _CMP_GT_OQ), value),
          ReplaceWhere(x.hi, _mm256_cmp_ps(original.hi, l, _CMP_GT_OQ), value)};
}
// Lanes outside [begin, end) become value.
static VEC_INLINE __m256 KeepRangeHalf(__m256 x, int first, int begin, int end, float value) {
  const __m256i keep = _mm256_and_si256(LanesBelow(first, end),
                                        _mm256_cmpgt_epi32(LaneIndex(first), _mm256_set1_epi32(begin - 1)));
  return _mm256_blendv_ps(_mm256_set1_ps(value), x, _mm256_castsi256_ps(keep));
}
static VEC_INLINE F16 KeepRange(F16 x, int begin, int end, float value) {
  return {KeepRangeHalf(x.lo, 0, begin, end, value), KeepRangeHalf(x.hi, 8, begin, end, value)};
}
// x * 2^n for integral n (held as float) with a normal result.
static VEC_INLINE __m256 ScaleHalf(__m256 x, __m256 n) {
  const __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), shift));
}
static VEC_INLINE F16 ScaleByPowerOfTwo(F16 x, F16 n) {
  return {ScaleHalf(x.lo, n.lo), ScaleHalf(x.hi, n.hi)};
}
static VEC_INLINE __m256 Bf16ToFloat8(__m128i raw) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
static VEC_INLINE F16 LoadBf16(const Bf16* p) {
  return {Bf16ToFloat8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          Bf16ToFloat8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
static VEC_INLINE __m256i RoundToBf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
  const __m256 result = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan);
  return _mm256_srli_epi32(_mm256_castps_si256(result), 16);
}
static VEC_INLINE void StoreBf16(F16 a, Bf16* p) {
  const __m256i packed = _mm256_packus_epi32(RoundToBf16(a.lo), RoundToBf16(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
// Sixteen BF16 pairs: the even elements and the odd ones as floats.
static VEC_INLINE void LoadPairs(const Bf16* p, F16* even, F16* odd) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + 1);
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  *even = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  *odd = {_mm256_castsi256_ps(_mm256_and_si256(a, high)), _mm256_castsi256_ps(_mm256_and_si256(b, high))};
}
// Sixteen E4M3 codes, none of them NaN, divided by 256: binary16 numbers once their fields are moved into place.
static VEC_INLINE F16 LoadE4M3(const std::byte* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i shifted =
      _mm256_slli_epi16(_mm256_cvtepi8_epi16(raw), 7);  // the sign also in the bit below it
  const __m256i half = _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<short>(0xbfff)));
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
}
// Halves are added until one lane is left: 8, 4, 2, 1. The order is the same in every implementation.
static VEC_INLINE float ReduceAdd(F16 a) {
  const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
static VEC_INLINE float ReduceMax(F16 a) {
  const __m256 s8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}
static VEC_INLINE void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
static VEC_INLINE void PrefetchL2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
