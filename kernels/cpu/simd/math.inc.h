// Functions over sixteen lanes, written once for all instruction sets. Included after a vec_*.inc.h.

// e^x. Relative error below 2^-22 (tests/unit/kernels/cpu/simd_math_test.cc measures it); exp(0) is exactly
// 1; results that would be subnormal, and exp(-infinity), are exactly 0; past the largest float +infinity;
// NaN stays NaN. Cody-Waite reduction x = n ln2 + r with |r| <= ln2/2, then the Taylor polynomial of degree
// 7: the first term left out is r^8/40320 < 6e-9.
static VEC_INLINE F16 Exp(F16 x) {
  constexpr float kLowest = -87.0f;              // exp(-87) > 2^-126
  constexpr float kHighest = 88.3762626647949f;  // n stays below 128
  const F16 round = Set(0x1.8p23f);
  // NaN lanes fall through Max as kLowest or NaN by implementation; the last replacement restores them.
  const F16 clamped = ReplaceAbove(ReplaceBelow(x, kLowest, x, kLowest), kHighest, x, kHighest);
  const F16 n = Sub(MulAdd(clamped, Set(1.44269504088896341f), round), round);
  F16 r = MulAdd(n, Set(-0.693359375f), clamped);  // ln2 rounded to 9 bits: n * it is exact
  r = MulAdd(n, Set(2.12194440054690583e-4f), r);  // minus the rest of ln2
  F16 p = Set(1.0f / 5040);
  p = MulAdd(p, r, Set(1.0f / 720));
  p = MulAdd(p, r, Set(1.0f / 120));
  p = MulAdd(p, r, Set(1.0f / 24));
  p = MulAdd(p, r, Set(1.0f / 6));
  p = MulAdd(p, r, Set(0.5f));
  p = MulAdd(p, r, Set(1.0f));
  p = MulAdd(p, r, Set(1.0f));
  const F16 result = ScaleByPowerOfTwo(p, n);
  return ReplaceAbove(ReplaceBelow(result, kLowest, x, 0.0f), kHighest, x, __builtin_inff());
}
