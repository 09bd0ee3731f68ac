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
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_prefill_items.cuh"
#include "kernels/cuda/fmha/fmha_prefill_softmax.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma_tiles.cuh"

namespace tessera::cuda {

template <int kHeadDimension, int kNumWarpGroups, bool kQueriesHeld, FmhaTotals kTotalsWhere>
struct FmhaPrefillTraits {
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kWarpGroups = kNumWarpGroups;  // consumers
  static constexpr int kConsumerWarps = 4 * kWarpGroups;
  static constexpr int kThreads = 128 * (kWarpGroups + 1);
  static constexpr int kRows = 64 * kWarpGroups;
  static constexpr bool kQueriesInRegisters = kQueriesHeld;
  static constexpr FmhaTotals kTotals = kTotalsWhere;
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = kWarpGroups == 2 ? 224 : 152;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;  // of each thread until they are moved
  static_assert(kWarpGroups == 2 || kWarpGroups == 3);
  static_assert(kProducerRegisters + kWarpGroups * kConsumerRegisters <= (kWarpGroups + 1) * kLaunchRegisters,
                "taking more registers than were given back would wait for ever");

  static constexpr int kBoxColumns = 64;  // 128 bytes, the width of the swizzle
  static constexpr int kBoxes = kHeadDim / kBoxColumns;
  static constexpr int kBoxBytes = kFmhaTileKeys * 128;  // a box of 64 rows
  static constexpr int kSlotBytes = kBoxes * kBoxBytes;
  static constexpr int kQueryBytes = kWarpGroups * kSlotBytes;
  static constexpr int kTotalsBytes = kTotals == FmhaTotals::kShared ? kWarpGroups * 64 * kHeadDim * 4 : 0;
  static constexpr int kMostSlots = 16;
  static constexpr int kSmallBytes = 640;
  static constexpr int kSlotsThatFit =
      (232448 - 1024 - kQueryBytes - kTotalsBytes - kSmallBytes) / kSlotBytes;
  static constexpr int kSlots = kSlotsThatFit < kMostSlots ? kSlotsThatFit : kMostSlots;
  static constexpr int kSharedBytes = 1024 + kSlots * kSlotBytes + kQueryBytes + kTotalsBytes + kSmallBytes;
  static_assert(kSlots >= 4, "two tiles must fit");
  static_assert((2 * kMostSlots + 2 * kWarpGroups + 1 + 2 * FmhaPrefillQueue::kSlots) * 8 +
                        FmhaPrefillQueue::kSlots * int(sizeof(FmhaPrefillItem)) <=
                    kSmallBytes,
                "barriers and items");
};

template <class Traits>
struct FmhaPrefillShared {
  uint8_t* slots;
  uint8_t* queries;  // [warp group][box][row]
  float4* totals;    // [warp group][fragment][thread]
  uint64_t* full;
  uint64_t* empty;
  uint64_t* queries_full;   // [warp group]
  uint64_t* queries_empty;  // [warp group]
  uint64_t* landed;         // values that the producer has to mend
  FmhaPrefillQueue queue;

  __device__ explicit FmhaPrefillShared(uint8_t* base) {
    slots = base + (1024 - ptx::SharedAddress(base) % 1024) % 1024;
    queries = slots + Traits::kSlots * Traits::kSlotBytes;
    totals = reinterpret_cast<float4*>(queries + Traits::kQueryBytes);
    full = reinterpret_cast<uint64_t*>(queries + Traits::kQueryBytes + Traits::kTotalsBytes);
    empty = full + Traits::kSlots;
    queries_full = empty + Traits::kSlots;
    queries_empty = queries_full + Traits::kWarpGroups;
    landed = queries_empty + Traits::kWarpGroups;
    queue.full = landed + 1;
    queue.empty = queue.full + FmhaPrefillQueue::kSlots;
    queue.items = reinterpret_cast<FmhaPrefillItem*>(queue.empty + FmhaPrefillQueue::kSlots);
  }

  __device__ void Init() const {
    for (int32_t slot = 0; slot < Traits::kSlots; ++slot) {
      ptx::MbarrierInit(&full[slot], 1);
      ptx::MbarrierInit(&empty[slot], Traits::kConsumerWarps);
    }
    for (int32_t group = 0; group < Traits::kWarpGroups; ++group) {
      ptx::MbarrierInit(&queries_full[group], 1);
      ptx::MbarrierInit(&queries_empty[group], 4);
    }
    ptx::MbarrierInit(landed, 1);
    queue.Init(Traits::kConsumerWarps + Traits::kWarpGroups);
    ptx::FenceBarrierInit();
  }
};

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

// A warp group's queries as the A operand.
template <class Traits>
struct FmhaPrefillQueries {
  uint32_t fragments[Traits::kQueriesInRegisters ? Traits::kHeadDim / 16 : 1][4];
  uint32_t address;  // of the warp group's tile

  __device__ void Load(int32_t warp, int32_t lane) {
    if constexpr (Traits::kQueriesInRegisters) {
      const int32_t row = warp % 4 * 16 + lane % 16;
#pragma unroll
      for (int32_t step = 0; step < Traits::kHeadDim / 16; ++step) {
        const int32_t chunk = 2 * step + lane / 16;
        ptx::LdmatrixX4(fragments[step],
                        address + chunk / 8 * Traits::kBoxBytes + row * 128 + ((chunk ^ row) & 7) * 16);
      }
    }
  }

  // Starts s = Q K^T for the keys of a slot.
  __device__ void Score(uint32_t slot, float (&s)[8][4]) const {
    const uint64_t keys = ptx::WgmmaSwizzledDescriptor(slot);
    uint32_t mine = address;
    asm volatile("" : "+r"(mine));  // else the compiler keeps a descriptor a step in registers
    const uint64_t rows = ptx::WgmmaSwizzledDescriptor(mine);
#pragma unroll
    for (int32_t step = 0; step < Traits::kHeadDim / 16; ++step) {
      const uint32_t at = step / 4 * Traits::kBoxBytes + step % 4 * 32;
      if constexpr (Traits::kQueriesInRegisters) {
        ptx::WgmmaRegistersShared<false>(s, fragments[step], ptx::WgmmaAdvance(keys, at), step > 0);
      } else {
        ptx::WgmmaSharedShared(s, ptx::WgmmaAdvance(rows, at), ptx::WgmmaAdvance(keys, at), step > 0);
      }
    }
    ptx::WgmmaCommitGroup();
  }
};

// Starts out += weights V for the values of a slot.
template <class Traits>
__device__ __forceinline__ void FmhaPrefillAddValues(uint32_t slot, const uint32_t (&weights)[4][4],
                                                     float (&out)[Traits::kHeadDim / 8][4]) {
  const uint64_t values = ptx::WgmmaSwizzledDescriptor(slot, Traits::kBoxBytes);
#pragma unroll
  for (int32_t step = 0; step < 4; ++step) {
    ptx::WgmmaRegistersShared<true>(out, weights[step], ptx::WgmmaAdvance(values, step * 16 * 128), true);
  }
  ptx::WgmmaCommitGroup();
}

// The A fragments of the weights, rounded.
__device__ __forceinline__ void FmhaPackWeights(const float (&s)[8][4], uint32_t (&weights)[4][4]) {
#pragma unroll
  for (int32_t step = 0; step < 4; ++step) {
    weights[step][0] = ptx::PackBf16(s[2 * step][0], s[2 * step][1]);
    weights[step][1] = ptx::PackBf16(s[2 * step][2], s[2 * step][3]);
    weights[step][2] = ptx::PackBf16(s[2 * step + 1][0], s[2 * step + 1][1]);
    weights[step][3] = ptx::PackBf16(s[2 * step + 1][2], s[2 * step + 1][3]);
  }
}

// The consumers' role.
template <class Traits>
__device__ void FmhaPrefillConsume(const FmhaPrefillArgs& args, const FmhaPrefillShared<Traits>& shared,
                                   int32_t warp, int32_t lane) {
  const int32_t group = warp / 4;
  const uint32_t slots = ptx::SharedAddress(shared.slots);
  FmhaRing<FmhaPrefillQueue::kSlots> queue;
  FmhaRing<Traits::kSlots> keys, values;
  values.Advance();
  FmhaPrefillQueries<Traits> queries;
  queries.address = ptx::SharedAddress(shared.queries) + group * Traits::kSlotBytes;
  float4* totals_memory = nullptr;
  if constexpr (Traits::kTotals == FmhaTotals::kShared) totals_memory = shared.totals;
  if constexpr (Traits::kTotals == FmhaTotals::kGlobal) {
    totals_memory = args.totals + int64_t{blockIdx.x} * (Traits::kWarpGroups * 16 * Traits::kHeadDim);
  }
  FmhaTotalsOut<Traits::kHeadDim, Traits::kTotals> totals(totals_memory + group * (16 * Traits::kHeadDim) +
                                                          threadIdx.x % 128);
  float out[Traits::kHeadDim / 8][4], s[8][4];
  uint32_t weights[4][4];
  FmhaPrefillRows rows;
  uint32_t phase = 0;
  const auto release = [&](FmhaRing<Traits::kSlots>& ring) {
    if (lane == 0) ptx::MbarrierArrive(&shared.empty[ring.slot]);
    ring.Advance(2);
  };
  while (true) {
    const FmhaPrefillItem& item = shared.queue.Take(queue);
    if (item.IsNone()) break;
    const int32_t begin = item.begin, end = item.end;
    rows.Begin(args, item, item.first_row + warp * 16, lane);
    totals.Clear();
#pragma unroll
    for (int32_t j = 0; j < Traits::kHeadDim / 8; ++j) out[j][0] = out[j][1] = out[j][2] = out[j][3] = 0;
    ptx::MbarrierWait(&shared.queries_full[group], phase);
    phase ^= 1;
    queries.Load(warp, lane);
    if (Traits::kQueriesInRegisters) {
      __syncwarp();
      if (lane == 0) ptx::MbarrierArrive(&shared.queries_empty[group]);
    }

    ptx::MbarrierWait(&shared.full[keys.slot], keys.phase);
    ptx::WgmmaFence();
    queries.Score(slots + keys.slot * Traits::kSlotBytes, s);
    ptx::WgmmaWaitGroup<0>();
    ptx::WgmmaPin(s);
    release(keys);
    FmhaMaskTile(args, rows, begin, lane, s);
    FmhaPrefillSoftmax(args.scale_log2, begin, rows, s);
    FmhaPackWeights(s, weights);

    for (int32_t key = begin + kFmhaTileKeys; key < end; key += kFmhaTileKeys) {
      ptx::MbarrierWait(&shared.full[keys.slot], keys.phase);
      ptx::WgmmaFence();
      queries.Score(slots + keys.slot * Traits::kSlotBytes, s);
      ptx::MbarrierWait(&shared.full[values.slot], values.phase);
      ptx::WgmmaFence();
      FmhaPrefillAddValues<Traits>(slots + values.slot * Traits::kSlotBytes, weights, out);
      ptx::WgmmaWaitGroup<1>();
      ptx::WgmmaPin(s);
      release(keys);
      FmhaMaskTile(args, rows, key, lane, s);
      const FmhaPrefillStep step = FmhaPrefillSoftmax(args.scale_log2, key, rows, s);
      ptx::WgmmaWaitGroup<0>();
      ptx::WgmmaPin(out);
      release(values);
      FmhaPrefillAdjust(step, totals, out);
      FmhaPackWeights(s, weights);
    }
    if (!Traits::kQueriesInRegisters && lane == 0) ptx::MbarrierArrive(&shared.queries_empty[group]);

    ptx::MbarrierWait(&shared.full[values.slot], values.phase);
    ptx::WgmmaFence();
    FmhaPrefillAddValues<Traits>(slots + values.slot * Traits::kSlotBytes, weights, out);
    ptx::WgmmaWaitGroup<0>();
    ptx::WgmmaPin(out);
    release(values);
    FmhaPrefillWrite(args, item, item.first_row + warp * 16, lane, rows, totals, out);
    shared.queue.Release(queue, lane);
  }
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    FmhaPrefillKernel(const __grid_constant__ FmhaPrefillArgs args, const __grid_constant__ CUtensorMap k_map,
                      const __grid_constant__ CUtensorMap v_map) {
  extern __shared__ uint8_t shared_base[];
  const FmhaPrefillShared<Traits> shared(shared_base);
  const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    ptx::PrefetchTensorMap(&k_map);
    ptx::PrefetchTensorMap(&v_map);
    shared.Init();
  }
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
