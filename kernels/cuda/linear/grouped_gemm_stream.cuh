// Grouped GEMM for few slots: the kernel for decoding, for both architectures.
//
// What counts is that memory never waits. CTAs stay, and take items (slot tile, tiles_per_cta row tiles) in turn. An item's
// units of work are (chunk of k, row tile); a warp takes every eighth. Each warp has a ring of its own that bulk copies fill
// with the pieces of its next units, of the next items too, and of the first ones before the kernel before this one has
// ended, so that nobody but this warp is ever waited for; the products are mma.sync's. The sums of a chunk start at zero, and
// the chunks of a feature are added in order, through shared memory, when an item's units are done: one meeting an item, its
// two buffers of sums taking turns.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_STREAM_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_STREAM_CUH_

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/fragments.cuh"
#include "kernels/cuda/linear/grouped_gemm.h"
#include "kernels/cuda/linear/grouped_gemm_sm90.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace tessera::cuda {

template <WeightFormat kWeights, int kTiles>
struct StreamGemm {
  static constexpr WeightFormat kFormat = kWeights;
  static constexpr bool kHasScales = kFormat == WeightFormat::kNvfp4;
  static constexpr int kTokenTiles = kTiles;
  static constexpr int kCtasPerSm = 2;
  // A piece is what is copied at once: a chunk, or two groups of BF16.
  static constexpr int kPieceGroups = kHasScales ? kChunkGroups : 2;
  static constexpr int kGroupBytes = kHasScales ? 512 : 2048;
  static constexpr int kScaleBytes = kHasScales ? 512 : 0;
  static constexpr int kPieceBytes = kPieceGroups * kGroupBytes + kScaleBytes;
  static constexpr int kChunkBytes = kChunkGroups * kGroupBytes + kScaleBytes;
  static constexpr int kStages = 2;  // of a warp: two CTAs have 147 KB under way
  static constexpr int kRingBytes = kGemmWarps * kStages * kPieceBytes;
  static constexpr int kBarrierBytes = kGemmWarps * kStages * 8;
  // Groups whose activations are fetched before their weights are waited for.
  static constexpr int kFetchedGroups = kPieceGroups < 8 / kTiles ? kPieceGroups : 8 / kTiles;

  static int32_t SharedBytes(int32_t units) {
    return kRingBytes + kBarrierBytes + 2 * units * PartialSums<kTiles>::kFloats * 4;
  }
};

// The items of a launch.
struct StreamItems {
  int32_t row_blocks, count;

  __device__ StreamItems(const GroupedGemmParams& p, const GemmGeometry& g, int32_t tile_slots) {
    row_blocks = (g.row_tiles + g.tiles_per_cta - 1) / g.tiles_per_cta;
    count = row_blocks * (p.num_tiles ? *p.num_tiles : (p.num_slots + tile_slots - 1) / tile_slots);
  }
  __device__ int32_t FirstTile(const GemmGeometry& g, int32_t item) const {
    return item % row_blocks * g.tiles_per_cta;
  }
  __device__ int32_t Tiles(const GemmGeometry& g, int32_t item) const {
    return min(g.tiles_per_cta, g.row_tiles - FirstTile(g, item));
  }
};

// The pieces of a warp, ahead of its products. The whole warp keeps the place; lane 0 copies.
template <class Gemm>
struct WeightStream {
  const GroupedGemmParams& p;
  const GemmGeometry& g;
  const StreamItems items;
  uint8_t* ring;
  uint64_t* full;  // [kStages] 1 arrival and the bytes
  int32_t warp, lane;
  int32_t item, unit, group = 0;    // of the chunk
  const uint8_t* source = nullptr;  // the item's first row tile

  __device__ WeightStream(const GroupedGemmParams& p, const GemmGeometry& g, const StreamItems& items,
                          uint8_t* ring, uint64_t* full, int32_t warp, int32_t lane)
      : p(p),
        g(g),
        items(items),
        ring(ring),
        full(full),
        warp(warp),
        lane(lane),
        item(blockIdx.x),
        unit(warp) {
    FindItem();
  }

  // The next item from `item` on that has a unit for this warp.
  __device__ __forceinline__ void FindItem() {
    while (item < items.count && unit >= items.Tiles(g, item) * g.chunks) {
      item += gridDim.x;
      unit = warp;
    }
    if (item >= items.count) return;
    const int64_t matrix = p.num_tiles ? p.tile_expert[item / items.row_blocks] : 0;
    source = p.weights.data + matrix * g.matrix_bytes + items.FirstTile(g, item) * g.tile_bytes;
  }

  // Copies the next piece, if there is one, to a stage that nobody reads.
  __device__ __forceinline__ void Copy(int32_t stage) {
    if (item >= items.count) return;
    const int32_t tiles = items.Tiles(g, item), chunk = unit / tiles;
    const int32_t chunk_groups = min(kChunkGroups, g.groups - chunk * kChunkGroups);
    const int32_t groups = min(Gemm::kPieceGroups, chunk_groups - group);
    if (lane == 0) {
      const int32_t bytes = groups * Gemm::kGroupBytes + Gemm::kScaleBytes;
      ptx::MbarrierArriveExpectTx(&full[stage], bytes);
      ptx::CpAsyncBulk(ring + stage * Gemm::kPieceBytes,
                       source + unit % tiles * g.tile_bytes + int64_t{chunk} * Gemm::kChunkBytes +
                           group * Gemm::kGroupBytes,
                       bytes, &full[stage], ptx::kEvictFirst);
    }
    group += groups;
    if (group < chunk_groups) return;
    group = 0;
    unit += kGemmWarps;
    if (unit >= tiles * g.chunks) FindItem();
  }
};

// The products of a piece that has arrived or will: `groups` of them, from group `first_group` of k.
template <class Gemm>
__device__ __forceinline__ void MultiplyPiece(const uint8_t* stage, uint64_t* full, uint32_t parity,
                                              const uint4* const (&rows)[Gemm::kTokenTiles],
                                              int32_t first_group, int32_t groups, int32_t lane,
                                              float (&sums)[Gemm::kTokenTiles][4]) {
  constexpr int kTiles = Gemm::kTokenTiles;
  const uint4* const piece = reinterpret_cast<const uint4*>(stage) + lane;
  uint4 x[Gemm::kFetchedGroups][kTiles][2];
  const auto fetch = [&](int32_t first) {
#pragma unroll
    for (int32_t i = 0; i < Gemm::kFetchedGroups; ++i) {
#pragma unroll
      for (int32_t tile = 0; tile < kTiles; ++tile) {
        const uint4* source = rows[tile] + (first_group + min(first + i, groups - 1)) * 8;
        x[i][tile][0] = __ldg(source);
        x[i][tile][1] = __ldg(source + 1);
      }
    }
  };
  fetch(0);
  ptx::MbarrierWait(full, parity);
  uint4 scales;
  if constexpr (Gemm::kHasScales) scales = piece[groups * 32];
#pragma unroll
  for (int32_t i = 0; i < Gemm::kPieceGroups; ++i) {
    if (i > 0 && i % Gemm::kFetchedGroups == 0) fetch(i);
    if (i >= groups) break;
    GroupFragments weights;
    if constexpr (Gemm::kHasScales) {
      const uint32_t word = i / 2 == 0 ? scales.x : i / 2 == 1 ? scales.y : i / 2 == 2 ? scales.z : scales.w;
      const uint32_t pair = i % 2 ? word >> 16 : word;
      weights = DecodeNvfp4Group(piece[i * 32], DecodeScale<0>(pair), DecodeScale<1>(pair));
    } else {
      weights =
          ArrangeBf16Group({piece[i * 128], piece[i * 128 + 32], piece[i * 128 + 64], piece[i * 128 + 96]});
    }
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile) {
      const uint4 x0 = x[i % Gemm::kFetchedGroups][tile][0], x1 = x[i % Gemm::kFetchedGroups][tile][1];
      const uint32_t b[4][2] = {{x0.x, x0.y}, {x0.z, x0.w}, {x1.x, x1.y}, {x1.z, x1.w}};
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) ptx::MmaM16N8K16(sums[tile], weights.a[step], b[step]);
    }
  }
}

template <class Gemm, GemmEpilogue kEpilogue>
__global__ void __launch_bounds__(32 * kGemmWarps, Gemm::kCtasPerSm)
    GroupedGemmStreamKernel(const __grid_constant__ GroupedGemmParams p,
                            const __grid_constant__ GemmGeometry g) {
  constexpr int kTiles = Gemm::kTokenTiles, kTileSlots = 8 * kTiles;
  using Partial = PartialSums<kTiles>;
  extern __shared__ __align__(16) uint8_t shared[];
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint8_t* const ring = shared + warp * Gemm::kStages * Gemm::kPieceBytes;
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + Gemm::kRingBytes) + warp * Gemm::kStages;
  float* const partial_sums = reinterpret_cast<float*>(shared + Gemm::kRingBytes + Gemm::kBarrierBytes);
  if (lane == 0) {
    for (int32_t i = 0; i < Gemm::kStages; ++i) ptx::MbarrierInit(&full[i], 1);
    ptx::FenceBarrierInit();
  }
  __syncwarp();

  // Weights are never written, so they may come early where it is known which ones.
  const bool early = p.num_tiles == nullptr || p.tiles_settled;
  if (!early) GridDependencyWait();
  const StreamItems items(p, g, kTileSlots);
  WeightStream<Gemm> stream(p, g, items, ring, full, warp, lane);
  for (int32_t i = 0; i < Gemm::kStages; ++i) stream.Copy(i);
  if (early) GridDependencyWait();
  GridDependencyLaunch();

  int32_t stage = 0;
  uint32_t parity = 0;
  float* sums_of_item = partial_sums;
  for (int32_t item = blockIdx.x; item < items.count; item += gridDim.x) {
    const int32_t slot_tile = item / items.row_blocks;
    int2 slots = make_int2(slot_tile * kTileSlots, p.num_slots);
    int32_t matrix = 0;
    if (p.num_tiles != nullptr) {
      matrix = p.tile_expert[slot_tile];
      slots = p.tile_slot_range[slot_tile];
    }
    slots.y = min(slots.y, slots.x + kTileSlots);
    // A slot that is none reads as the last one does; its products are its own.
    const uint4* rows[kTiles];
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile) {
      const int32_t slot = min(slots.x + tile * 8 + lane / 4, slots.y - 1);
      const int64_t row = p.input_rows ? p.input_rows[slot] : slot;
      rows[tile] =
          reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.x) + row * p.weights.k) +
          lane % 4 * 2;
    }
    // Unit u is chunk u / tiles of row tile u % tiles: warps work on the same activations at the same time.
    const int32_t first_tile = items.FirstTile(g, item), tiles = items.Tiles(g, item);
    for (int32_t unit = warp; unit < tiles * g.chunks; unit += kGemmWarps) {
      const int32_t first_group = unit / tiles * kChunkGroups;
      const int32_t chunk_groups = min(kChunkGroups, g.groups - first_group);
      float sums[kTiles][4] = {};
      for (int32_t group = 0; group < chunk_groups; group += Gemm::kPieceGroups) {
        MultiplyPiece<Gemm>(ring + stage * Gemm::kPieceBytes, &full[stage], parity, rows, first_group + group,
                            min(Gemm::kPieceGroups, chunk_groups - group), lane, sums);
        __syncwarp();
        stream.Copy(stage);
        if (++stage == Gemm::kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
      Partial::Store(sums_of_item + unit * Partial::kFloats, lane, sums);
    }
    __syncthreads();
    FinishRowTiles<kEpilogue, kTiles>(p, g, matrix, first_tile, tiles, slots, sums_of_item, g.chunks);
    // The next item's sums go to the other buffer: a warp fills this one again only when all have come from here.
    sums_of_item = sums_of_item == partial_sums ? partial_sums + g.tiles_per_cta * g.chunks * Partial::kFloats
                                                : partial_sums;
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_STREAM_CUH_
