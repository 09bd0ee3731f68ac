// FMHA decode for sm_90: what the four warps of a team tell each other about a tile, through shared memory.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_EXCHANGE_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_EXCHANGE_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_sm90_traits.cuh"
#include "kernels/cuda/fmha/fmha_numerics.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

// Two tiles are under way at a time: `parity` says which. A barrier of the team lies between a Store and what reads it.
template <class Traits>
struct FmhaExchange {
  static constexpr int kRowTiles = Traits::kRowTiles, kTeamRows = Traits::kTeamRows;
  using Scores = float[kRowTiles][4];

  const FmhaDecodeArgs& args;
  const FmhaShared<Traits>& shared;
  FmhaWarpPlace place;

  // A pair of values that belong to the lane's two rows, one of which the lane keeps: that of row lane / 4 % 2. The other
  // goes to the lane that has the neighbouring key, whose value for the kept row comes back.
  struct Pair {
    float own, other;
  };
  __device__ __forceinline__ Pair Exchange(float first, float second) const {
    const bool odd = place.lane / 4 % 2;
    return {odd ? second : first, __shfl_xor_sync(~0u, odd ? first : second, 4)};
  }

  __device__ __forceinline__ float* Maxima(int32_t parity) const {
    return shared.maxima + (place.team * 2 + parity) * (Traits::kTeamWarps * kTeamRows);
  }

  // The largest score of each row among the warp's keys.
  __device__ __forceinline__ void StoreMaxima(int32_t parity, const Scores& scores) const {
    float* maxima = Maxima(parity) + place.quarter * kTeamRows;
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      const Pair pair =
          Exchange(fmaxf(scores[tile][0], scores[tile][2]), fmaxf(scores[tile][1], scores[tile][3]));
      float maximum = fmaxf(pair.own, pair.other);
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 8));
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 16));
      if (place.lane < 8) maxima[tile * 8 + place.lane % 4 * 2 + place.lane / 4] = maximum;
    }
  }

  // Lets the rows' maxima follow the tile's; leaves the factors of their sums and outputs. A row moves for its own scores
  // alone: its result must not depend on the rows beside it.
  __device__ __forceinline__ void RaiseMaxima(int32_t parity, float (&maximum)[kRowTiles][2],
                                              float (&rescale)[kRowTiles][2]) const {
    const float* maxima = Maxima(parity) + place.lane % 4 * 2;
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      float2 largest = *reinterpret_cast<const float2*>(maxima + tile * 8);
#pragma unroll
      for (int32_t warp = 1; warp < Traits::kTeamWarps; ++warp) {
        const float2 other = *reinterpret_cast<const float2*>(maxima + warp * kTeamRows + tile * 8);
        largest.x = fmaxf(largest.x, other.x);
        largest.y = fmaxf(largest.y, other.y);
      }
      rescale[tile][0] = FmhaRaiseMaximum(__fmul_rn(largest.x, args.scale_log2), &maximum[tile][0]);
      rescale[tile][1] = FmhaRaiseMaximum(__fmul_rn(largest.y, args.scale_log2), &maximum[tile][1]);
    }
  }

  __device__ __forceinline__ uint8_t* Weights(int32_t parity) const {
    return shared.weights + (place.team * 2 + parity) * (kTeamRows * 128);
  }
  __device__ __forceinline__ float* Sums(int32_t parity) const {
    return shared.sums + (place.team * 2 + parity) * (Traits::kTeamWarps * kRowTiles * 32) + place.lane;
  }

  // Weights of the warp's 16 keys, and their sums by residue: lane l stores those of residue l / 8 in row
  // 2 (l % 4) + l / 4 % 2.
  __device__ __forceinline__ void StoreWeights(int32_t parity, const float (&maximum)[kRowTiles][2],
                                               const Scores& scores) const {
    uint8_t* weights = Weights(parity);
    float* sums = Sums(parity) + place.quarter * kRowTiles * 32;
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      float p[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        p[i] = FmhaWeight(scores[tile][i], args.scale_log2, FmhaBase(maximum[tile][i % 2]));
      }
      const Pair low = Exchange(p[0], p[1]), high = Exchange(p[2], p[3]);
      sums[tile * 32] = FmhaStepSum(low.own, low.other, high.own, high.other);
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        const uint32_t pair = ptx::MovmatrixTrans(ptx::PackBf16(p[2 * half], p[2 * half + 1]));
        uint8_t* chunk = weights + Row128Offset(tile * 8 + place.lane / 4, place.quarter * 2 + half);
        reinterpret_cast<uint32_t*>(chunk)[place.lane % 4] = pair;
      }
    }
  }

  // B fragments of P^T: the weights of the keys 16 step .. + 31.
  __device__ __forceinline__ void LoadWeights(int32_t parity, int32_t step,
                                              uint32_t (&weights)[2][kRowTiles][2]) const {
    const uint32_t stored = ptx::SharedAddress(Weights(parity));
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      uint32_t r[4];
      ptx::LdmatrixX4(r, stored + Row128Offset(tile * 8 + place.lane % 8, step * 2 + place.lane / 8));
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) weights[i / 2][tile][i % 2] = r[i];
    }
  }
};

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_EXCHANGE_CUH_
