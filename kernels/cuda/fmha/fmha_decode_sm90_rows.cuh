// FMHA decode for sm_90: what a consumer warp keeps of its item's query rows, the running softmax and the output.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_ROWS_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_ROWS_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_sm90_traits.cuh"
#include "kernels/cuda/fmha/fmha_numerics.cuh"

namespace tessera::cuda {

// In fragments of S^T, P^T and O^T a lane holds query rows 8 tile + 2 (lane % 4) + {0, 1} of its team's, and keys or
// dimensions lane / 4 and lane / 4 + 8 (of 16).
template <class Traits>
struct FmhaRows {
  static constexpr int kRowTiles = Traits::kRowTiles;

  float out[Traits::kValueBoxes][kRowTiles]
           [4];  // O^T of the split under way: dimensions 64 box + 16 quarter + ..
  float maximum[kRowTiles][2];
  float sum[kRowTiles];  // of residue lane / 8 in row 8 tile + 2 (lane % 4) + lane / 4 % 2
  // The splits of a whole sequence before the one under way, combined.
  float folded[Traits::kFolds ? Traits::kValueBoxes : 1][Traits::kFolds ? kRowTiles : 1][4];
  float folded_maximum[kRowTiles][2], folded_sum[kRowTiles][2];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int32_t box = 0; box < Traits::kValueBoxes; ++box) {
        for (float& value : out[box][tile]) value = 0.0f;
        if constexpr (Traits::kFolds) {
          for (float& value : folded[box][tile]) value = 0.0f;
        }
      }
      maximum[tile][0] = maximum[tile][1] = -INFINITY;
      sum[tile] = 0.0f;
      folded_maximum[tile][0] = folded_maximum[tile][1] = -INFINITY;
      folded_sum[tile][0] = folded_sum[tile][1] = 0.0f;
    }
  }

  // The sums of the lane's two rows, over all residues.
  __device__ __forceinline__ void TotalSums(int32_t lane, float (&total)[kRowTiles][2]) const {
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      // FmhaCloseSum, the residues in lanes that differ by 8 and 16.
      float whole = sum[tile];
      whole = __fadd_rn(whole, __shfl_xor_sync(~0u, whole, 8));
      whole = __fadd_rn(whole, __shfl_xor_sync(~0u, whole, 16));
      const float other = __shfl_xor_sync(~0u, whole, 4);
      total[tile][0] = lane / 4 % 2 ? other : whole;
      total[tile][1] = lane / 4 % 2 ? whole : other;
    }
  }

  // The maxima of the split that ends; the next one begins.
  __device__ __forceinline__ void TakeMaxima(float (&closed)[kRowTiles][2]) {
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int32_t column = 0; column < 2; ++column) {
        closed[tile][column] = maximum[tile][column];
        maximum[tile][column] = -INFINITY;
      }
    }
  }

  // Adds the split that has ended, whose maxima are `closed`, to those before, as CombineSplits would.
  __device__ __forceinline__ void Fold(int32_t lane, const float (&closed)[kRowTiles][2]) {
    if constexpr (Traits::kFolds) {
      float sums[kRowTiles][2];
      TotalSums(lane, sums);
#pragma unroll
      for (int32_t tile = 0; tile < kRowTiles; ++tile) {
        const FmhaCombination with[2] = {{folded_maximum[tile][0], closed[tile][0]},
                                         {folded_maximum[tile][1], closed[tile][1]}};
#pragma unroll
        for (int32_t column = 0; column < 2; ++column) {
          folded_maximum[tile][column] = fmaxf(folded_maximum[tile][column], closed[tile][column]);
          folded_sum[tile][column] = with[column].Add(folded_sum[tile][column], sums[tile][column]);
        }
#pragma unroll
        for (int32_t box = 0; box < Traits::kValueBoxes; ++box) {
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            folded[box][tile][i] = with[i % 2].Add(folded[box][tile][i], out[box][tile][i]);
            out[box][tile][i] = 0.0f;
          }
        }
        sum[tile] = 0.0f;
      }
    }
  }

  // Makes the folded splits the output, and their sums `sums`.
  __device__ __forceinline__ void TakeFolded(float (&sums)[kRowTiles][2]) {
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int32_t column = 0; column < 2; ++column) {
        maximum[tile][column] = folded_maximum[tile][column];
        sums[tile][column] = folded_sum[tile][column];
      }
#pragma unroll
      for (int32_t box = 0; box < Traits::kValueBoxes; ++box) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) out[box][tile][i] = folded[box][tile][i];
      }
    }
  }
};

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_ROWS_CUH_
