// Grouped NVFP4 GEMM for sm_100: the kernel.
//
// A CTA computes 128 packed features (a row tile, M) for one tile of up to kSlots slots (N): D^T = W x^T. Weights are the M
// side since M is always 128, while few slots may fall to an expert. Warp 4 brings chunks of 256 k of both operands and
// their block scales into a ring of shared-memory stages with one bulk copy each, warp 5 copies the scales to tensor memory
// and issues the block-scaled products, warps 0 to 3 finish: a thread holds one feature of all slots.
//
//   barrier  arrivals             completes when
//   full     1 + bytes            a stage holds its chunk
//   empty    1 (commit)           the products of the stage are done; its scales in tensor memory are free with it
//   done     1 (commit)           D is complete
//
// Each stage has its own columns of scales: a copy to tensor memory is not ordered after the products that read what it
// overwrites, but a stage is filled again only when its products are done.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_SM100_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_SM100_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/nvfp4_gemm.h"
#include "kernels/cuda/linear/nvfp4_gemm_launch.h"
#include "kernels/cuda/linear/nvfp4_quantize.cuh"
#include "kernels/cuda/linear/nvfp4_tiles.h"
#include "kernels/cuda/ptx/instruction_descriptor.h"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/smem_descriptor.h"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tcgen05.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace tessera::cuda {

template <int kTileSlots>
struct Nvfp4GemmTraits {
  static constexpr int kSlots = kTileSlots;
  static constexpr int kEpilogueWarps = 4;
  static constexpr int kThreads = 32 * (kEpilogueWarps + 2);
  static constexpr int kWeightBytes = Nvfp4ChunkBytes(kNvfp4RowTile);
  static constexpr int kActivationBytes = Nvfp4ChunkBytes(kSlots);
  static constexpr int kStageBytes = kWeightBytes + kActivationBytes;
  // Sums of some slots on their way from a thread a feature to a thread a result, padded against bank conflicts.
  static constexpr int kStagedSlots = 16;
  static constexpr int kStagedStride = kNvfp4RowTile + 4;
  static constexpr int kStagedBytes = kStagedSlots * kStagedStride * 4;
  static constexpr int kSmallBytes = 256;  // barriers, the address of tensor memory
  static constexpr int kCtasPerSm = kSlots <= 64 ? 2 : 1;
  static constexpr int StagesThatFit(int ctas) {
    return (233472 / ctas - 1024 - 1024 - kStagedBytes - kSmallBytes) / kStageBytes;
  }
  static constexpr int kStages = StagesThatFit(kCtasPerSm);
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes + kStagedBytes + kSmallBytes;
  // Tensor memory: D, then for each stage the scales of both operands, four columns a step.
  static constexpr int kStepColumns = 4;
  static constexpr int kOperandColumns = kNvfp4ChunkSteps * kStepColumns;
  static constexpr int kUsedTmem = kSlots + kStages * 2 * kOperandColumns;
  static constexpr int kTmemColumns = kUsedTmem <= 128 ? 128 : kUsedTmem <= 256 ? 256 : 512;

  static_assert(kSlots % 16 == 0 && kSlots <= 128, "N, whose scales are one block of 128 rows");
  static_assert(kStageBytes % 1024 == 0 && kWeightBytes % 1024 == 0,
                "swizzled operands start at multiples of 1024 bytes");
  static_assert(kStages >= 2 && (2 * kStages + 1) * 8 + 4 <= kSmallBytes);
  static_assert(kSharedBytes <= 232448, "227 KB of shared memory a CTA");
  static_assert(kUsedTmem <= 512 && kTmemColumns * kCtasPerSm <= 512, "512 columns of tensor memory an SM");
};

template <class Traits>
struct Nvfp4GemmShared {
  uint8_t* stages;  // [kStages] weight chunk, activation chunk
  float* staged;    // [kStagedSlots][kStagedStride]
  uint64_t* full;
  uint64_t* empty;
  uint64_t* done;
  uint32_t* tmem;

  __device__ explicit Nvfp4GemmShared(uint8_t* base) {
    stages = base + (1024 - ptx::SharedAddress(base) % 1024) % 1024;
    staged = reinterpret_cast<float*>(stages + Traits::kStages * Traits::kStageBytes);
    full = reinterpret_cast<uint64_t*>(staged + Traits::kStagedBytes / 4);
    empty = full + Traits::kStages;
    done = empty + Traits::kStages;
    tmem = reinterpret_cast<uint32_t*>(done + 1);
  }
};

// The producer's role, one thread. `weights` and `activations` are this CTA's tiles.
template <class Traits>
__device__ void ProduceChunks(const Nvfp4GemmShared<Traits>& shared, const uint8_t* weights,
                              const uint8_t* activations, int32_t chunks) {
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const int32_t stage = chunk % Traits::kStages;
    ptx::MbarrierWait(&shared.empty[stage], (chunk / Traits::kStages + 1) % 2);
    ptx::MbarrierArriveExpectTx(&shared.full[stage], Traits::kStageBytes);
    uint8_t* target = shared.stages + stage * Traits::kStageBytes;
    ptx::CpAsyncBulk(target, weights + int64_t{chunk} * Traits::kWeightBytes, Traits::kWeightBytes,
                     &shared.full[stage], ptx::kEvictFirst);
    ptx::CpAsyncBulk(target + Traits::kWeightBytes, activations + int64_t{chunk} * Traits::kActivationBytes,
                     Traits::kActivationBytes, &shared.full[stage], ptx::kEvictLast);
  }
}

// The role of the thread that issues the products of `steps` steps of 64 k.
template <class Traits>
__device__ void MultiplyChunks(const Nvfp4GemmShared<Traits>& shared, uint32_t tmem, int32_t steps) {
  constexpr uint32_t kInstruction = ptx::MakeNvfp4InstructionDescriptor(kNvfp4RowTile, Traits::kSlots);
  const int32_t chunks = (steps + kNvfp4ChunkSteps - 1) / kNvfp4ChunkSteps;
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const int32_t stage = chunk % Traits::kStages;
    ptx::MbarrierWait(&shared.full[stage], chunk / Traits::kStages % 2);
    const uint32_t base = ptx::SharedAddress(shared.stages + stage * Traits::kStageBytes);
    const auto describe_codes = [](uint32_t address) {
      return ptx::MakeSmemDescriptor(address, 0, 1024, ptx::SmemSwizzle::k128);
    };
    const auto describe_scales = [](uint32_t address) {
      return ptx::MakeSmemDescriptor(address, 0, 128, ptx::SmemSwizzle::kNone);
    };
    const uint64_t weights = describe_codes(base), activations = describe_codes(base + Traits::kWeightBytes);
    const uint64_t weight_scales = describe_scales(base + kNvfp4RowTile * kNvfp4RowBytes);
    const uint64_t activation_scales =
        describe_scales(base + Traits::kWeightBytes + Traits::kSlots * kNvfp4RowBytes);
    const uint32_t scale_columns = tmem + Traits::kSlots + stage * 2 * Traits::kOperandColumns;
    for (int32_t step = 0; step < min(kNvfp4ChunkSteps, steps - chunk * kNvfp4ChunkSteps); ++step) {
      const uint32_t a_scales = scale_columns + step * Traits::kStepColumns;
      const uint32_t b_scales = a_scales + Traits::kOperandColumns;
      ptx::Tcgen05Cp32x128bWarpx4(a_scales,
                                  ptx::AdvanceSmemDescriptor(weight_scales, step * kNvfp4StepScaleBytes));
      ptx::Tcgen05Cp32x128bWarpx4(b_scales,
                                  ptx::AdvanceSmemDescriptor(activation_scales, step * kNvfp4StepScaleBytes));
      ptx::Tcgen05MmaNvfp4(tmem, ptx::AdvanceSmemDescriptor(weights, step * kNvfp4StepK / 2),
                           ptx::AdvanceSmemDescriptor(activations, step * kNvfp4StepK / 2), kInstruction,
                           a_scales, b_scales, chunk + step > 0);
    }
    ptx::Tcgen05Commit(&shared.empty[stage]);
  }
  ptx::Tcgen05Commit(shared.done);
}

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

template <class Traits, Nvfp4Epilogue kEpilogue>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kCtasPerSm)
    Nvfp4GemmKernel(const __grid_constant__ Nvfp4GemmParams p) {
  const Nvfp4Output o = {FindTile(p.tiles, blockIdx.y), static_cast<int32_t>(blockIdx.y),
                         static_cast<int32_t>(blockIdx.x)};
  if (o.tile.first >= o.tile.end) return;
  extern __shared__ uint8_t shared_base[];
  const Nvfp4GemmShared<Traits> shared(shared_base);
  const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  constexpr int kProducerWarp = Traits::kEpilogueWarps, kIssuerWarp = kProducerWarp + 1;
  if (warp == kProducerWarp && ptx::ElectSync()) {
    for (int32_t stage = 0; stage < Traits::kStages; ++stage) {
      ptx::MbarrierInit(&shared.full[stage], 1);
      ptx::MbarrierInit(&shared.empty[stage], 1);
    }
    ptx::MbarrierInit(shared.done, 1);
    ptx::FenceBarrierInit();
  }
  __syncwarp();
  if (warp == kIssuerWarp) {
    ptx::Tcgen05Alloc(shared.tmem, Traits::kTmemColumns);
    ptx::Tcgen05RelinquishAllocPermit();
  }
  ptx::Tcgen05FenceBeforeThreadSync();
  __syncthreads();
  ptx::Tcgen05FenceAfterThreadSync();
  const uint32_t tmem = *shared.tmem;
  const int32_t chunks = Nvfp4Chunks(p.weights.k);
  if (warp == kProducerWarp) {
    if (ptx::ElectSync()) {
      const int64_t row_tiles = p.weights.n / kNvfp4RowTile;
      ProduceChunks<Traits>(
          shared, p.weights.data + (o.tile.matrix * row_tiles + o.row_tile) * chunks * Traits::kWeightBytes,
          p.x.data + int64_t{o.tile_index} * chunks * Traits::kActivationBytes, chunks);
    }
  } else if (warp == kIssuerWarp) {
    if (ptx::ElectSync()) MultiplyChunks<Traits>(shared, tmem, p.weights.k / kNvfp4StepK);
  } else {
    FinishTile<kEpilogue>(p, o, shared, tmem, warp);
  }
  __syncwarp();  // one lane of two warps did the work
  ptx::Tcgen05FenceBeforeThreadSync();
  __syncthreads();
  if (warp == kIssuerWarp) {
    ptx::Tcgen05FenceAfterThreadSync();
    ptx::Tcgen05Dealloc(tmem, Traits::kTmemColumns);
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_SM100_CUH_
