// Grouped GEMM for few slots, weights as the A operand of mma.sync: the kernel.
//
// A CTA computes kRowTile * tiles_per_cta features for up to 8 kTokenTiles slots. Its units of work are (chunk of k, row
// tile); a warp takes every eighth and streams the unit's weights straight into registers (each is used by this warp
// alone, so shared memory would only cost a trip): those of its first unit while the kernels before this one still run,
// where it is known which; those of the next one into the registers of the groups that it has multiplied. The sums of a
// chunk start at zero, and the chunks of a feature are added in order: through shared memory where several warps share a
// row tile, which few slots need to keep enough loads in flight, else in registers. Both add the same numbers in the same
// order.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_SM90_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_SM90_CUH_

#include <cuda_bf16.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/fragments.cuh"
#include "kernels/cuda/linear/grouped_gemm.h"
#include "kernels/cuda/ptx/load.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

inline constexpr int32_t kGemmWarps = 8;

struct GemmGeometry {
  int32_t groups, chunks;  // of k
  int32_t tiles_per_cta;   // row tiles; kGemmWarps where a warp owns a tile
  int32_t row_tiles;       // of a matrix
  size_t tile_bytes, matrix_bytes;
};

// Rows of x: slot lane / 4 of each token tile. A slot that does not exist reads the row of the last that does: its
// products are its own, and nobody stores them.
template <int kTokenTiles>
struct SlotRows {
  int32_t row[kTokenTiles];

  __device__ __forceinline__ SlotRows(const GroupedGemmParams& p, int2 slots, int32_t lane) {
#pragma unroll
    for (int32_t tile = 0; tile < kTokenTiles; ++tile) {
      const int32_t slot = min(slots.x + tile * 8 + lane / 4, slots.y - 1);
      row[tile] = p.input_rows ? ptx::LoadNow(p.input_rows + slot) : slot;
    }
  }
};

// The activations of a lane: its 16 k of every group.
template <int kTokenTiles>
struct TokenRows {
  const uint4* row[kTokenTiles];

  __device__ __forceinline__ TokenRows(const void* x, int32_t k, const SlotRows<kTokenTiles>& rows, int32_t lane) {
#pragma unroll
    for (int32_t tile = 0; tile < kTokenTiles; ++tile) {
      row[tile] =
          reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(x) + int64_t{rows.row[tile]} * k) +
          lane % 4 * 2;
    }
  }

  // The same from group `first` on.
  __device__ __forceinline__ TokenRows From(int32_t first) const {
    TokenRows rows = *this;
#pragma unroll
    for (const uint4*& r : rows.row) r += first * 8;
    return rows;
  }

  // Half `half` of the lane's k of a group.
  __device__ __forceinline__ uint4 Load(int32_t tile, int32_t group, int32_t half) const {
    return ptx::LoadReadOnlyNow(row[tile] + group * 8 + half);
  }
};

// Groups whose activations are under way at a time: as many as registers reach for. Weights that are loaded when they are
// needed hide that by the number of warps.
template <class Chunk, int kTokenTiles>
inline constexpr int kGroupsAhead = !Chunk::kIsHeld ? 1 : kTokenTiles <= 4 ? 2 : 1;

// kGroups groups of a chunk, from its group kFirst on, in order; each makes room for that of the chunk after it.
template <int kFirst, int kGroups, class Chunk, class Rows, class Next, int kTokenTiles>
__device__ __forceinline__ void MultiplyGroups(Chunk& chunk, const Rows& tokens, int32_t first_group,
                                               const Next& next, float (&sums)[kTokenTiles][4]) {
  constexpr int kMost = kGroupsAhead<Chunk, kTokenTiles>, kAhead = kMost < kGroups ? kMost : kGroups;
  const Rows rows = tokens.From(first_group + kFirst);
  uint4 x[kAhead][kTokenTiles][2];
  const auto fetch = [&](int32_t group) {
#pragma unroll
    for (int32_t tile = 0; tile < kTokenTiles; ++tile) {
      x[group % kAhead][tile][0] = rows.Load(tile, group, 0);
      x[group % kAhead][tile][1] = rows.Load(tile, group, 1);
    }
  };
  const auto multiply = [&]<int kGroup>(std::integral_constant<int, kGroup>) {
    const GroupFragments weights = chunk.template Decode<kFirst + kGroup>();
#pragma unroll
    for (int32_t tile = 0; tile < kTokenTiles; ++tile) {
      const uint4 x0 = x[kGroup % kAhead][tile][0], x1 = x[kGroup % kAhead][tile][1];
      const uint32_t b[4][2] = {{x0.x, x0.y}, {x0.z, x0.w}, {x1.x, x1.y}, {x1.z, x1.w}};
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) ptx::MmaM16N8K16(sums[tile], weights.a[step], b[step]);
    }
    if constexpr (kGroup + kAhead < kGroups) fetch(kGroup + kAhead);
    next.template LoadGroup<kFirst + kGroup>(chunk);
  };
#pragma unroll
  for (int32_t group = 0; group < kAhead; ++group) fetch(group);
  [&]<int... kEach>(std::integer_sequence<int, kEach...>) {
    (multiply(std::integral_constant<int, kEach>()), ...);
  }
  (std::make_integer_sequence<int, kGroups>());
}

// What a warp multiplies after a chunk: another, which comes into the registers of that one as they are done with.
template <class Chunk>
struct NextChunk {
  const uint8_t* source;  // null: there is none
  int32_t groups, lane;

  template <int kGroup>
  __device__ __forceinline__ void LoadGroup(Chunk& chunk) const {
    if (source != nullptr) chunk.template LoadGroup<kGroup>(source, groups, lane);
  }
};

// One unit: the chunk's groups in order.
template <class Chunk, class Rows, class Next, int kTokenTiles>
__device__ __forceinline__ void MultiplyChunk(Chunk& chunk, int32_t groups, int32_t first_group, const Rows& tokens,
                                              const Next& next, float (&sums)[kTokenTiles][4]) {
#pragma unroll
  for (int32_t tile = 0; tile < kTokenTiles; ++tile) {
    for (float& sum : sums[tile]) sum = 0.0f;
  }
  // The last chunk may be shorter: half a chunk, then one by one. Where registers are scarce it is one by one always: the
  // branches keep the compiler from asking for everything at once.
  constexpr int kHalf = Chunk::kIsHeld && kTokenTiles > 4 ? 0 : kChunkGroups / 2;
  if constexpr (kHalf > 0) {
    if (groups == kChunkGroups) {
      MultiplyGroups<0, kChunkGroups>(chunk, tokens, first_group, next, sums);
      return;
    }
    if (groups >= kHalf) MultiplyGroups<0, kHalf>(chunk, tokens, first_group, next, sums);
  }
  [&]<int... kEach>(std::integer_sequence<int, kEach...>) {
    (((kEach < kHalf && groups >= kHalf) ? void()
      : kEach < groups                   ? MultiplyGroups<kEach, 1>(chunk, tokens, first_group, next, sums)
                                         : next.template LoadGroup<kEach>(chunk)),
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
  __device__ __forceinline__ RowScale(float scale, float bias, bool has_bias)
      : scale(scale), bias(bias), has_bias(has_bias) {}

  __device__ __forceinline__ float Apply(float sum) const {
    sum = __fmul_rn(sum, scale);
    return has_bias ? __fadd_rn(sum, bias) : sum;
  }
};

// The scales and biases of a CTA's features on their way from memory, which takes them as long as the weights, to shared
// memory. One thread a value.
struct RowScales {
  static constexpr int32_t kFloatsPerTile = kRowTile / 8 + kRowTile;

  float scale = 1.0f, bias = 0.0f;

  // Begins to load those of `tiles` row tiles from feature `first_row` of all packed matrices on.
  __device__ __forceinline__ RowScales(const PackedWeights& w, int64_t first_row, int32_t tiles) {
    const int32_t i = threadIdx.x;
    if (w.sum_scales != nullptr && i < tiles * (kRowTile / 8)) scale = ptx::LoadNow(w.sum_scales + first_row / 8 + i);
    if (w.bias != nullptr && i < tiles * kRowTile) bias = ptx::LoadNow(w.bias + first_row + i);
  }
  __device__ __forceinline__ void Store(float* shared, int32_t tiles) const {
    const int32_t i = threadIdx.x;
    if (i < tiles * (kRowTile / 8)) shared[i] = scale;
    if (i < tiles * kRowTile) shared[tiles * (kRowTile / 8) + i] = bias;
  }
  // Of the CTA's feature `row`.
  __device__ static RowScale Of(const float* shared, int32_t tiles, int32_t row, bool has_bias) {
    return RowScale(shared[row / 8], shared[tiles * (kRowTile / 8) + row], has_bias);
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

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
inline constexpr int kBf16Ctas = 1;  // two would spill registers there
#else
inline constexpr int kBf16Ctas = 2;
#endif

// CTAs that an SM is to hold at least: with few slots it is the number of warps that hides memory's latency. (Activations of
// four groups ahead, but a third fewer warps, were 15 % slower on an H200.)
template <WeightFormat kFormat, int kTokenTiles>
inline constexpr int kLeastCtas = kTokenTiles > 2            ? 1
                                  : Chunk<kFormat>::kIsHeld ? (kTokenTiles == 1 ? 3 : 2)
                                                            : (kTokenTiles == 1 ? kBf16Ctas : 1);

// Whether registers reach for the next unit's weights beside this one's.
template <WeightFormat kFormat, int kTokenTiles>
inline constexpr bool kStreams = Chunk<kFormat>::kIsHeld && kTokenTiles <= 4;

template <WeightFormat kFormat, int kTokenTiles, GemmEpilogue kEpilogue, bool kWarpOwnsTile>
__global__ void __launch_bounds__(32 * kGemmWarps, kLeastCtas<kFormat, kTokenTiles>)
    GroupedGemmKernel(const __grid_constant__ GroupedGemmParams p, const __grid_constant__ GemmGeometry g) {
  extern __shared__ float partial_sums[];
  using Partial = PartialSums<kTokenTiles>;
  // Weights are never written: they are loaded before the kernels before this one have ended, where it is known which.
  const bool early = (p.num_tiles == nullptr || p.tiles_settled) && p.input_rows == nullptr;
  if (!early) GridDependencyWait();
  GridDependencyLaunch();
  int32_t matrix = 0;
  int2 slots = make_int2(blockIdx.y * 8 * kTokenTiles, p.num_slots);
  if (p.num_tiles != nullptr) {
    const int32_t num_tiles = ptx::LoadNow(p.num_tiles);
    matrix = ptx::LoadNow(p.tile_expert + blockIdx.y);
    slots = ptx::LoadNow(p.tile_slot_range + blockIdx.y);
    if (blockIdx.y >= num_tiles) return;
  }
  slots.y = min(slots.y, slots.x + 8 * kTokenTiles);
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t first_tile = blockIdx.x * g.tiles_per_cta;
  const int32_t tiles = min(g.tiles_per_cta, g.row_tiles - first_tile);
  const uint8_t* weights = p.weights.data + matrix * g.matrix_bytes + first_tile * g.tile_bytes;
  constexpr size_t kChunkBytes =
      kFormat == WeightFormat::kNvfp4 ? (kChunkGroups + 1) * 512 : kChunkGroups * 2048;

  // Unit u is chunk u / tiles of tile u % tiles: warps work on the same activations at the same time. A warp that owns
  // a tile takes its chunks in order.
  const int32_t units = tiles * g.chunks;
  const int32_t step = kWarpOwnsTile ? tiles : kGemmWarps;
  const auto at = [&](int32_t unit) {
    const int32_t tile = unit % tiles, chunk = unit / tiles;
    return NextChunk<Chunk<kFormat>>{weights + tile * g.tile_bytes + chunk * kChunkBytes,
                                     min(kChunkGroups, g.groups - chunk * kChunkGroups), lane};
  };
  const SlotRows<kTokenTiles> rows(p, slots, lane);
  const bool works = (!kWarpOwnsTile || warp < tiles) && warp < units;
  Chunk<kFormat> current;
  if (works) {
    const auto first = at(warp);
    current.Load(first.source, first.groups, lane);
  }
  const int64_t first_row = (int64_t{matrix} * g.row_tiles + first_tile) * kRowTile;
  const RowScales row_scales(p.weights, first_row, tiles);
  float* const shared_scales = partial_sums + g.tiles_per_cta * (kWarpOwnsTile ? 1 : g.chunks) * Partial::kFloats;
  if (early) GridDependencyWait();

  const TokenRows<kTokenTiles> tokens(p.x, p.weights.k, rows, lane);
  float totals[kWarpOwnsTile ? kTokenTiles : 1][4] = {};
  if (works) {
    for (int32_t unit = warp; unit < units; unit += step) {
      NextChunk<Chunk<kFormat>> next = {nullptr, 0, lane};
      [[maybe_unused]] uint4 next_scales;
      if constexpr (kStreams<kFormat, kTokenTiles>) {
        if (unit + step < units) next = at(unit + step);
        next_scales = current.LoadScales(next.source, next.groups, lane);
      }
      const int32_t first_group = unit / tiles * kChunkGroups;
      float sums[kTokenTiles][4];
      MultiplyChunk(current, min(kChunkGroups, g.groups - first_group), first_group, tokens, next, sums);
      if constexpr (kStreams<kFormat, kTokenTiles>) {
        current.scales = next_scales;
      } else if (unit + step < units) {
        const auto after = at(unit + step);
        current.Load(after.source, after.groups, lane);
      }
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
  row_scales.Store(shared_scales, tiles);
  __syncthreads();

  const int32_t num_slots = slots.y - slots.x;
  constexpr int32_t kOutRows = kEpilogue == GemmEpilogue::kSwiglu ? 8 : kRowTile;
  const bool has_bias = p.weights.bias != nullptr;
  for (int32_t i = threadIdx.x; i < tiles * kOutRows * num_slots; i += blockDim.x) {
    const int32_t row = i % (tiles * kOutRows), slot = i / (tiles * kOutRows);
    const int32_t tile = row / kOutRows, feature = row % kOutRows;
    const int32_t out_feature = first_tile * kOutRows + row;
    if (out_feature >= p.out_features) continue;
    const int64_t at = int64_t{slots.x + slot} * p.out_features + out_feature;
    const float* sums = partial_sums + tile * Partial::kFloats;
    const int32_t scale_row = tile * kRowTile + feature;
    const float sum = RowScales::Of(shared_scales, tiles, scale_row, has_bias)
                          .Apply(Partial::Sum(sums, parts, tiles, feature, slot));
    if constexpr (kEpilogue == GemmEpilogue::kSwiglu) {
      const float up = RowScales::Of(shared_scales, tiles, scale_row + 8, has_bias)
                           .Apply(Partial::Sum(sums, parts, tiles, feature + 8, slot));
      static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16(ApplyGlu(p.glu, sum, up));
    } else {
      StoreSum<kEpilogue>(p, at, sum);
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_SM90_CUH_
