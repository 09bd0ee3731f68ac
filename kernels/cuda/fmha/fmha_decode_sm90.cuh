// FMHA decode for sm_90: the kernel.
//
// A few persistent CTAs an SM take work items (sequence, split, KV head) from a counter: SMs differ in how fast memory
// serves them, by a third on an H200, so an even share would leave most of them waiting for the slowest. The last warp
// feeds a ring of shared-memory slots, the others attend (fmha_decode_sm90_producer.cuh, fmha_decode_sm90_consumer.cuh).
//
// Where sequences are many, an item is a whole sequence, the splits of which the CTA folds in registers. The partial results
// of other splits are combined, in split order, when all are there: by the CTAs of the sequence, if each has but that one
// item, else by all CTAs when no items are left (fmha_decode_combine.cuh). An item's end waits for nothing: publishing each
// split cost a third of the time under load. How a sequence was divided does not show in its result.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_launch.h"
#include "kernels/cuda/fmha/fmha_decode_sm90_consumer.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm90_producer.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm90_traits.cuh"
#include "kernels/cuda/launch.h"

namespace tessera::cuda {

template <class Traits>
__device__ __forceinline__ void InitBarriers(const FmhaDecodeArgs& args, const FmhaShared<Traits>& shared) {
  // With key slots each lane of the producer's says when its copies are done, and one that the mask is there.
  const uint32_t filled = args.p.key_slots != nullptr ? 33 : 1;
  for (int32_t slot = 0; slot < Traits::kSlots; ++slot) {
    ptx::MbarrierInit(&shared.full[slot], filled);
    ptx::MbarrierInit(&shared.empty[slot], Traits::kConsumerWarps);
  }
  for (int32_t buffer = 0; buffer < Traits::kQueryBuffers; ++buffer) {
    ptx::MbarrierInit(&shared.query_full[buffer], 1);
    ptx::MbarrierInit(&shared.query_empty[buffer], Traits::kConsumerWarps);
  }
  shared.items.Init(Traits::kConsumerWarps);
  ptx::FenceBarrierInit();
}

// Zeroes the query rows that do not exist: no one writes them, but all are multiplied.
template <class Traits>
__device__ __forceinline__ void ClearQueryPadding(const FmhaDecodeArgs& args,
                                                  const FmhaShared<Traits>& shared) {
  for (int32_t box = 0; box < Traits::kQueryBuffers * Traits::kKeyBoxes; ++box) {
    uint4* rows = reinterpret_cast<uint4*>(shared.queries + box * Traits::kQueryBoxBytes);
    for (int32_t i = args.group_rows * 8 + threadIdx.x; i < Traits::kRows * 8; i += Traits::kThreads) {
      rows[i] = make_uint4(0, 0, 0, 0);
    }
  }
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kCtasPerSm)
    FmhaDecodeKernel(const __grid_constant__ FmhaDecodeArgs args,
                     const __grid_constant__ FmhaTensorMaps maps) {
  extern __shared__ uint8_t shared_base[];
  GridDependencyLaunch();
  const FmhaShared<Traits> shared(shared_base);
  const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (warp == Traits::kConsumerWarps && lane == 0) {
    ptx::PrefetchTensorMap(&maps.q);
    ptx::PrefetchTensorMap(&maps.k);
    ptx::PrefetchTensorMap(&maps.v);
    InitBarriers(args, shared);
  }
  ClearQueryPadding(args, shared);
  GridDependencyWait();
  if (warp == 0) ScanItems<Traits::kFolds>(args, shared.sequences, lane);
  __syncthreads();
  if (warp == Traits::kConsumerWarps) {
    FmhaProducer<Traits>(args, maps, shared, lane).Run();
  } else {
    FmhaConsumer<Traits>(args, shared, warp, lane).Run();
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_CUH_
