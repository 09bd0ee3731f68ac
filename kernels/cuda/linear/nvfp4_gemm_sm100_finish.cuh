// Grouped NVFP4 GEMM for sm_100: the warps that scale, activate, quantise and store the sums.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_SM100_FINISH_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_SM100_FINISH_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/nvfp4_gemm.h"
#include "kernels/cuda/linear/nvfp4_gemm_launch.h"
#include "kernels/cuda/linear/nvfp4_gemm_sm100_traits.cuh"
#include "kernels/cuda/linear/nvfp4_quantize.cuh"
#include "kernels/cuda/linear/nvfp4_tiles.h"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tcgen05.cuh"

namespace tessera::cuda {

// What the epilogue of a CTA knows.
struct Nvfp4Output {
  SlotTile tile;
  int32_t tile_index;  // of the slots
  int32_t row_tile;    // of the features
};

// The tensor scale of a slot's activations.
__device__ __forceinline__ float ActivationScale(const Nvfp4GemmParams& p, const Nvfp4Output& o,
                                                 int32_t slot) {
  return p.x.matrix_scales ? p.x.matrix_scales[o.tile.matrix] : p.x.row_scales[slot];
}

// Stores or adds this thread's feature of the slots from `first`.
template <Nvfp4Epilogue kEpilogue>
__device__ __forceinline__ void StoreSums(const Nvfp4GemmParams& p, const Nvfp4Output& o, int32_t first,
                                          float weight_scale, const uint32_t (&sums)[16]) {
  const int32_t feature = o.row_tile * kNvfp4RowTile + threadIdx.x;
  if (feature >= p.out_features) return;
#pragma unroll
  for (int32_t i = 0; i < 16; ++i) {
    const int32_t slot = first + i;
    if (slot >= o.tile.end) break;
    float* out = static_cast<float*>(p.out) + int64_t{slot} * p.out_features + feature;
    const float sum = __uint_as_float(sums[i]) * weight_scale * ActivationScale(p, o, slot);
    *out = kEpilogue == Nvfp4Epilogue::kAdd ? *out + sum : sum;
  }
}

// Where the results of one row tile stand in a tile of the next product's activations: they are one step of 64 k.
template <class Traits>
struct NextStep {
  int32_t step;  // of k
  uint8_t* chunk;

  __device__ NextStep(const Nvfp4GemmParams& p, const Nvfp4Output& o, int32_t step) : step(step) {
    chunk = p.next.data + (int64_t{o.tile_index} * Nvfp4Chunks(p.next.k) + step / kNvfp4ChunkSteps) *
                              Nvfp4ChunkBytes(Traits::kSlots);
  }
  __device__ int32_t Block(int32_t i) const { return step % kNvfp4ChunkSteps * 4 + i; }  // of the chunk
  __device__ void Store(int32_t row, int32_t i, const Nvfp4Block& block) const {
    *reinterpret_cast<uint2*>(chunk + Nvfp4CodeOffset(row, Block(i))) = block.codes;
    chunk[Nvfp4ScaleOffset(Traits::kSlots, row, Block(i))] = block.scale;
  }
};

// Zeroes what of the next activations no slot has: scales of rows past the tile's, and, with the last step, the rest of
// the chunk.
template <class Traits>
__device__ __forceinline__ void ClearNextPadding(const Nvfp4GemmParams& p, const Nvfp4Output& o) {
  const int32_t last = p.next.k / kNvfp4StepK - 1, chunk_end = Nvfp4Chunks(p.next.k) * kNvfp4ChunkSteps;
  if (o.row_tile > last) return;
  for (int32_t step = o.row_tile; step == o.row_tile || (o.row_tile == last && step < chunk_end); ++step) {
    const NextStep<Traits> next(p, o, step);
    const int32_t row = threadIdx.x;
    if (row >= Traits::kSlots) {
      *reinterpret_cast<uint32_t*>(next.chunk + Nvfp4ScaleOffset(Traits::kSlots, row, next.Block(0))) = 0;
    } else if (step > last) {
      for (int32_t i = 0; i < 4; ++i) next.Store(row, i, {make_uint2(0, 0), 0});
    }
  }
}

__device__ __forceinline__ float Swiglu(float gate, float up) { return gate / (1.0f + __expf(-gate)) * up; }

// Finishes the staged slots from `first`: 64 results each, as bf16.
template <class Traits>
__device__ __forceinline__ void StoreSwiglu(const Nvfp4GemmParams& p, const Nvfp4Output& o, int32_t first,
                                            const float* staged) {
  constexpr int32_t kHalf = kNvfp4RowTile / 2;
  const int32_t slots = min(Traits::kStagedSlots, o.tile.end - first);
  for (int32_t i = threadIdx.x; i < slots * kHalf; i += 32 * Traits::kEpilogueWarps) {
    const int32_t feature = i % kHalf, out_feature = o.row_tile * kHalf + feature;
    const float* sums = staged + i / kHalf * Traits::kStagedStride + feature;
    if (out_feature >= p.out_features) continue;
    static_cast<__nv_bfloat16*>(p.out)[int64_t{first + i / kHalf} * p.out_features + out_feature] =
        __float2bfloat16(Swiglu(sums[0], sums[kHalf]));
  }
}

// The same, quantised: a thread a block of 16.
template <class Traits>
__device__ __forceinline__ void QuantizeSwiglu(const Nvfp4GemmParams& p, const Nvfp4Output& o, int32_t first,
                                               const float* staged) {
  constexpr int32_t kHalf = kNvfp4RowTile / 2, kBlocks = kHalf / 16;
  static_assert(Traits::kStagedSlots * kBlocks <= 32 * Traits::kEpilogueWarps);
  if (threadIdx.x >= Traits::kStagedSlots * kBlocks || o.row_tile >= p.next.k / kNvfp4StepK) return;
  const int32_t slot = threadIdx.x / kBlocks, block = threadIdx.x % kBlocks;
  const float* sums = staged + slot * Traits::kStagedStride + block * 16;
  float values[16];
#pragma unroll
  for (int32_t i = 0; i < 16; ++i) values[i] = Swiglu(sums[i], sums[kHalf + i]);
  const NextStep<Traits> next(p, o, o.row_tile);
  next.Store(first - o.tile.first + slot, block, QuantizeBlock(values, p.next.matrix_scales[o.tile.matrix]));
}

// The role of warps 0 to 3.
template <Nvfp4Epilogue kEpilogue, class Traits>
__device__ void FinishTile(const Nvfp4GemmParams& p, const Nvfp4Output& o,
                           const Nvfp4GemmShared<Traits>& shared, uint32_t tmem, int32_t warp) {
  const int32_t feature = threadIdx.x;  // of the row tile
  const float weight_scale = p.weights.sum_scales[int64_t{o.tile.matrix} * (p.weights.n / 8) +
                                                  (o.row_tile * kNvfp4RowTile + feature) / 8];
  ptx::MbarrierWait(shared.done, 0);
  ptx::Tcgen05FenceAfterThreadSync();
  // What is quantised for the next product fills its tile, slots that do not exist as zero.
  constexpr bool kFillsTile = kEpilogue == Nvfp4Epilogue::kSwigluNvfp4;
  const int32_t end = kFillsTile ? o.tile.first + Traits::kSlots : o.tile.end;
  for (int32_t first = o.tile.first; first < end; first += Traits::kStagedSlots) {
    uint32_t sums[Traits::kStagedSlots];
    ptx::Tcgen05Ld32x32b(sums, ptx::TmemLane(tmem, warp * 32) + first - o.tile.first);
    ptx::Tcgen05WaitLd(sums);
    if constexpr (kEpilogue == Nvfp4Epilogue::kStore || kEpilogue == Nvfp4Epilogue::kAdd) {
      StoreSums<kEpilogue>(p, o, first, weight_scale, sums);
    } else {
#pragma unroll
      for (int32_t i = 0; i < Traits::kStagedSlots; ++i) {
        const bool exists = first + i < o.tile.end;
        shared.staged[i * Traits::kStagedStride + feature] =
            exists ? __uint_as_float(sums[i]) * weight_scale * ActivationScale(p, o, first + i) : 0.0f;
      }
      ptx::NamedBarrierSync(1, 32 * Traits::kEpilogueWarps);
      if constexpr (kFillsTile) {
        QuantizeSwiglu<Traits>(p, o, first, shared.staged);
      } else {
        StoreSwiglu<Traits>(p, o, first, shared.staged);
      }
      ptx::NamedBarrierSync(1, 32 * Traits::kEpilogueWarps);
    }
  }
  if constexpr (kFillsTile) ClearNextPadding<Traits>(p, o);
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_SM100_FINISH_CUH_
