// The one summation order of attention: a row's result is the same, bit for bit, from every kernel that keeps to it.
//
// For each query row, keys are taken in tiles of 64 at multiples of 64:
// 1. Scores sum over steps of 16 dimensions in ascending order, one chain from zero. What is masked is -inf.
// 2. The row's maximum follows the tile's where that exceeds it by more than kFmhaMaximumSlack (FmhaRaiseMaximum).
// 3. A weight is FmhaWeight, rounded to bf16 for the product with the values.
// 4. The sum of the weights, not rounded, is kept in four residues q = key % 8 / 2 (FmhaAddToSum).
// 5. O = O * rescale, then the tile's four steps of 16 keys in ascending order.
// 6. At a multiple of the split size (fmha_decode_split.h) the state is closed (FmhaCloseSum), combined with the splits
//    before (FmhaCombination), and begins anew: maximum -inf, sums and O zero.
// 7. The result is O times FmhaInverseSum, in bf16.
// A tile that a row does not see changes nothing, so a kernel may walk more tiles than a row has.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_NUMERICS_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_NUMERICS_CUH_

#include <cstdint>

#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

// The maximum may lag behind by this much (log2 domain) before the output is rescaled: weights up to 2^8 lose nothing in
// bf16 or float.
inline constexpr float kFmhaMaximumSlack = 8.0f;

// What weights are relative to (log2 domain) while the row's maximum is `maximum`.
__device__ __forceinline__ float FmhaBase(float maximum) { return maximum == -INFINITY ? 0.0f : maximum; }

// Lets a row's maximum follow its largest score of a tile (times the scale, log2 domain); returns the factor of the sums
// and of O, 1 where it stays.
__device__ __forceinline__ float FmhaRaiseMaximum(float tile_maximum, float* maximum) {
  const float old = *maximum;
  if (!(tile_maximum > old + kFmhaMaximumSlack)) return 1.0f;
  *maximum = tile_maximum;
  return ptx::Exp2(old - tile_maximum);
}

__device__ __forceinline__ float FmhaWeight(float score, float scale_log2, float base) {
  return ptx::Exp2(__fmaf_rn(score, scale_log2, -base));
}

// The weights of one residue in 16 keys: keys 2q, 2q + 1, 2q + 8, 2q + 9.
__device__ __forceinline__ float FmhaStepSum(float p0, float p1, float p8, float p9) {
  return __fadd_rn(__fadd_rn(p0, p1), __fadd_rn(p8, p9));
}

// A residue's running sum and the FmhaStepSums of a tile.
__device__ __forceinline__ float FmhaAddToSum(float sum, float rescale, float a0, float a1, float a2,
                                              float a3) {
  return __fmaf_rn(sum, rescale, __fadd_rn(__fadd_rn(a0, a1), __fadd_rn(a2, a3)));
}

__device__ __forceinline__ float FmhaCloseSum(float sum0, float sum1, float sum2, float sum3) {
  return __fadd_rn(__fadd_rn(sum0, sum1), __fadd_rn(sum2, sum3));
}

// Factors that combine the splits so far, `before`, with the next one: of the old sums and of the split's.
struct FmhaCombination {
  float old_factor, new_factor;

  __device__ __forceinline__ FmhaCombination(float before, float split_maximum) {
    const float base = FmhaBase(fmaxf(before, split_maximum));
    old_factor = ptx::Exp2(before - base);
    new_factor = ptx::Exp2(split_maximum - base);
  }
  // Of weights' sums and of outputs alike.
  __device__ __forceinline__ float Add(float total, float part) const {
    return __fmaf_rn(part, new_factor, __fmul_rn(total, old_factor));
  }
};

// What a row's output is multiplied with at last: one over the sum of its weights, which are relative to 2^maximum, and of
// the sink's. `sinks`: logits by query head, or null.
__device__ __forceinline__ float FmhaInverseSum(const float* sinks, int32_t head, float maximum, float sum) {
  if (sinks != nullptr) {
    const float sink = sinks[head] * 1.44269504f;
    const float base = fmaxf(maximum, sink);
    const float rescale = ptx::Exp2(maximum - base);
    sum = __fmaf_rn(sum, rescale, ptx::Exp2(sink - base));
    sum = sum / rescale;  // folded into the division below; rescale is 0 only where every weight vanishes
  }
  return 1.0f / sum;
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_NUMERICS_CUH_
