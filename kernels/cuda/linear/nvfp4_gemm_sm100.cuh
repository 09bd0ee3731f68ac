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
// Where many slots fall to a matrix (prompts), a pair of CTAs shares the slots of two row tiles: the products of both are one
// instruction (cta_group::2), which the even CTA issues, and each CTA loads half of the activations.
//
//   peer     1 (odd CTA)          a stage of the odd CTA holds its chunk; in the even CTA
//
// Each stage has its own columns of scales: a copy to tensor memory is not ordered after the products that read what it
// overwrites, but a stage is filled again only when its products are done.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_SM100_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_SM100_CUH_

#include <cstdint>

#include "kernels/cuda/linear/nvfp4_gemm.h"
#include "kernels/cuda/linear/nvfp4_gemm_launch.h"
#include "kernels/cuda/linear/nvfp4_gemm_sm100_finish.cuh"
#include "kernels/cuda/linear/nvfp4_gemm_sm100_traits.cuh"
#include "kernels/cuda/linear/nvfp4_tiles.h"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/instruction_descriptor.h"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/smem_descriptor.h"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tcgen05.cuh"
#include "kernels/cuda/ptx/tcgen05_pair.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace tessera::cuda {

// The producer's role, one thread. `weights` and `activations` are this CTA's tiles; `rank` is its place in a pair.
template <class Traits>
__device__ void ProduceChunks(const Nvfp4GemmShared<Traits>& shared, const uint8_t* weights,
                              const uint8_t* activations, int32_t chunks, int32_t rank) {
  constexpr int32_t kCodeBytes = Traits::kLoadedSlots * kNvfp4RowBytes;
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const int32_t stage = chunk % Traits::kStages;
    ptx::MbarrierWait(&shared.empty[stage], (chunk / Traits::kStages + 1) % 2);
    ptx::MbarrierArriveExpectTx(&shared.full[stage], Traits::kStageBytes);
    uint8_t* target = shared.stages + stage * Traits::kStageBytes;
    ptx::CpAsyncBulk(target, weights + int64_t{chunk} * Traits::kWeightBytes, Traits::kWeightBytes,
                     &shared.full[stage], ptx::kEvictFirst);
    target += Traits::kWeightBytes;
    const uint8_t* source = activations + int64_t{chunk} * Traits::kActivationBytes;
    if constexpr (Traits::kPair) {
      ptx::CpAsyncBulk(target, source + rank * kCodeBytes, kCodeBytes, &shared.full[stage], ptx::kEvictLast);
      ptx::CpAsyncBulk(target + kCodeBytes, source + 2 * kCodeBytes, kNvfp4ScaleBytes, &shared.full[stage],
                       ptx::kEvictLast);
    } else {
      ptx::CpAsyncBulk(target, source, Traits::kActivationBytes, &shared.full[stage], ptx::kEvictLast);
    }
  }
}

// The odd CTA of a pair tells the even one which of its stages are full; one thread.
template <class Traits>
__device__ void AnnounceChunks(const Nvfp4GemmShared<Traits>& shared, int32_t chunks) {
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const int32_t stage = chunk % Traits::kStages;
    ptx::MbarrierWait(&shared.full[stage], chunk / Traits::kStages % 2);
    ptx::MbarrierArriveCluster(&shared.peer[stage], 0);
  }
}

// The tcgen05 instructions of one thread, for one CTA or for the pair.
template <bool kPair>
struct Nvfp4Products {
  static __device__ __forceinline__ void Multiply(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                                                  uint32_t a_scales, uint32_t b_scales, bool accumulate) {
    if constexpr (kPair) {
      ptx::Tcgen05MmaNvfp4Pair(d, a, b, instruction, a_scales, b_scales, accumulate);
    } else {
      ptx::Tcgen05MmaNvfp4(d, a, b, instruction, a_scales, b_scales, accumulate);
    }
  }
  static __device__ __forceinline__ void CopyScales(uint32_t address, uint64_t source) {
    if constexpr (kPair) {
      ptx::Tcgen05Cp32x128bWarpx4Pair(address, source);
    } else {
      ptx::Tcgen05Cp32x128bWarpx4(address, source);
    }
  }
  static __device__ __forceinline__ void Commit(uint64_t* barrier) {
    if constexpr (kPair) {
      ptx::Tcgen05CommitPair(barrier);
    } else {
      ptx::Tcgen05Commit(barrier);
    }
  }
};

// The role of the thread that issues the products of `steps` steps of 64 k.
template <class Traits>
__device__ void MultiplyChunks(const Nvfp4GemmShared<Traits>& shared, uint32_t tmem, int32_t steps) {
  using Products = Nvfp4Products<Traits::kPair>;
  constexpr uint32_t kInstruction =
      ptx::MakeNvfp4InstructionDescriptor(kNvfp4RowTile * (Traits::kPair ? 2 : 1), Traits::kSlots);
  const int32_t chunks = (steps + kNvfp4ChunkSteps - 1) / kNvfp4ChunkSteps;
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const int32_t stage = chunk % Traits::kStages;
    ptx::MbarrierWait(&shared.full[stage], chunk / Traits::kStages % 2);
    if constexpr (Traits::kPair) ptx::MbarrierWaitCluster(&shared.peer[stage], chunk / Traits::kStages % 2);
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
        describe_scales(base + Traits::kWeightBytes + Traits::kLoadedSlots * kNvfp4RowBytes);
    const uint32_t scale_columns = tmem + Traits::kSlots + stage * 2 * Traits::kOperandColumns;
    for (int32_t step = 0; step < min(kNvfp4ChunkSteps, steps - chunk * kNvfp4ChunkSteps); ++step) {
      const uint32_t a_scales = scale_columns + step * Traits::kStepColumns;
      const uint32_t b_scales = a_scales + Traits::kOperandColumns;
      Products::CopyScales(a_scales, ptx::AdvanceSmemDescriptor(weight_scales, step * kNvfp4StepScaleBytes));
      Products::CopyScales(b_scales,
                           ptx::AdvanceSmemDescriptor(activation_scales, step * kNvfp4StepScaleBytes));
      Products::Multiply(tmem, ptx::AdvanceSmemDescriptor(weights, step * kNvfp4StepK / 2),
                         ptx::AdvanceSmemDescriptor(activations, step * kNvfp4StepK / 2), kInstruction,
                         a_scales, b_scales, chunk + step > 0);
    }
    Products::Commit(&shared.empty[stage]);
  }
  Products::Commit(shared.done);
}

template <class Traits>
__device__ __forceinline__ void SyncCtas() {
  ptx::Tcgen05FenceBeforeThreadSync();
  if constexpr (Traits::kPair) {
    ptx::ClusterSync();
  } else {
    __syncthreads();
  }
  ptx::Tcgen05FenceAfterThreadSync();
}

template <class Traits, Nvfp4Epilogue kEpilogue>
__device__ __forceinline__ void ComputeNvfp4Tile(const Nvfp4GemmParams& p) {
  const Nvfp4Output o = {FindTile(p.tiles, blockIdx.y), static_cast<int32_t>(blockIdx.y),
                         static_cast<int32_t>(blockIdx.x)};
  if (o.tile.first >= o.tile.end) return;
  extern __shared__ uint8_t shared_base[];
  const Nvfp4GemmShared<Traits> shared(shared_base);
  const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int32_t rank = Traits::kPair ? ptx::ClusterCtaRank() : 0;
  constexpr int kProducerWarp = Traits::kEpilogueWarps, kIssuerWarp = kProducerWarp + 1;
  if (warp == kProducerWarp && ptx::ElectSync()) {
    for (int32_t stage = 0; stage < Traits::kStages; ++stage) {
      ptx::MbarrierInit(&shared.full[stage], 1);
      ptx::MbarrierInit(&shared.empty[stage], 1);
      if constexpr (Traits::kPair) ptx::MbarrierInit(&shared.peer[stage], 1);
    }
    ptx::MbarrierInit(shared.done, 1);
    ptx::FenceBarrierInit();
  }
  __syncwarp();
  if (warp == kIssuerWarp) {
    if constexpr (Traits::kPair) {
      ptx::Tcgen05AllocPair(shared.tmem, Traits::kTmemColumns);
      ptx::Tcgen05RelinquishAllocPermitPair();
    } else {
      ptx::Tcgen05Alloc(shared.tmem, Traits::kTmemColumns);
      ptx::Tcgen05RelinquishAllocPermit();
    }
  }
  SyncCtas<Traits>();
  const uint32_t tmem = *shared.tmem;
  const int32_t chunks = Nvfp4Chunks(p.weights.k);
  if (warp == kProducerWarp) {
    if (ptx::ElectSync()) {
      const int64_t row_tiles = p.weights.n / kNvfp4RowTile;
      ProduceChunks<Traits>(
          shared, p.weights.data + (o.tile.matrix * row_tiles + o.row_tile) * chunks * Traits::kWeightBytes,
          p.x.data + int64_t{o.tile_index} * chunks * Traits::kActivationBytes, chunks, rank);
    }
  } else if (warp == kIssuerWarp) {
    if (ptx::ElectSync()) {
      if (rank == 0) {
        MultiplyChunks<Traits>(shared, tmem, p.weights.k / kNvfp4StepK);
      } else {
        AnnounceChunks<Traits>(shared, chunks);
      }
    }
  } else {
    FinishTile<kEpilogue>(p, o, shared, tmem, warp);
  }
  __syncwarp();  // one lane of two warps did the work
  SyncCtas<Traits>();
  if (warp == kIssuerWarp) {
    if constexpr (Traits::kPair) {
      ptx::Tcgen05DeallocPair(tmem, Traits::kTmemColumns);
    } else {
      ptx::Tcgen05Dealloc(tmem, Traits::kTmemColumns);
    }
  }
}

template <class Traits, Nvfp4Epilogue kEpilogue>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kCtasPerSm)
    Nvfp4GemmKernel(const __grid_constant__ Nvfp4GemmParams p) {
  ComputeNvfp4Tile<Traits, kEpilogue>(p);
}

template <class Traits, Nvfp4Epilogue kEpilogue>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(Traits::kThreads, Traits::kCtasPerSm)
    Nvfp4GemmPairKernel(const __grid_constant__ Nvfp4GemmParams p) {
  ComputeNvfp4Tile<Traits, kEpilogue>(p);
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_SM100_CUH_
