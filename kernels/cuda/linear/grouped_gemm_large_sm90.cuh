// Grouped GEMM for sm_90, tiles of 128 slots: the kernel for prompts.
//
// Where many slots share a matrix, the products are the bound: wgmma, 128 features x 128 slots a CTA, half of the features
// a warp group. Weights are the A operand: each warp decodes its own row tile into registers, from a ring of its own that
// cp.async fills. Activations are the B operand, a group of 64 k a stage of shared memory; since the order of k within a
// group is the packed weights', threads put them there by hand, one group ahead in registers.
//
//   iteration g: activations g to shared memory, fetch g + 1 | decode weights g | meet | multiply g, wait for g - 1
//
// The sums are those of the small tiles, bit for bit: the same products step by step (wgmma sums as mma.sync does), a
// chunk's sums from zero, the chunks added in order.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_SM90_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_SM90_CUH_

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/linear/fragments.cuh"
#include "kernels/cuda/linear/grouped_gemm.h"
#include "kernels/cuda/linear/grouped_gemm_sm90.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace tessera::cuda {

template <WeightFormat kFormat>
struct LargeTile {
  static constexpr int kSlots = 128;
  static constexpr int kRowTiles = 8;  // a warp each
  static constexpr int kFeatures = kRowTiles * kRowTile;
  static constexpr int kThreads = 32 * kRowTiles;
  static constexpr bool kHasScales = kFormat == WeightFormat::kNvfp4;
  static constexpr int kGroupBytes = kHasScales ? 512 : 2048;  // of a row tile
  static constexpr int kChunkBytes = kChunkGroups * kGroupBytes + (kHasScales ? 512 : 0);
  static constexpr int kWeightStages = 6;
  // One being multiplied, one that was and may still be, one being filled.
  static constexpr int kTokenStages = 3;
  static constexpr int kTokenBytes = kSlots * kGroupK * 2;
  static constexpr int kPipelineBytes = kTokenStages * kTokenBytes + kWeightStages * kRowTiles * kGroupBytes;
  static constexpr int kOutStride = kFeatures + 4;  // floats
  static constexpr int kOutBytes = kSlots * kOutStride * 4;
  static constexpr int kSharedBytes = (kPipelineBytes > kOutBytes ? kPipelineBytes : kOutBytes) + 128;
};

// A thread's share of the activations: of two token tiles of 8 slots, slot lane / 4 and, of each group, the 16 k from
// 16 (lane % 4).
struct LargeTileTokens {
  static constexpr int32_t kTiles = 2;
  const uint4* row[kTiles];  // null: no such slot
  uint4 values[kTiles][2];

  __device__ __forceinline__ LargeTileTokens(const GroupedGemmParams& p, int2 slots, int32_t warp,
                                             int32_t lane) {
#pragma unroll
    for (int32_t i = 0; i < kTiles; ++i) {
      const int32_t slot = slots.x + (warp * kTiles + i) * 8 + lane / 4;
      row[i] = nullptr;
      if (slot < slots.y) {
        const int64_t source = p.input_rows ? p.input_rows[slot] : slot;
        row[i] =
            reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.x) + source * p.weights.k) +
            lane % 4 * 2;
      }
    }
  }

  __device__ __forceinline__ void Fetch(int32_t group) {
#pragma unroll
    for (int32_t i = 0; i < kTiles; ++i) {
      values[i][0] = row[i] ? __ldg(row[i] + group * 8) : make_uint4(0, 0, 0, 0);
      values[i][1] = row[i] ? __ldg(row[i] + group * 8 + 1) : make_uint4(0, 0, 0, 0);
    }
  }

  // [token tile][core matrix of 8 k][slot] 16 bytes, the k of the mma steps in order: step s takes the four k from
  // 16 (lane % 4) + 4 s, two of them in each of its core matrices.
  __device__ __forceinline__ void Store(uint8_t* stage, int32_t warp, int32_t lane) const {
#pragma unroll
    for (int32_t i = 0; i < kTiles; ++i) {
      uint32_t* matrices = reinterpret_cast<uint32_t*>(stage + (warp * kTiles + i) * 1024) + lane;
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        const uint4 v = values[i][half];
        matrices[(half * 4 + 0) * 32] = v.x;
        matrices[(half * 4 + 1) * 32] = v.y;
        matrices[(half * 4 + 2) * 32] = v.z;
        matrices[(half * 4 + 3) * 32] = v.w;
      }
    }
  }
};

// A warp's row tile, streamed: each lane copies and reads its own 16-byte pieces, so that nobody has to wait for another.
template <WeightFormat kFormat>
struct LargeTileWeights {
  using Tile = LargeTile<kFormat>;
  const uint8_t* source;  // this lane's piece of the row tile; null: no such tile
  const void* anything;   // a readable address
  uint8_t* ring;          // this lane's piece of stage 0
  int32_t groups;
  uint4 scales, next_scales;

  __device__ __forceinline__ LargeTileWeights(const GroupedGemmParams& p, const GemmGeometry& g,
                                              int32_t matrix, int32_t tile, uint8_t* base, int32_t warp,
                                              int32_t lane)
      : source(tile < g.row_tiles ? p.weights.data + matrix * g.matrix_bytes + tile * g.tile_bytes + lane * 16
                                  : nullptr),
        anything(p.x),
        ring(base + warp * Tile::kGroupBytes + lane * 16),
        groups(g.groups) {
    if constexpr (Tile::kHasScales) next_scales = LoadScales(0);
  }

  __device__ __forceinline__ uint4 LoadScales(int32_t chunk) const {
    if (source == nullptr || chunk * kChunkGroups >= groups) return make_uint4(0, 0, 0, 0);
    const int32_t chunk_groups = min(kChunkGroups, groups - chunk * kChunkGroups);
    return LoadStream(
        reinterpret_cast<const uint4*>(source + int64_t{chunk} * Tile::kChunkBytes + chunk_groups * 512));
  }

  __device__ __forceinline__ uint8_t* Stage(int32_t group) const {
    return ring + group % Tile::kWeightStages * (Tile::kRowTiles * Tile::kGroupBytes);
  }

  // Starts the copy of a group, and always closes a group of copies.
  __device__ __forceinline__ void Load(int32_t group) const {
    if (group < groups) {
      const int64_t at =
          int64_t{group / kChunkGroups} * Tile::kChunkBytes + group % kChunkGroups * Tile::kGroupBytes;
#pragma unroll
      for (int32_t i = 0; i < Tile::kGroupBytes; i += 512) {
        ptx::CpAsync16(Stage(group) + i, source ? source + at + i : anything, source ? 16 : 0);
      }
    }
    ptx::CpAsyncCommit();
  }

  __device__ __forceinline__ void BeginChunk(int32_t chunk) {
    if constexpr (Tile::kHasScales) {
      scales = next_scales;
      next_scales = LoadScales(chunk + 1);
    }
  }

  // The group's copies must have arrived; it is number `index` of its chunk.
  __device__ __forceinline__ GroupFragments Decode(int32_t group, int32_t index) const {
    const uint4* pieces = reinterpret_cast<const uint4*>(Stage(group));
    if constexpr (Tile::kHasScales) {
      const uint32_t word = index / 2 == 0   ? scales.x
                            : index / 2 == 1 ? scales.y
                            : index / 2 == 2 ? scales.z
                                             : scales.w;
      const uint32_t pair = index % 2 ? word >> 16 : word;
      return DecodeNvfp4Group(pieces[0], DecodeScale<0>(pair), DecodeScale<1>(pair));
    } else {
      return ArrangeBf16Group({pieces[0], pieces[32], pieces[64], pieces[96]});
    }
  }
};

template <WeightFormat kFormat, GemmEpilogue kEpilogue>
__global__ void __launch_bounds__(LargeTile<kFormat>::kThreads, 1)
    GroupedGemmLargeKernel(const __grid_constant__ GroupedGemmParams p,
                           const __grid_constant__ GemmGeometry g) {
  using Tile = LargeTile<kFormat>;
  extern __shared__ uint8_t shared_base[];
  uint8_t* shared = shared_base + (128 - ptx::SharedAddress(shared_base) % 128) % 128;
  int32_t matrix = 0;
  int2 slots = make_int2(blockIdx.y * Tile::kSlots, p.num_slots);
  if (p.num_tiles != nullptr) {
    if (blockIdx.y >= *p.num_tiles) return;
    matrix = p.tile_expert[blockIdx.y];
    slots = p.tile_slot_range[blockIdx.y];
  }
  slots.y = min(slots.y, slots.x + Tile::kSlots);
  const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int32_t first_tile = blockIdx.x * Tile::kRowTiles;

  LargeTileTokens tokens(p, slots, warp, lane);
  LargeTileWeights<kFormat> weights(p, g, matrix, first_tile + warp,
                                    shared + Tile::kTokenStages * Tile::kTokenBytes, warp, lane);
  for (int32_t group = 0; group < Tile::kWeightStages - 1; ++group) weights.Load(group);
  tokens.Fetch(0);

  float totals[16][4] = {}, sums[16][4];
  GroupFragments fragments[2];  // of this group and of the one that may still be multiplied
  // Group `index` of the chunk that begins with group `chunk`.
  const auto multiply = [&](int32_t chunk, int32_t index, GroupFragments& a) {
    const int32_t group = chunk + index;
    uint8_t* stage = shared + group % Tile::kTokenStages * Tile::kTokenBytes;
    tokens.Store(stage, warp, lane);
    if (group + 1 < g.groups) tokens.Fetch(group + 1);
    weights.Load(group + Tile::kWeightStages - 1);
    ptx::CpAsyncWait<Tile::kWeightStages - 1>();
    a = weights.Decode(group, index);
    ptx::FenceProxyAsyncShared();
    __syncthreads();  // the stage is filled; all have waited for the group three before, which used it
    ptx::WgmmaFence();
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) {
      const uint64_t b = ptx::WgmmaDescriptor(ptx::SharedAddress(stage) + step * 256, 128, 1024);
      ptx::WgmmaM64N128K16(sums, a.a[step], b, step > 0 || index > 0);
    }
    ptx::WgmmaCommitGroup();
  };
  // kCount groups of a chunk. Unrolled, and waited for at the end: the compiler would wait at every branch between.
  const auto run = [&]<int kCount>(std::integral_constant<int, kCount>, int32_t chunk, int32_t index) {
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      multiply(chunk, index + i, fragments[i % 2]);
      if (i + 1 < kCount) ptx::WgmmaWaitGroup<1>();
    }
    ptx::WgmmaWaitGroup<0>();
  };
  for (int32_t chunk = 0; chunk < g.groups; chunk += kChunkGroups) {
    weights.BeginChunk(chunk / kChunkGroups);
    const int32_t count = min(kChunkGroups, g.groups - chunk);
    if (count == kChunkGroups) {
      run(std::integral_constant<int, kChunkGroups>(), chunk, 0);
    } else {
      int32_t index = 0;
      if (count & 4) run(std::integral_constant<int, 4>(), chunk, 0), index = 4;
      if (count & 2) run(std::integral_constant<int, 2>(), chunk, index), index += 2;
      if (count & 1) run(std::integral_constant<int, 1>(), chunk, index);
    }
#pragma unroll
    for (int32_t i = 0; i < 64; ++i) totals[i / 4][i % 4] += sums[i / 4][i % 4];
  }
  ptx::CpAsyncWait<0>();
  __syncthreads();

  // Through shared memory, [slot][feature], so that rows leave in one piece.
  float* out = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int32_t tile = 0; tile < 16; ++tile) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t slot = tile * 8 + lane % 4 * 2 + i % 2;
      out[slot * Tile::kOutStride + warp * kRowTile + lane / 4 + i / 2 * 8] = totals[tile][i];
    }
  }
  __syncthreads();
  const int64_t first_row = (int64_t{matrix} * g.row_tiles + first_tile) * kRowTile;
  const int32_t num_slots = slots.y - slots.x;
  const int32_t tiles = min(Tile::kRowTiles, g.row_tiles - first_tile);
  constexpr int32_t kOutRows = kEpilogue == GemmEpilogue::kSwiglu ? 8 : kRowTile;
  for (int32_t i = threadIdx.x; i < tiles * kOutRows * num_slots; i += blockDim.x) {
    const int32_t row = i % (tiles * kOutRows), slot = i / (tiles * kOutRows);
    const int32_t tile = row / kOutRows, feature = row % kOutRows;
    const int32_t out_feature = first_tile * kOutRows + row;
    if (out_feature >= p.out_features) continue;
    const float* sum = out + slot * Tile::kOutStride + tile * kRowTile + feature;
    StoreResult<kEpilogue>(p, first_row + tile * kRowTile + feature,
                           int64_t{slots.x + slot} * p.out_features + out_feature, sum[0],
                           kEpilogue == GemmEpilogue::kSwiglu ? sum[8] : 0.0f);
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_SM90_CUH_
