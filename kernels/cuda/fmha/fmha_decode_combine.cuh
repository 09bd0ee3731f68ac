// How the splits of a sequence become its result.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_COMBINE_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_COMBINE_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_items.cuh"
#include "kernels/cuda/fmha/fmha_numerics.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

// The splits of a (sequence, KV head).
struct FmhaParts {
  int32_t sequence, kv_head;
  int32_t first;  // part of the workspace
  int32_t count;
};

// Dimensions of a row that a warp combines at a time.
template <int kPerLane>
inline constexpr int32_t kCombineColumns = 32 * kPerLane;

// Combines splits, in their order, for kCombineColumns dimensions of a row: the unit-th such part of the rows. A lane has
// kPerLane dimensions, and the statistics of split `lane`. kAtOnce: splits whose parts are fetched together.
template <int kHeadDim, int kRows, int kPerLane, int kAtOnce>
__device__ __forceinline__ void CombineSplits(const FmhaDecodeArgs& args, const FmhaParts& parts,
                                              int32_t unit, int32_t lane) {
  constexpr int32_t kChunks = kHeadDim / kCombineColumns<kPerLane>;
  const int32_t count = parts.count, group = args.p.num_query_heads / args.p.num_kv_heads;
  const int64_t split_rows = int64_t{args.p.num_kv_heads} * kRows;
  const int32_t row = unit / kChunks, column = (unit % kChunks * 32 + lane) * kPerLane;
  const int64_t first = int64_t{parts.first} * split_rows + parts.kv_head * kRows + row;
  const float2 stats =
      lane < count ? __ldcg(&args.split_stats[first + lane * split_rows]) : make_float2(-INFINITY, 0.0f);
  float values[kAtOnce][kPerLane];
  const auto fetch = [&](int32_t base) {
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      if (base + i >= count) break;
      const float* part = args.split_out + (first + (base + i) * split_rows) * kHeadDim + column;
      if constexpr (kPerLane == 1) {
        values[i][0] = __ldcg(part);
      } else if constexpr (kPerLane == 2) {
        const float2 pair = __ldcg(reinterpret_cast<const float2*>(part));
        values[i][0] = pair.x;
        values[i][1] = pair.y;
      } else {
        const float4 quad = __ldcg(reinterpret_cast<const float4*>(part));
        values[i][0] = quad.x;
        values[i][1] = quad.y;
        values[i][2] = quad.z;
        values[i][3] = quad.w;
      }
    }
  };
  fetch(0);
  float maximum = stats.x;  // of this lane's split and those before
#pragma unroll
  for (int32_t distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_up_sync(~0u, maximum, distance);
    if (lane >= distance) maximum = fmaxf(maximum, other);
  }
  const float before = __shfl_up_sync(~0u, maximum, 1);
  const FmhaCombination combination(lane == 0 ? -INFINITY : before, stats.x);
  float sum = 0.0f;
  float out[kPerLane] = {};
#pragma unroll 1
  for (int32_t base = 0;;) {
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      if (base + i >= count) break;
      FmhaCombination step = combination;
      step.old_factor = __shfl_sync(~0u, combination.old_factor, base + i);
      step.new_factor = __shfl_sync(~0u, combination.new_factor, base + i);
      sum = step.Add(sum, __shfl_sync(~0u, stats.y, base + i));
#pragma unroll
      for (int32_t j = 0; j < kPerLane; ++j) out[j] = step.Add(out[j], values[i][j]);
    }
    base += kAtOnce;
    if (base >= count) break;
    fetch(base);
  }
  maximum = __shfl_sync(~0u, maximum, 31);
  const int32_t head = parts.kv_head * group + row % group;
  const float inverse = args.p.v_scale * FmhaInverseSum(args.p.sinks, head, maximum, sum);
  const int64_t token = FirstToken(args, parts.sequence) + row / group;
  __nv_bfloat16* target =
      static_cast<__nv_bfloat16*>(args.p.out) + (token * args.p.num_query_heads + head) * kHeadDim + column;
  if constexpr (kPerLane == 1) {
    *target = __float2bfloat16_rn(out[0] * inverse);
  } else {
#pragma unroll
    for (int32_t j = 0; j < kPerLane; j += 2) {
      *reinterpret_cast<uint32_t*>(target + j) = ptx::PackBf16(out[j] * inverse, out[j + 1] * inverse);
    }
  }
}

// Waits until `count` CTAs have come here, and what they wrote before is visible; kWarps whole warps of each, which use
// barrier 1. The CTAs must all be resident. `counter` is 0 again when all have left.
template <int kWarps>
__device__ __forceinline__ void MeetCtas(int32_t* counter, int32_t count, int32_t warp, int32_t lane) {
  ptx::NamedBarrierSync(1, 32 * kWarps);  // the release below covers every thread's part
  if (warp == 0 && lane == 0) {
    // Arrivals count to `count`, departures on to twice that, where the counter wraps.
    if (ptx::AtomIncAcqRelGpu(counter, 2 * count - 1) < count - 1) {
      while (ptx::LoadAcquireGpu(counter) < count) {
      }
    }
    ptx::RedIncGpu(counter, 2 * count - 1);
  }
  ptx::NamedBarrierSync(1, 32 * kWarps);
}

// Where there is a CTA for every item: those of a (sequence, KV head) meet when its parts are in the workspace, and each
// combines a share of the rows and dimensions.
template <int kHeadDim, int kRows, int kWarps>
__device__ __forceinline__ void CombineTogether(const FmhaDecodeArgs& args, const FmhaItem& item,
                                                int32_t warp, int32_t lane) {
  // Small units, so that all CTAs have one; large where a CTA has several anyway.
  constexpr int32_t kPerLane = kHeadDim <= 128 ? 1 : kHeadDim <= 256 ? 2 : 4;
  constexpr int32_t kAtOnce = kPerLane < 4 ? 32 : kHeadDim * kRows <= 8192 ? 16 : 32768 / (kHeadDim * kRows);
  const int32_t count = item.splits.count;
  MeetCtas<kWarps>(&args.arrivals[item.sequence * args.p.num_kv_heads + item.kv_head], count, warp, lane);
  const FmhaParts parts = {item.sequence, item.kv_head, item.part - item.split, count};
#pragma unroll 1
  for (int32_t unit = item.split * kWarps + warp;
       unit < args.group_rows * (kHeadDim / kCombineColumns<kPerLane>); unit += count * kWarps) {
    CombineSplits<kHeadDim, kRows, kPerLane, kAtOnce>(args, parts, unit, lane);
  }
}

// Where items are more than CTAs: all CTAs of the launch meet when they have no more items, and each combines a share of
// what there is. An item's end costs no wait so.
template <int kHeadDim, int kRows, int kWarps>
__device__ __forceinline__ void CombineAll(const FmhaDecodeArgs& args, const int2* sequences, int32_t warp,
                                           int32_t lane) {
  constexpr int32_t kPerLane = kHeadDim <= 64 ? 2 : 4,
                    kAtOnce = kHeadDim * kRows <= 8192 ? 16 : 32768 / (kHeadDim * kRows);
  const int32_t num_items = sequences[args.p.num_sequences].x, heads = args.p.num_kv_heads;
  if (num_items == args.p.num_sequences || num_items * heads <= static_cast<int32_t>(gridDim.x)) return;
  MeetCtas<kWarps>(args.finished_ctas, gridDim.x, warp, lane);
  const int32_t units = args.group_rows * (kHeadDim / kCombineColumns<kPerLane>);
#pragma unroll 1
  for (int32_t unit = blockIdx.x * kWarps + warp; unit < args.p.num_sequences * heads * units;
       unit += gridDim.x * kWarps) {
    const int32_t head = unit / units, sequence = head / heads;
    const int32_t first = sequences[sequence].x, count = sequences[sequence + 1].x - first;
    if (count == 1) continue;
    CombineSplits<kHeadDim, kRows, kPerLane, kAtOnce>(args, {sequence, head % heads, first, count},
                                                      unit % units, lane);
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_COMBINE_CUH_
