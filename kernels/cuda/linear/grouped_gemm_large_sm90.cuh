// Grouped GEMM for sm_90 with wgmma: the kernel for prompts.
//
// A CTA computes tiles of 128 features x up to 128 slots, one after the other: the (slot tile, feature tile) pairs are dealt
// out in turn, feature tiles first, so that what runs at the same time shares activations and an expert's weights in L2.
// Weights are the A operand, decoded by each consumer warp into registers; activations are the B operand, from shared
// memory, as many columns as the tile has slots, to 32, 64 or 128.
//
//   consumers   two warp groups, 64 features each: decode group g while g - 1 is multiplied, then issue it
//   loader      one thread: activations, in the order of the slots, a group of 64 k a stage, through TMA
//   streamer    one warp: weights, in bulk copies
//
//   barrier         arrivals                completes when
//   tokens_full     1 + bytes               a stage holds its group
//   tokens_empty    a consumer warp each    its products are done
//   weights_full    1 + bytes               a stage holds a piece of the eight row tiles
//   weights_empty   a consumer warp each    the piece is in registers
//
// The sums are those of the small tiles, bit for bit: the same products step by step (wgmma sums as mma.sync does), a
// chunk's sums from zero, the chunks added in order.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_SM90_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_SM90_CUH_

#include <cuda.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/grouped_gemm_large_consume.cuh"
#include "kernels/cuda/linear/grouped_gemm_large_produce.cuh"

namespace tessera::cuda {

template <WeightFormat kFormat, GemmEpilogue kEpilogue>
__global__ void __launch_bounds__(LargeGemm<kFormat>::kThreads, 1)
    GroupedGemmLargeKernel(const __grid_constant__ GroupedGemmParams p,
                           const __grid_constant__ GemmGeometry g,
                           const __grid_constant__ CUtensorMap x_map) {
  using Gemm = LargeGemm<kFormat>;
  extern __shared__ uint8_t shared_base[];
  const LargeGemmShared<Gemm> shared(shared_base);
  const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) shared.InitBarriers();
  __syncthreads();
  GridDependencyWait();
  GridDependencyLaunch();
  const LargeGemmItems items(p, g);
  if (warp < Gemm::kConsumerWarps) {
    ptx::SetmaxnregInc<Gemm::kConsumerRegisters>();
    ConsumeLargeItems<Gemm, kEpilogue>(p, g, shared, items, warp);
    return;
  }
  ptx::SetmaxnregDec<Gemm::kProducerRegisters>();
  if (warp == Gemm::kConsumerWarps) {
    if (threadIdx.x % 32 == 0) LoadTokens<Gemm>(p, g, &x_map, shared, items);
  } else if (warp == Gemm::kConsumerWarps + 1) {
    StreamWeights<Gemm>(p, g, shared, items);
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_SM90_CUH_
