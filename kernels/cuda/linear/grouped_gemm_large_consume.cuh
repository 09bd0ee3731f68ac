// Grouped GEMM for sm_90 with wgmma: the warps that multiply.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_CONSUME_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_CONSUME_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/linear/activation_order.h"
#include "kernels/cuda/linear/fragments.cuh"
#include "kernels/cuda/linear/grouped_gemm_large_tile.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/wgmma_tiles.cuh"

namespace tessera::cuda {

// A consumer warp: its row tile's weights, and its places in the rings, from one item to the next.
template <class Gemm>
struct LargeGemmConsumer {
  const LargeGemmShared<Gemm> shared;
  int32_t warp, lane;
  RingPlace<Gemm::kTokenStages> tokens, given_back;
  RingPlace<Gemm::kWeightStages> weights;
  uint4 scales;  // of the chunk

  __device__ LargeGemmConsumer(const LargeGemmShared<Gemm>& shared, int32_t warp, int32_t lane)
      : shared(shared), warp(warp), lane(lane) {}

  __device__ __forceinline__ const uint4* Piece() const {
    return reinterpret_cast<const uint4*>(shared.weights() + weights.stage * Gemm::kWeightBytes +
                                          warp * Gemm::kPieceBytes) +
           lane;
  }

  __device__ __forceinline__ void BeginPiece(int32_t groups) {
    weights.WaitFull(shared.weights_full());
    if constexpr (Gemm::kHasScales) scales = Piece()[groups * 32];
  }

  __device__ __forceinline__ void EndPiece() {
    __syncwarp();
    if (lane == 0) ptx::MbarrierArrive(&shared.weights_empty()[weights.stage]);
    weights.Advance();
  }

  // Group `index` of the chunk.
  __device__ __forceinline__ GroupFragments Decode(int32_t index) const {
    const uint4* piece = Piece();
    if constexpr (Gemm::kHasScales) {
      const uint32_t word = index / 2 == 0   ? scales.x
                            : index / 2 == 1 ? scales.y
                            : index / 2 == 2 ? scales.z
                                             : scales.w;
      const uint32_t pair = index % 2 ? word >> 16 : word;
      return DecodeNvfp4Group(piece[index * 32], DecodeScale<0>(pair), DecodeScale<1>(pair));
    } else {
      return ArrangeBf16Group({piece[0], piece[32], piece[64], piece[96]});
    }
  }

  // The products of the oldest group not given back are done.
  __device__ __forceinline__ void GiveTokensBack() {
    __syncwarp();
    if (lane == 0) ptx::MbarrierArrive(&shared.tokens_empty()[given_back.stage]);
    given_back.Advance();
  }

  // kCount groups of a chunk, beginning with number `first`. Unrolled, and waited for at the end: the compiler would wait at
  // every branch between.
  template <int kCount, int kTiles>
  __device__ __forceinline__ void MultiplyGroups(int32_t first, float (&sums)[kTiles][4]) {
    GroupFragments fragments[2];  // of this group and of the one that may still be multiplied
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      if constexpr (Gemm::kPieceGroups == 1) BeginPiece(1);
      fragments[i % 2] = Decode(first + i);
      if constexpr (Gemm::kPieceGroups == 1) EndPiece();
      tokens.WaitFull(shared.tokens_full());
      const uint64_t b =
          ptx::WgmmaSwizzledDescriptor(ptx::SharedAddress(shared.tokens) + tokens.stage * Gemm::kTokenBytes);
      tokens.Advance();
      ptx::WgmmaFence();
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) {
        ptx::WgmmaRegistersShared<false>(sums, fragments[i % 2].a[step], ptx::WgmmaAdvance(b, step * 32),
                                         step > 0 || first + i > 0);
      }
      ptx::WgmmaCommitGroup();
      if (i > 0) {
        ptx::WgmmaWaitGroup<1>();
        GiveTokensBack();
      }
    }
    ptx::WgmmaWaitGroup<0>();
    GiveTokensBack();
  }

  // The sums of an item over all of k.
  template <int kTiles>
  __device__ __forceinline__ void Multiply(int32_t groups, float (&totals)[kTiles][4]) {
    float sums[kTiles][4];
    for (int32_t chunk = 0; chunk < groups; chunk += kChunkGroups) {
      const int32_t count = min(kChunkGroups, groups - chunk);
      if constexpr (Gemm::kPieceGroups > 1) BeginPiece(count);
      if (count == kChunkGroups) {
        MultiplyGroups<kChunkGroups>(0, sums);
      } else {
        int32_t first = 0;
        if (count & 4) MultiplyGroups<4>(0, sums), first = 4;
        for (; first < count; ++first) MultiplyGroups<1>(first, sums);
      }
      if constexpr (Gemm::kPieceGroups > 1) EndPiece();
#pragma unroll
      for (int32_t i = 0; i < kTiles * 4; ++i) totals[i / 4][i % 4] += sums[i / 4][i % 4];
    }
  }
};

// What becomes of an item's sums. Lane l of a warp holds features l / 4 and l / 4 + 8 of its row tile; totals[j] slots
// 8 j + 2 (l % 4) and the next, of both features.
template <class Gemm, GemmEpilogue kEpilogue, int kTiles>
__device__ __forceinline__ void FinishLargeItem(const GroupedGemmParams& p, const GemmGeometry& g,
                                                const LargeGemmShared<Gemm>& shared,
                                                const LargeGemmItem& item, int32_t warp, int32_t lane,
                                                float (&totals)[kTiles][4]) {
  const int32_t num_slots = item.slots.y - item.slots.x;
  // Of all packed matrices. Row tiles past the last are that one once more, and are not stored.
  const int64_t first_row =
      (int64_t{item.matrix} * g.row_tiles + min(item.first_tile + warp, g.row_tiles - 1)) * kRowTile +
      lane / 4;
  const RowScale low(p.weights, first_row), high(p.weights, first_row + 8);
  if constexpr (kEpilogue != GemmEpilogue::kSwiglu) {
    const int32_t feature = (item.first_tile + warp) * kRowTile + lane / 4;
#pragma unroll
    for (int32_t i = 0; i < kTiles * 4; ++i) {
      const int32_t slot = i / 4 * 8 + lane % 4 * 2 + i % 2, row = feature + i % 4 / 2 * 8;
      if (slot < num_slots && row < p.out_features) {
        StoreSum<kEpilogue>(p, int64_t{item.slots.x + slot} * p.out_features + row,
                            (i % 4 < 2 ? low : high).Apply(totals[i / 4][i % 4]));
      }
    }
  } else {
    constexpr int kThreads = Gemm::kConsumerWarps * 32;
    ptx::NamedBarrierSync(1, kThreads);  // the results before these have been read
#pragma unroll
    for (int32_t j = 0; j < kTiles; ++j) {
      const float* t = totals[j];
      const uint32_t pair = ptx::PackBf16(ApplyGlu(p.glu, low.Apply(t[0]), high.Apply(t[2])),
                                          ApplyGlu(p.glu, low.Apply(t[1]), high.Apply(t[3])));
      // Two features of one slot instead of two slots of one feature.
      const int32_t slot = j * 8 + lane / 4, feature = warp * 8 + lane % 4 * 2;
      const int32_t place = p.out_order == ActivationOrder::kSteps ? StepPosition(feature) : feature;
      shared.staged()[slot * Gemm::kStagedStride + place / 2] = ptx::MovmatrixTrans(pair);
    }
    ptx::NamedBarrierSync(1, kThreads);
    __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.out) + int64_t{item.slots.x} * p.out_features;
    for (int32_t i = threadIdx.x; i < num_slots * 8; i += kThreads) {
      const int32_t slot = i / 8, feature = item.first_tile * 8 + i % 8 * 8;
      const uint32_t* words = shared.staged() + slot * Gemm::kStagedStride + i % 8 * 4;
      __nv_bfloat16* target = out + int64_t{slot} * p.out_features + feature;
      if (p.out_features % 8 == 0) {
        if (feature < p.out_features) {
          *reinterpret_cast<uint4*>(target) = make_uint4(words[0], words[1], words[2], words[3]);
        }
      } else {
        for (int32_t f = 0; f < min(8, p.out_features - feature); ++f) {
          target[f] = __ushort_as_bfloat16(static_cast<uint16_t>(words[f / 2] >> f % 2 * 16));
        }
      }
    }
  }
}

// The role of the consumers.
template <class Gemm, GemmEpilogue kEpilogue>
__device__ void ConsumeLargeItems(const GroupedGemmParams& p, const GemmGeometry& g,
                                  const LargeGemmShared<Gemm>& shared, const LargeGemmItems& items,
                                  int32_t warp) {
  const int32_t lane = threadIdx.x % 32;
  LargeGemmConsumer<Gemm> consumer(shared, warp, lane);
  const auto run = [&]<int kTiles>(std::integral_constant<int, kTiles>, int32_t at) {
    float totals[kTiles][4] = {};
    consumer.Multiply(g.groups, totals);
    // Found again: its registers are wanted for products.
    FinishLargeItem<Gemm, kEpilogue>(p, g, shared, items.At(p, at), warp, lane, totals);
  };
  for (int32_t at = blockIdx.x; at < items.count; at += gridDim.x) {
    const int2 slots = items.At(p, at).slots;
    const int32_t columns = LargeGemmColumns(slots.y - slots.x);
    if (columns == 128) {
      run(std::integral_constant<int, 16>(), at);
    } else if (columns == 64) {
      run(std::integral_constant<int, 8>(), at);
    } else {
      run(std::integral_constant<int, 4>(), at);
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_CONSUME_CUH_
