// Grouped GEMM for sm_90, weights as the A operand: the kernel.
//
// A CTA computes kRowTile * tiles_per_cta features for up to 8 kTokenTiles slots. Its units of work are (chunk of k, row
// tile); a warp takes every eighth and streams the unit's weights straight into registers (each is used by this warp
// alone, so shared memory would only cost a trip), the next unit's while it multiplies this one's. The sums of a chunk
// start at zero, and the chunks of a feature are added in order: through shared memory where several warps share a row
// tile, which few slots need to keep enough loads in flight, else in registers. Both add the same numbers in the same
// order.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_SM90_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_SM90_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/fragments.cuh"
#include "kernels/cuda/linear/grouped_gemm.h"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

inline constexpr int32_t kGemmWarps = 8;

struct GemmGeometry {
  int32_t groups, chunks;  // of k
  int32_t tiles_per_cta;   // row tiles; kGemmWarps where a warp owns a tile
  int32_t row_tiles;       // of a matrix
  size_t tile_bytes, matrix_bytes;
};

// The activations of a lane: slot lane / 4 of each token tile, its 16 k of every group.
template <int kTokenTiles>
struct TokenRows {
  const uint4* row[kTokenTiles];  // null: no such slot

  __device__ __forceinline__ TokenRows(const GroupedGemmParams& p, int2 slots, int32_t lane) {
#pragma unroll
    for (int32_t tile = 0; tile < kTokenTiles; ++tile) {
      const int32_t slot = slots.x + tile * 8 + lane / 4;
      row[tile] = nullptr;
      if (slot < slots.y) {
        const int64_t source = p.input_rows ? p.input_rows[slot] : slot;
        row[tile] =
            reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.x) + source * p.weights.k) +
            lane % 4 * 2;
      }
    }
  }
};

template <WeightFormat kFormat, int kTokenTiles, int kGroup>
__device__ __forceinline__ void MultiplyGroup(const Chunk<kFormat>& chunk,
                                              const TokenRows<kTokenTiles>& tokens, int32_t first_group,
                                              float (&sums)[kTokenTiles][4]) {
  const GroupFragments weights = chunk.template Decode<kGroup>();
#pragma unroll
  for (int32_t tile = 0; tile < kTokenTiles; ++tile) {
    uint4 x0 = make_uint4(0, 0, 0, 0), x1 = x0;
    if (tokens.row[tile] != nullptr) {
      x0 = __ldg(tokens.row[tile] + (first_group + kGroup) * 8);
      x1 = __ldg(tokens.row[tile] + (first_group + kGroup) * 8 + 1);
    }
    const uint32_t b[4][2] = {{x0.x, x0.y}, {x0.z, x0.w}, {x1.x, x1.y}, {x1.z, x1.w}};
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) ptx::MmaM16N8K16(sums[tile], weights.a[step], b[step]);
  }
}

// One unit: the chunk's groups in order.
template <WeightFormat kFormat, int kTokenTiles>
__device__ __forceinline__ void MultiplyChunk(const Chunk<kFormat>& chunk, int32_t groups,
                                              int32_t first_group, const TokenRows<kTokenTiles>& tokens,
                                              float (&sums)[kTokenTiles][4]) {
#pragma unroll
  for (int32_t tile = 0; tile < kTokenTiles; ++tile) {
    for (float& sum : sums[tile]) sum = 0.0f;
  }
  [&]<int... kGroups>(std::integer_sequence<int, kGroups...>) {
    ((kGroups < groups ? MultiplyGroup<kFormat, kTokenTiles, kGroups>(chunk, tokens, first_group, sums)
                       : void()),
     ...);
  }
  (std::make_integer_sequence<int, kChunkGroups>());
}

// Partial sums of a unit, [feature][slot], padded so that a fragment's writes spread over the banks.
template <int kTokenTiles>
struct PartialSums {
  static constexpr int32_t kStride = 8 * kTokenTiles + 4;
  static constexpr int32_t kFloats = kRowTile * kStride;

  __device__ static void Store(float* unit, int32_t lane, const float (&sums)[kTokenTiles][4]) {
#pragma unroll
    for (int32_t tile = 0; tile < kTokenTiles; ++tile) {
      const int32_t column = tile * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(unit + lane / 4 * kStride + column) =
          make_float2(sums[tile][0], sums[tile][1]);
      *reinterpret_cast<float2*>(unit + (lane / 4 + 8) * kStride + column) =
          make_float2(sums[tile][2], sums[tile][3]);
    }
  }

  // Adds a feature's `parts` (units `stride` apart) in order.
  __device__ static float Sum(const float* units, int32_t parts, int32_t stride, int32_t feature,
                              int32_t slot) {
    float sum = 0.0f;
    for (int32_t i = 0; i < parts; ++i) sum += units[i * stride * kFloats + feature * kStride + slot];
    return sum;
  }
};

// What is done to the sums of feature `row` of all packed matrices.
struct RowScale {
  float scale = 1.0f, bias = 0.0f;
  bool has_bias;

  __device__ __forceinline__ RowScale(const PackedWeights& w, int64_t row) : has_bias(w.bias != nullptr) {
    if (w.sum_scales != nullptr) scale = w.sum_scales[row / 8];
    if (has_bias) bias = w.bias[row];
  }

  __device__ __forceinline__ float Apply(float sum) const {
    sum = __fmul_rn(sum, scale);
    return has_bias ? __fadd_rn(sum, bias) : sum;
  }
};

// NaN stays.
__device__ __forceinline__ float ApplyGlu(const Glu& glu, float gate, float up) {
  gate = gate > glu.limit ? glu.limit : gate;
  up = up > glu.limit ? glu.limit : up < -glu.limit ? -glu.limit : up;
  return gate / (1.0f + __expf(-glu.sigmoid_scale * gate)) * (up + glu.up_offset);
}

// Writes one scaled sum.
template <GemmEpilogue kEpilogue>
__device__ __forceinline__ void StoreSum(const GroupedGemmParams& p, int64_t at, float sum) {
  static_assert(kEpilogue != GemmEpilogue::kSwiglu);
  if constexpr (kEpilogue == GemmEpilogue::kAdd) {
    static_cast<float*>(p.out)[at] += sum;
  } else {
    static_cast<float*>(p.out)[at] = sum;
  }
}

template <WeightFormat kFormat, int kTokenTiles, GemmEpilogue kEpilogue, bool kWarpOwnsTile>
__global__ void __launch_bounds__(32 * kGemmWarps, 1)
    GroupedGemmKernel(const __grid_constant__ GroupedGemmParams p, const __grid_constant__ GemmGeometry g) {
  extern __shared__ float partial_sums[];
  using Partial = PartialSums<kTokenTiles>;
  GridDependencyWait();
  GridDependencyLaunch();
  int32_t matrix = 0;
  int2 slots = make_int2(blockIdx.y * 8 * kTokenTiles, p.num_slots);
  if (p.num_tiles != nullptr) {
    if (blockIdx.y >= *p.num_tiles) return;
    matrix = p.tile_expert[blockIdx.y];
    slots = p.tile_slot_range[blockIdx.y];
  }
  slots.y = min(slots.y, slots.x + 8 * kTokenTiles);
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t first_tile = blockIdx.x * g.tiles_per_cta;
  const int32_t tiles = min(g.tiles_per_cta, g.row_tiles - first_tile);
  const uint8_t* weights = p.weights.data + matrix * g.matrix_bytes + first_tile * g.tile_bytes;
  constexpr size_t kChunkBytes =
      kFormat == WeightFormat::kNvfp4 ? (kChunkGroups + 1) * 512 : kChunkGroups * 2048;

  const TokenRows<kTokenTiles> tokens(p, slots, lane);
  // Unit u is chunk u / tiles of tile u % tiles: warps work on the same activations at the same time. A warp that owns
  // a tile takes its chunks in order.
  const int32_t units = tiles * g.chunks;
  const int32_t step = kWarpOwnsTile ? tiles : kGemmWarps;
  const auto load = [&](int32_t unit) {
    const int32_t tile = unit % tiles, chunk = unit / tiles;
    Chunk<kFormat> loaded;
    loaded.Load(weights + tile * g.tile_bytes + chunk * kChunkBytes,
                min(kChunkGroups, g.groups - chunk * kChunkGroups), lane);
    return loaded;
  };
  float totals[kWarpOwnsTile ? kTokenTiles : 1][4] = {};
  const bool works = !kWarpOwnsTile || warp < tiles;
  if (works && warp < units) {
    // Loading the next unit ahead was tried: its registers cost a third of the CTAs, and a fifth of the speed.
    for (int32_t unit = warp; unit < units; unit += step) {
      const Chunk<kFormat> current = load(unit);
      const int32_t first_group = unit / tiles * kChunkGroups;
      float sums[kTokenTiles][4];
      MultiplyChunk<kFormat>(current, min(kChunkGroups, g.groups - first_group), first_group, tokens, sums);
      if constexpr (kWarpOwnsTile) {
#pragma unroll
        for (int32_t tile = 0; tile < kTokenTiles; ++tile) {
          for (int32_t i = 0; i < 4; ++i) totals[tile][i] += sums[tile][i];
        }
      } else {
        Partial::Store(partial_sums + unit * Partial::kFloats, lane, sums);
      }
    }
    if constexpr (kWarpOwnsTile) Partial::Store(partial_sums + warp * Partial::kFloats, lane, totals);
  }
  const int32_t parts = kWarpOwnsTile ? 1 : g.chunks;
  __syncthreads();

  const int64_t first_row = (int64_t{matrix} * g.row_tiles + first_tile) * kRowTile;
  const int32_t num_slots = slots.y - slots.x;
  constexpr int32_t kOutRows = kEpilogue == GemmEpilogue::kSwiglu ? 8 : kRowTile;
  for (int32_t i = threadIdx.x; i < tiles * kOutRows * num_slots; i += blockDim.x) {
    const int32_t row = i % (tiles * kOutRows), slot = i / (tiles * kOutRows);
    const int32_t tile = row / kOutRows, feature = row % kOutRows;
    const int32_t out_feature = first_tile * kOutRows + row;
    if (out_feature >= p.out_features) continue;
    const int64_t at = int64_t{slots.x + slot} * p.out_features + out_feature;
    const float* sums = partial_sums + tile * Partial::kFloats;
    const int64_t row_of_all = first_row + tile * kRowTile + feature;
    const float sum = RowScale(p.weights, row_of_all).Apply(Partial::Sum(sums, parts, tiles, feature, slot));
    if constexpr (kEpilogue == GemmEpilogue::kSwiglu) {
      const float up =
          RowScale(p.weights, row_of_all + 8).Apply(Partial::Sum(sums, parts, tiles, feature + 8, slot));
      static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16(ApplyGlu(p.glu, sum, up));
    } else {
      StoreSum<kEpilogue>(p, at, sum);
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_SM90_CUH_
