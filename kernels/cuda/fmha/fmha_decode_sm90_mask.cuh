// FMHA decode for sm_90: which keys a query row sees.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_MASK_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_MASK_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_sm90_traits.cuh"

namespace tessera::cuda {

// Masks the keys of the warp's 16 from `first_key` on that a query row must not see. `listed`: with key slots, which of them
// exist.
template <class Traits>
__device__ __forceinline__ void MaskScores(const FmhaDecodeArgs& args, const FmhaItem& item,
                                           const FmhaWarpPlace& place, uint32_t listed, int32_t first_key,
                                           float (&scores)[Traits::kRowTiles][4]) {
  if (args.p.key_slots != nullptr) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const bool exists = listed >> (place.lane / 4 + i / 2 * 8) & 1;
#pragma unroll
      for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile) {
        if (!exists) scores[tile][i] = -INFINITY;
      }
    }
    return;
  }
  const int32_t length = item.splits.end, window = args.p.sliding_window;
  // Keys that every query token sees need no mask.
  if (first_key + 16 <= length - args.p.q_len + 1 && (window <= 0 || first_key >= length - window)) return;
  const int32_t group = args.p.num_query_heads / args.p.num_kv_heads;
#pragma unroll
  for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile) {
#pragma unroll
    for (int32_t column = 0; column < 2; ++column) {
      const int32_t row = place.team * Traits::kTeamRows + tile * 8 + place.lane % 4 * 2 + column;
      const int32_t position = length - args.p.q_len + min(row / group, args.p.q_len - 1);
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t key = first_key + place.lane / 4 + i * 8;
        if (key > position || (window > 0 && key <= position - window))
          scores[tile][i * 2 + column] = -INFINITY;
      }
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_MASK_CUH_
