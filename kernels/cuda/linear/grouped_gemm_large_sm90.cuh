// Grouped GEMM for sm_90, tiles of 128 slots: the kernel for prompts.
//
// Where many slots share a matrix, the products are the bound. A CTA computes 128 features x 128 slots; activations and
// packed weights come through a ring of shared-memory stages (cp.async), a stage being one group of 64 k; each of eight
// warps multiplies two row tiles with 64 slots, so that a decoded weight fragment serves eight token tiles.
//
// The sums are those of the small tiles, bit for bit: the same mma.sync on the same operands in the same order, a chunk's
// sums from zero, the chunks added in order.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_SM90_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_SM90_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/fragments.cuh"
#include "kernels/cuda/linear/grouped_gemm.h"
#include "kernels/cuda/linear/grouped_gemm_sm90.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

template <WeightFormat kFormat>
struct LargeTile {
  static constexpr int kSlots = 128;
  static constexpr int kRowTiles = 8;
  static constexpr int kFeatures = kRowTiles * kRowTile;
  static constexpr int kStages = 4;
  static constexpr int kWarpRowTiles = 2, kWarpTokenTiles = 8;
  static constexpr bool kHasScales = kFormat == WeightFormat::kNvfp4;
  static constexpr int kGroupBytes = kHasScales ? 512 : 2048;  // of a row tile
  static constexpr int kChunkBytes = kChunkGroups * kGroupBytes + (kHasScales ? 512 : 0);
  static constexpr int kTokenBytes = kSlots * kGroupK * 2;
  static constexpr int kStageBytes = kTokenBytes + kRowTiles * kGroupBytes;
  // The scales of a chunk, for all row tiles; the next chunk's arrive while one is used.
  static constexpr int kScaleBytes = kHasScales ? kRowTiles * 512 : 0;
  static constexpr int kOutStride = kFeatures + 4;  // floats
  static constexpr int kPipelineBytes = kStages * kStageBytes + 2 * kScaleBytes;
  static constexpr int kOutBytes = kSlots * kOutStride * 4;
  static constexpr int kSharedBytes = kPipelineBytes > kOutBytes ? kPipelineBytes : kOutBytes;
  static_assert(kStages <= kChunkGroups, "the scales are held twice only");
};

// Copies a group's operands into a stage, 16 bytes at a time.
template <WeightFormat kFormat>
struct LargeTileLoader {
  using Tile = LargeTile<kFormat>;
  static constexpr int32_t kThreads = 32 * kGemmWarps;
  static constexpr int32_t kTokenCopies = Tile::kTokenBytes / 16 / kThreads;

  uint8_t* shared;
  const uint8_t* weights;  // of the CTA's first row tile
  size_t tile_bytes;
  int32_t tiles, groups;
  const uint4* tokens[kTokenCopies];  // this thread's pieces of group 0; null: no such slot
  const void* anything;               // a readable address, for copies of nothing

  __device__ LargeTileLoader(const GroupedGemmParams& p, const GemmGeometry& g, int2 slots, int32_t matrix,
                             int32_t first_tile, uint8_t* base)
      : shared(base), anything(p.x) {
    weights = p.weights.data + matrix * g.matrix_bytes + first_tile * g.tile_bytes;
    tile_bytes = g.tile_bytes;
    tiles = min(Tile::kRowTiles, g.row_tiles - first_tile);
    groups = g.groups;
#pragma unroll
    for (int32_t i = 0; i < kTokenCopies; ++i) {
      const int32_t piece = threadIdx.x + i * kThreads;
      const int32_t slot = slots.x + piece / 8;
      tokens[i] = nullptr;
      if (slot < slots.y) {
        const int64_t row = p.input_rows ? p.input_rows[slot] : slot;
        tokens[i] =
            reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.x) + row * p.weights.k) +
            piece % 8;
      }
    }
  }

  __device__ static uint8_t* Stage(uint8_t* base, int32_t group) {
    return base + group % Tile::kStages * Tile::kStageBytes;
  }
  __device__ static uint8_t* Scales(uint8_t* base, int32_t chunk) {
    return base + Tile::kStages * Tile::kStageBytes + chunk % 2 * Tile::kScaleBytes;
  }
  // Where the 16-byte piece `piece` (of 8) of a slot's row lies in a stage. Lanes of a quarter warp read two rows, of each
  // every second piece: the odd rows' pieces are swapped in pairs, so that they meet no bank twice.
  __device__ static int32_t TokenOffset(int32_t slot, int32_t piece) {
    return slot * 128 + (piece ^ (slot & 1)) * 16;
  }

  __device__ void Load(int32_t group) const {
    uint8_t* stage = Stage(shared, group);
#pragma unroll
    for (int32_t i = 0; i < kTokenCopies; ++i) {
      const int32_t piece = threadIdx.x + i * kThreads;
      ptx::CpAsync16(stage + TokenOffset(piece / 8, piece % 8), tokens[i] ? tokens[i] + group * 8 : anything,
                     tokens[i] ? 16 : 0);
    }
    const int32_t chunk = group / kChunkGroups;
    const uint8_t* source = weights + chunk * Tile::kChunkBytes;
    constexpr int32_t kTilePieces = Tile::kGroupBytes / 16;
    for (int32_t i = threadIdx.x; i < Tile::kRowTiles * kTilePieces; i += kThreads) {
      const int32_t tile = i / kTilePieces;
      ptx::CpAsync16(stage + Tile::kTokenBytes + i * 16,
                     tile < tiles ? source + tile * tile_bytes + group % kChunkGroups * Tile::kGroupBytes +
                                        i % kTilePieces * 16
                                  : anything,
                     tile < tiles ? 16 : 0);
    }
    if constexpr (Tile::kHasScales) {
      if (group % kChunkGroups == 0) {
        const int32_t chunk_groups = min(kChunkGroups, groups - group);
        for (int32_t i = threadIdx.x; i < Tile::kRowTiles * 32; i += kThreads) {
          const int32_t tile = i / 32;
          ptx::CpAsync16(
              Scales(shared, chunk) + i * 16,
              tile < tiles ? source + tile * tile_bytes + chunk_groups * 512 + i % 32 * 16 : anything,
              tile < tiles ? 16 : 0);
        }
      }
    }
  }
};

// The A fragments of row tile `tile` of a stage.
template <WeightFormat kFormat>
__device__ __forceinline__ GroupFragments LoadFragments(const uint8_t* stage, const uint8_t* scales,
                                                        int32_t tile, int32_t group_in_chunk, int32_t lane) {
  using Tile = LargeTile<kFormat>;
  const uint4* source =
      reinterpret_cast<const uint4*>(stage + Tile::kTokenBytes + tile * Tile::kGroupBytes) + lane;
  if constexpr (kFormat == WeightFormat::kNvfp4) {
    const uint32_t pair = reinterpret_cast<const uint16_t*>(scales + (tile * 32 + lane) * 16)[group_in_chunk];
    return DecodeNvfp4Group(source[0], DecodeScale<0>(pair), DecodeScale<1>(pair));
  } else {
    return ArrangeBf16Group({source[0], source[32], source[64], source[96]});
  }
}

template <WeightFormat kFormat, GemmEpilogue kEpilogue>
__global__ void __launch_bounds__(32 * kGemmWarps, 1)
    GroupedGemmLargeKernel(const __grid_constant__ GroupedGemmParams p,
                           const __grid_constant__ GemmGeometry g) {
  using Tile = LargeTile<kFormat>;
  using Loader = LargeTileLoader<kFormat>;
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  int32_t matrix = 0;
  int2 slots = make_int2(blockIdx.y * Tile::kSlots, p.num_slots);
  if (p.num_tiles != nullptr) {
    if (blockIdx.y >= *p.num_tiles) return;
    matrix = p.tile_expert[blockIdx.y];
    slots = p.tile_slot_range[blockIdx.y];
  }
  slots.y = min(slots.y, slots.x + Tile::kSlots);
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t first_tile = blockIdx.x * Tile::kRowTiles;
  const int32_t warp_tile = warp % 4 * Tile::kWarpRowTiles,
                warp_slot = warp / 4 * (8 * Tile::kWarpTokenTiles);

  const Loader loader(p, g, slots, matrix, first_tile, shared_bytes);
  for (int32_t group = 0; group < Tile::kStages - 1; ++group) {
    if (group < g.groups) loader.Load(group);
    ptx::CpAsyncCommit();
  }
  float totals[Tile::kWarpRowTiles][Tile::kWarpTokenTiles][4] = {};
  float sums[Tile::kWarpRowTiles][Tile::kWarpTokenTiles][4] = {};
  for (int32_t group = 0; group < g.groups; ++group) {
    ptx::CpAsyncWait<Tile::kStages - 2>();
    __syncthreads();  // the stage is there for all, and the one before is free
    if (group + Tile::kStages - 1 < g.groups) loader.Load(group + Tile::kStages - 1);
    ptx::CpAsyncCommit();

    const uint8_t* stage = Loader::Stage(shared_bytes, group);
    const uint8_t* scales = Loader::Scales(shared_bytes, group / kChunkGroups);
    GroupFragments weights[Tile::kWarpRowTiles];
#pragma unroll
    for (int32_t tile = 0; tile < Tile::kWarpRowTiles; ++tile) {
      weights[tile] = LoadFragments<kFormat>(stage, scales, warp_tile + tile, group % kChunkGroups, lane);
    }
#pragma unroll
    for (int32_t tokens = 0; tokens < Tile::kWarpTokenTiles; ++tokens) {
      const int32_t slot = warp_slot + tokens * 8 + lane / 4;
      const uint4 x0 = *reinterpret_cast<const uint4*>(stage + Loader::TokenOffset(slot, lane % 4 * 2));
      const uint4 x1 = *reinterpret_cast<const uint4*>(stage + Loader::TokenOffset(slot, lane % 4 * 2 + 1));
      const uint32_t b[4][2] = {{x0.x, x0.y}, {x0.z, x0.w}, {x1.x, x1.y}, {x1.z, x1.w}};
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) {
#pragma unroll
        for (int32_t tile = 0; tile < Tile::kWarpRowTiles; ++tile) {
          ptx::MmaM16N8K16(sums[tile][tokens], weights[tile].a[step], b[step]);
        }
      }
    }
    if (group % kChunkGroups == kChunkGroups - 1 || group == g.groups - 1) {
#pragma unroll
      for (int32_t i = 0; i < Tile::kWarpRowTiles * Tile::kWarpTokenTiles * 4; ++i) {
        float& sum = sums[i / (Tile::kWarpTokenTiles * 4)][i / 4 % Tile::kWarpTokenTiles][i % 4];
        totals[i / (Tile::kWarpTokenTiles * 4)][i / 4 % Tile::kWarpTokenTiles][i % 4] += sum;
        sum = 0.0f;
      }
    }
  }
  ptx::CpAsyncWait<0>();
  __syncthreads();

  // Through shared memory, [slot][feature], so that rows leave in one piece.
  float* out = reinterpret_cast<float*>(shared_bytes);
#pragma unroll
  for (int32_t tile = 0; tile < Tile::kWarpRowTiles; ++tile) {
#pragma unroll
    for (int32_t tokens = 0; tokens < Tile::kWarpTokenTiles; ++tokens) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t slot = warp_slot + tokens * 8 + lane % 4 * 2 + i % 2;
        out[slot * Tile::kOutStride + (warp_tile + tile) * kRowTile + lane / 4 + i / 2 * 8] =
            totals[tile][tokens][i];
      }
    }
  }
  __syncthreads();
  const float* scales = p.weights.sum_scales;
  if (scales != nullptr) scales += (int64_t{matrix} * g.row_tiles + first_tile) * 2;
  const int32_t num_slots = slots.y - slots.x;
  const int32_t tiles = min(Tile::kRowTiles, g.row_tiles - first_tile);
  constexpr int32_t kOutRows = kEpilogue == GemmEpilogue::kSwiglu ? 8 : kRowTile;
  for (int32_t i = threadIdx.x; i < tiles * kOutRows * num_slots; i += blockDim.x) {
    const int32_t row = i % (tiles * kOutRows), slot = i / (tiles * kOutRows);
    const int32_t tile = row / kOutRows, feature = row % kOutRows;
    const int32_t out_feature = first_tile * kOutRows + row;
    if (out_feature >= p.out_features) continue;
    const float* sum = out + slot * Tile::kOutStride + tile * kRowTile + feature;
    const float gate_scale = scales ? scales[tile * 2 + feature / 8] : 1.0f;
    const float up_scale = scales ? scales[tile * 2 + 1] : 1.0f;
    StoreResult<kEpilogue>(p, int64_t{slots.x + slot} * p.out_features + out_feature, sum[0] * gate_scale,
                           kEpilogue == GemmEpilogue::kSwiglu ? sum[8] * up_scale : 0.0f);
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_SM90_CUH_
