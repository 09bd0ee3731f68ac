// FMHA decode for sm_90: fragments of mma.m16n8k16 from shared memory, for two steps of 16 at a time. e4m3 becomes bf16,
// exactly.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_FRAGMENTS_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_FRAGMENTS_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_sm90_traits.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

// Four e4m3 values to two pairs of bf16.
__device__ __forceinline__ void E4m3ToBf16(uint32_t quad, uint32_t* low, uint32_t* high) {
  const float2 first = __half22float2(ptx::CvtF16x2E4m3x2(static_cast<uint16_t>(quad)));
  const float2 second = __half22float2(ptx::CvtF16x2E4m3x2(static_cast<uint16_t>(quad >> 16)));
  *low = ptx::PackBf16(first.x, first.y);
  *high = ptx::PackBf16(second.x, second.y);
}

// A fragments of K: 16 keys from row `first_key` of the box at `box`, its steps `step` and step + 1 of 16 dimensions.
// Of e4m3, a lane's word is four neighbouring dimensions, 4 (l % 4) .. + 3 of a step; they take the places of the
// dimensions 2 (l % 4) + {0, 1, 8, 9}, in the queries too.
template <class Traits>
__device__ __forceinline__ void KeyFragments(uint32_t box, int32_t first_key, int32_t step, int32_t lane,
                                             uint32_t (&a)[2][4]) {
  const int32_t row = first_key + lane % 16;
  if constexpr (Traits::kIsE4m3) {
    uint32_t r[4];
    ptx::LdmatrixX4(r, box + BoxOffset<Traits>(row, step + lane / 16));
#pragma unroll
    for (int32_t j = 0; j < 2; ++j) {
      E4m3ToBf16(r[2 * j], &a[j][0], &a[j][2]);
      E4m3ToBf16(r[2 * j + 1], &a[j][1], &a[j][3]);
    }
  } else {
#pragma unroll
    for (int32_t j = 0; j < 2; ++j) {
      ptx::LdmatrixX4(a[j], box + BoxOffset<Traits>(row, (step + j) * 2 + lane / 16));
    }
  }
}

// B fragments of Q^T: 8 query rows from row `first_row` of the box at `box`.
template <class Traits>
__device__ __forceinline__ void QueryFragments(const uint8_t* box, int32_t first_row, int32_t step,
                                               int32_t lane, uint32_t (&b0)[2], uint32_t (&b1)[2]) {
  if constexpr (Traits::kIsE4m3) {
    const int32_t row = first_row + lane / 4, chunk = step * 2 + lane % 4 / 2, half = lane % 2 * 8;
    const uint2 first = *reinterpret_cast<const uint2*>(box + Row128Offset(row, chunk) + half);
    const uint2 second = *reinterpret_cast<const uint2*>(box + Row128Offset(row, chunk + 2) + half);
    b0[0] = first.x;
    b0[1] = first.y;
    b1[0] = second.x;
    b1[1] = second.y;
  } else {
    uint32_t r[4];
    ptx::LdmatrixX4(r, ptx::SharedAddress(box) + Row128Offset(first_row + lane % 8, step * 2 + lane / 8));
    b0[0] = r[0];
    b0[1] = r[1];
    b1[0] = r[2];
    b1[1] = r[3];
  }
}

// Keeps the halves of a packed pair whose key is below `valid`.
__device__ __forceinline__ uint32_t KeepValid(uint32_t pair, int32_t key, int32_t valid) {
  return pair & ((key < valid ? 0x0000FFFFu : 0u) | (key + 1 < valid ? 0xFFFF0000u : 0u));
}

// A fragments of V^T: dimensions 16 quarter .. + 15 of the box at `box`, the keys of steps `step` and step + 1 of 16, of
// which the tile's first `valid` are not garbage; garbage must not meet a weight of 0. Rows lane / 4 and lane / 4 + 8 are
// those dimensions of bf16; of e4m3, 2 (lane / 4) and the next. A second step past `valid` is not to be used.
template <class Traits>
__device__ __forceinline__ void ValueFragments(uint32_t box, int32_t quarter, int32_t step, int32_t valid,
                                               int32_t lane, uint32_t (&a)[2][4]) {
  const bool both = (step + 1) * 16 < valid;
  if constexpr (Traits::kIsE4m3) {
    uint32_t r[4];
    ptx::LdmatrixX4Trans(r, box + BoxOffset<Traits>(step * 16 + (both ? lane : lane % 16), quarter));
#pragma unroll
    for (int32_t j = 0; j < 2; ++j) {
      E4m3ToBf16(__byte_perm(r[2 * j], 0, 0x3120), &a[j][0], &a[j][1]);
      E4m3ToBf16(__byte_perm(r[2 * j + 1], 0, 0x3120), &a[j][2], &a[j][3]);
    }
  } else {
#pragma unroll
    for (int32_t j = 0; j < 2; ++j) {
      const int32_t row = (step + (both ? j : 0)) * 16 + lane % 8 + lane / 16 * 8;
      ptx::LdmatrixX4Trans(a[j], box + BoxOffset<Traits>(row, quarter * 2 + lane / 8 % 2));
    }
  }
#pragma unroll
  for (int32_t j = 0; j < 2; ++j) {
    const int32_t left = valid - (step + j) * 16, key = lane % 4 * 2;
    if (left >= 16) continue;
    a[j][0] = KeepValid(a[j][0], key, left);
    a[j][1] = KeepValid(a[j][1], key, left);
    a[j][2] = KeepValid(a[j][2], key + 8, left);
    a[j][3] = KeepValid(a[j][3], key + 8, left);
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_FRAGMENTS_CUH_
