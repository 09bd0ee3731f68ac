// FMHA decode for sm_90: how a consumer warp writes its quarter of an item's result.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_WRITE_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_WRITE_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_sm90_rows.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

// The result of an item that is all of its sequence; `total`: the sums of the rows.
template <class Traits>
__device__ __forceinline__ void WriteRows(const FmhaDecodeArgs& args, const FmhaItem& item,
                                          const FmhaWarpPlace& place, const FmhaRows<Traits>& rows,
                                          const float (&total)[Traits::kRowTiles][2]) {
  const int32_t group = args.p.num_query_heads / args.p.num_kv_heads;
  __nv_bfloat16* first =
      static_cast<__nv_bfloat16*>(args.p.out) +
      (FirstToken(args, item.sequence) * args.p.num_query_heads + item.kv_head * group) * Traits::kValueDim +
      place.quarter * 16;
#pragma unroll
  for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile) {
    const int32_t first_row = place.team * Traits::kTeamRows + tile * 8;
    float inverse[2];
#pragma unroll
    for (int32_t column = 0; column < 2; ++column) {
      const int32_t row = first_row + place.lane % 4 * 2 + column;
      inverse[column] = args.p.v_scale * FmhaInverseSum(args.p.sinks, item.kv_head * group + row % group,
                                                        rows.maximum[tile][column], total[tile][column]);
    }
    const auto store = [&](int32_t row, int32_t dim, uint32_t pair) {
      if (row >= args.group_rows) return;
      const int64_t head = row / group * args.p.num_query_heads + row % group;
      *reinterpret_cast<uint32_t*>(first + head * Traits::kValueDim + dim) = pair;
    };
#pragma unroll
    for (int32_t box = 0; box < Traits::kValueBoxes; ++box) {
      const float(&out)[4] = rows.out[box][tile];
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        if constexpr (Traits::kIsE4m3) {
          store(first_row + place.lane % 4 * 2 + i, box * 64 + place.lane / 4 * 2,
                ptx::PackBf16(out[i] * inverse[i], out[i + 2] * inverse[i]));
        } else {
          store(first_row + place.lane / 4, box * 64 + i * 8 + place.lane % 4 * 2,
                ptx::MovmatrixTrans(ptx::PackBf16(out[2 * i] * inverse[0], out[2 * i + 1] * inverse[1])));
        }
      }
    }
  }
}

// The result of one of several splits, to the workspace.
template <class Traits>
__device__ __forceinline__ void WritePart(const FmhaDecodeArgs& args, const FmhaItem& item,
                                          const FmhaWarpPlace& place, const FmhaRows<Traits>& rows,
                                          const float (&total)[Traits::kRowTiles][2]) {
  const int64_t first = (int64_t{item.part} * args.p.num_kv_heads + item.kv_head) * Traits::kRows;
#pragma unroll
  for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile) {
#pragma unroll
    for (int32_t column = 0; column < 2; ++column) {
      const int32_t row = place.team * Traits::kTeamRows + tile * 8 + place.lane % 4 * 2 + column;
      if (row >= args.group_rows) continue;
      if (place.quarter == 0 && place.lane < 4) {
        args.split_stats[first + row] = make_float2(rows.maximum[tile][column], total[tile][column]);
      }
      float* target = args.split_out + (first + row) * Traits::kValueDim + place.quarter * 16;
#pragma unroll
      for (int32_t box = 0; box < Traits::kValueBoxes; ++box) {
        const float low = rows.out[box][tile][column], high = rows.out[box][tile][column + 2];
        if constexpr (Traits::kIsE4m3) {
          *reinterpret_cast<float2*>(target + box * 64 + place.lane / 4 * 2) = make_float2(low, high);
        } else {
          target[box * 64 + place.lane / 4] = low;
          target[box * 64 + place.lane / 4 + 8] = high;
        }
      }
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_WRITE_CUH_
