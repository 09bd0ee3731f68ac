// FMHA decode for sm_100: the kernel.
//
// As on sm_90, persistent CTAs take work items (sequence, split, KV head) and query rows of one KV head are packed into
// the N side: S^T = K Q^T and O^T = V^T P^T. The tensor cores work on 128 rows at least, so keys (of S^T) and value
// dimensions (of O^T) fill them, while a group of 8 query rows as M would leave 15 of 16 lanes of tensor memory, and of
// the softmax's threads, idle. P^T goes through shared memory, since only the M side may come from tensor memory.
//
// Roles: warp 4 feeds a ring of slots through TMA, warp 5 issues the matrix products, and the threads of warps 0 to 3 own
// a key each while they weigh it (a lane of S^T) and a value dimension each while they rescale and write (a lane of
// O^T). Scores are double-buffered in tensor memory: those of tile t + 1 are computed while tile t is weighed.
//
//   barrier   arrivals                  completes when
//   full      1 + bytes   (TMA)         a slot holds its keys or values; e4m3: 4 (converters)
//   empty     1 (commit)                the products that read the slot are done
//   q_full    1 + bytes   (TMA)         the item's queries are there
//   q_empty   1 (commit)                the item's last scores are computed
//   s_full    1 (commit)                a tile's scores are there
//   p_full    4 (softmax warps)         a tile's weights are in shared memory; its scores were read; O was rescaled
//   p_empty   1 (commit)                a tile's values are added; after an item's last tile, O is complete
//
// e4m3 keys and values come through loads of their own (load_full, load_empty), which four more warps convert to bf16, exactly,
// into the slots.
//
// Scores and O need no "empty" barrier of their own: whoever waits for p_full of a tile knows that its scores, and the
// output of the item before, were read.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_sm100_convert.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm100_producer.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm100_products.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm100_softmax.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm100_traits.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tcgen05.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace tessera::cuda {

// Zeroes what no one writes but the products read: query rows, and weights of rows, that do not exist.
template <class Traits>
__device__ __forceinline__ void ClearPadding(const FmhaDecodeArgs& args,
                                             const FmhaSm100Shared<Traits>& shared) {
  const uint4 zero = make_uint4(0, 0, 0, 0);
  for (int32_t box = 0; box < Traits::kKeyBoxes; ++box) {
    uint4* rows = reinterpret_cast<uint4*>(shared.queries + box * Traits::kQueryBoxBytes);
    for (int32_t i = args.group_rows * 8 + threadIdx.x; i < Traits::kColumns * 8; i += Traits::kThreads)
      rows[i] = zero;
  }
  uint4* weights = reinterpret_cast<uint4*>(shared.weights);
  for (int32_t i = Traits::kRows / 8 * Traits::kTileKeys + threadIdx.x; i < Traits::kWeightBytes / 16;
       i += Traits::kThreads) {
    weights[i] = zero;
  }
  ptx::FenceProxyAsyncShared();
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kCtasPerSm)
    FmhaDecodeSm100Kernel(const __grid_constant__ FmhaDecodeArgs args,
                          const __grid_constant__ FmhaTensorMaps maps) {
  extern __shared__ uint8_t shared_base[];
  GridDependencyLaunch();
  const FmhaSm100Shared<Traits> shared(shared_base);
  const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  constexpr int kProducerWarp = Traits::kSoftmaxWarps, kIssuerWarp = kProducerWarp + 1;
  if (warp == kProducerWarp && lane == 0) {
    ptx::PrefetchTensorMap(&maps.q);
    ptx::PrefetchTensorMap(&maps.k);
    ptx::PrefetchTensorMap(&maps.v);
    for (int32_t slot = 0; slot < Traits::kSlots; ++slot) {
      ptx::MbarrierInit(&shared.full[slot], Traits::kIsE4m3 ? Traits::kConvertWarps : 1);
      ptx::MbarrierInit(&shared.empty[slot], 1);
      if constexpr (Traits::kIsE4m3) {
        ptx::MbarrierInit(&shared.load_full[slot], 1);
        ptx::MbarrierInit(&shared.load_empty[slot], Traits::kConvertWarps);
      }
    }
    ptx::MbarrierInit(shared.q_full, 1);
    ptx::MbarrierInit(shared.q_empty, 1);
    ptx::MbarrierInit(&shared.s_full[0], 1);
    ptx::MbarrierInit(&shared.s_full[1], 1);
    ptx::MbarrierInit(shared.p_full, Traits::kSoftmaxWarps);
    ptx::MbarrierInit(shared.p_empty, 1);
    shared.items.Init(Traits::kSoftmaxWarps + 1 + Traits::kConvertWarps);
    ptx::FenceBarrierInit();
  }
  if (warp == kIssuerWarp) {
    ptx::Tcgen05Alloc(shared.tmem, Traits::kTmemColumns);
    ptx::Tcgen05RelinquishAllocPermit();
  }
  ClearPadding(args, shared);
  GridDependencyWait();
  if (warp == 0) ScanItems</*kFolds=*/false>(args, shared.sequences, lane);
  ptx::Tcgen05FenceBeforeThreadSync();
  __syncthreads();
  ptx::Tcgen05FenceAfterThreadSync();
  const uint32_t tmem = *shared.tmem;
  if (warp == kProducerWarp) {
    ProduceTilesSm100<Traits>(args, maps, shared, lane);
  } else if (warp == kIssuerWarp) {
    MultiplyTiles<Traits>(args, shared, tmem, lane);
  } else if (warp < Traits::kSoftmaxWarps) {
    AttendTiles<Traits>(args, shared, tmem, warp);
  } else if constexpr (Traits::kIsE4m3) {
    ConvertTiles<Traits>(shared, threadIdx.x - 32 * (kIssuerWarp + 1));
  }
  ptx::Tcgen05FenceBeforeThreadSync();
  __syncthreads();
  if (warp == kIssuerWarp) {
    ptx::Tcgen05FenceAfterThreadSync();
    ptx::Tcgen05Dealloc(tmem, Traits::kTmemColumns);
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_CUH_
