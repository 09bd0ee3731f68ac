// FMHA prefill for sm_90: the kernel.
//
// Persistent CTAs, one an SM, take work items (64 query rows a consumer warp group, all of one KV head) from a counter,
// the longest first. One producer warp feeds a ring of shared-memory slots through TMA, keys and values of 64 positions by
// turns; others copy the queries of the item after. Every consumer warp group multiplies its own rows with the same
// slots: S = Q K^T into registers, softmax, O += P V with P from registers. The scores of the next tile and the product
// with the values of this one are started together. (Warp groups that take turns to start theirs were no faster.)
//
// Sums and their order are those of FmhaDecode: see fmha_numerics.cuh.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SM90_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SM90_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_prefill_sm90_consumer.cuh"
#include "kernels/cuda/fmha/fmha_prefill_sm90_producer.cuh"
#include "kernels/cuda/fmha/fmha_prefill_sm90_traits.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace tessera::cuda {

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    FmhaPrefillKernel(const __grid_constant__ FmhaPrefillArgs args, const __grid_constant__ CUtensorMap k_map,
                      const __grid_constant__ CUtensorMap v_map) {
  extern __shared__ uint8_t shared_base[];
  GridDependencyLaunch();
  const FmhaPrefillShared<Traits> shared(shared_base);
  const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    ptx::PrefetchTensorMap(&k_map);
    ptx::PrefetchTensorMap(&v_map);
    shared.Init();
  }
  GridDependencyWait();
  __syncthreads();
  if (warp < Traits::kConsumerWarps) {
    ptx::SetmaxnregInc<Traits::kConsumerRegisters>();
    FmhaPrefillConsume<Traits>(args, shared, warp, lane);
  } else {
    ptx::SetmaxnregDec<Traits::kProducerRegisters>();
    if (warp == Traits::kConsumerWarps) FmhaPrefillProduce<Traits>(args, &k_map, &v_map, shared, lane);
    const int32_t group = warp - Traits::kConsumerWarps - 1;
    if (group >= 0 && group < Traits::kWarpGroups) FmhaPrefillCopyQueries<Traits>(args, shared, group, lane);
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SM90_CUH_
