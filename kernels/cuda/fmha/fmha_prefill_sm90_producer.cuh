// FMHA prefill for sm_90: the warps that feed the consumers, one for items, keys and values, the others for queries.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SM90_PRODUCER_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SM90_PRODUCER_CUH_

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_prefill_sm90_traits.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace tessera::cuda {

// Zeroes the rows of a slot from `valid` on.
template <class Traits>
__device__ __forceinline__ void ZeroRows(uint8_t* slot, int32_t valid, int32_t lane) {
  for (int32_t box = 0; box < Traits::kBoxes; ++box) {
    uint4* rows = reinterpret_cast<uint4*>(slot + box * Traits::kBoxBytes);
    for (int32_t i = valid * 8 + lane; i < kFmhaTileKeys * 8; i += 32) rows[i] = make_uint4(0, 0, 0, 0);
  }
  ptx::FenceProxyAsyncShared();
  __syncwarp();
}

// The producer's role: takes items, streams their keys and values through the ring.
template <class Traits>
__device__ void FmhaPrefillProduce(const FmhaPrefillArgs& args, const CUtensorMap* k_map,
                                   const CUtensorMap* v_map, const FmhaPrefillShared<Traits>& shared,
                                   int32_t lane) {
  const int32_t block_size = args.p.block_size;
  const int32_t rows_per_box = min(block_size, kFmhaTileKeys);
  const int32_t row_boxes = kFmhaTileKeys / rows_per_box;
  FmhaPrefillItems<Traits::kRows> items(args, lane);
  FmhaRing<FmhaPrefillQueue::kSlots> queue;
  FmhaRing<Traits::kSlots> ring;
  bool landed = false;
  int32_t index = blockIdx.x;
  while (true) {
    const FmhaPrefillItem item = items.Get(index);
    shared.queue.Put(queue, item, lane);
    if (item.IsNone()) break;
    int32_t next = 0;
    if (lane == 0) next = gridDim.x + atomicAdd(args.next_item, 1);
    const int32_t* table = args.p.block_table + int64_t{item.chunk.table_row} * args.p.block_table_stride;
    const int32_t last_block = (item.chunk.length - 1) >> args.block_shift;
    // Lane b loads box b: rows b / kBoxes, columns b % kBoxes.
    const int32_t row_box = lane / Traits::kBoxes, column_box = lane % Traits::kBoxes;
    const int32_t target = column_box * Traits::kBoxBytes + row_box * rows_per_box * 128;
    int32_t next_block = table[min((item.begin + row_box * rows_per_box) >> args.block_shift, last_block)];
    for (int32_t key = item.begin; key < item.end; key += kFmhaTileKeys) {
      const int32_t box_key = key + row_box * rows_per_box;
      const int32_t row =
          (next_block * args.p.num_kv_heads + item.kv_head) * block_size + (box_key & (block_size - 1));
      next_block = table[min((box_key + kFmhaTileKeys) >> args.block_shift, last_block)];
      for (int32_t value = 0; value < 2; ++value) {
        uint8_t* slot = shared.slots + ring.slot * Traits::kSlotBytes;
        // What lies past the sequence's end may be NaN, which no weight of 0 would undo.
        const bool mends = value && key + kFmhaTileKeys > item.chunk.length;
        uint64_t* barrier = mends ? shared.landed : &shared.full[ring.slot];
        ptx::MbarrierWait(&shared.empty[ring.slot], ring.phase ^ 1);
        if (lane == 0) ptx::MbarrierArriveExpectTx(barrier, Traits::kSlotBytes);
        __syncwarp();
        if (row_box < row_boxes) {
          ptx::CpAsyncBulkTensor2d(slot + target, value ? v_map : k_map, column_box * Traits::kBoxColumns,
                                   row, barrier, ptx::kEvictLast);
        }
        if (mends) {
          ptx::MbarrierWait(shared.landed, landed);
          landed = !landed;
          ZeroRows<Traits>(slot, item.chunk.length - key, lane);
          if (lane == 0) ptx::MbarrierArrive(&shared.full[ring.slot]);
        }
        ring.Advance();
      }
    }
    index = __shfl_sync(~0u, next, 0);
  }
  // Every CTA's last take is behind it when it is done: the last one leaves the counters as it found them.
  if (lane == 0 && ptx::AtomAddAcqRelGpu(args.done_ctas, 1) == static_cast<int32_t>(gridDim.x) - 1) {
    *args.next_item = 0;
    *args.done_ctas = 0;
  }
}

// The role of the warps that copy queries into shared memory, one a warp group: TMA could not place rows of every group
// size.
template <class Traits>
__device__ void FmhaPrefillCopyQueries(const FmhaPrefillArgs& args, const FmhaPrefillShared<Traits>& shared,
                                       int32_t group, int32_t lane) {
  constexpr int32_t kChunks = Traits::kHeadDim / 8;  // of 16 bytes
  FmhaRing<FmhaPrefillQueue::kSlots> queue;
  const __nv_bfloat16* q = static_cast<const __nv_bfloat16*>(args.p.q);
  uint8_t* target = shared.queries + group * Traits::kSlotBytes;
  uint32_t phase = 0;
  while (true) {
    const FmhaPrefillItem& item = shared.queue.Take(queue);
    if (item.IsNone()) break;
    int32_t sources[2];  // rows of q for this lane's rows of either half; -1: none
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t row = item.first_row + group * 64 + half * 32 + lane, token = row / args.group;
      const int32_t head = item.kv_head * args.group + row - token * args.group;
      sources[half] = token < item.chunk.num_tokens
                          ? (item.chunk.first_token + token) * args.p.num_query_heads + head
                          : -1;
    }
    shared.queue.Release(queue, lane);
    ptx::MbarrierWait(&shared.queries_empty[group], phase ^ 1);
    phase ^= 1;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
#pragma unroll 4
      for (int32_t i = lane; i < 32 * kChunks; i += 32) {
        const int32_t chunk = i % kChunks, row = i / kChunks;
        const int32_t source = __shfl_sync(~0u, sources[half], row);
        ptx::CpAsync16(
            target + chunk / 8 * Traits::kBoxBytes + (half * 32 + row) * 128 + ((chunk ^ row) & 7) * 16,
            q + int64_t{max(source, 0)} * Traits::kHeadDim + chunk * 8, source >= 0 ? 16 : 0);
      }
    }
    ptx::CpAsyncCommit();
    ptx::CpAsyncWait<0>();
    if constexpr (!Traits::kQueriesInRegisters) ptx::FenceProxyAsyncShared();
    __syncwarp();
    if (lane == 0) ptx::MbarrierArrive(&shared.queries_full[group]);
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SM90_PRODUCER_CUH_
