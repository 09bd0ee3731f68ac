// What the FMHA decode kernels of all architectures share: the launch's arguments, work items, the combination of splits.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_COMMON_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_COMMON_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode.h"
#include "kernels/cuda/fmha/fmha_decode_split.h"
#include "kernels/cuda/fmha/fmha_numerics.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

inline constexpr int32_t kFmhaMaxSequences = 512;

struct FmhaDecodeArgs {
  FmhaDecodeParams p;
  // Query rows of one KV head: q_len * query heads / KV heads. Where they are too many for one item, the launch divides
  // them: p.num_kv_heads is then a multiple of the cache's, and kv_head_repeat says how many share one head's keys.
  int32_t group_rows;
  int32_t kv_head_repeat;
  float scale_log2;  // softmax scale times log2(e)
  // Workspace. The counters are zero between launches.
  int32_t* next_item;  // items taken beyond each CTA's first
  int32_t* done_ctas;
  int32_t* arrivals;    // [num_sequences * kv_heads]
  float2* split_stats;  // [split][kv_head][row]: maximum (log2 domain), sum
  float* split_out;     // [split][kv_head][row][value dim]: not normalised
};

// A work item: one split of one sequence for one KV head.
struct FmhaItem {
  int32_t sequence, kv_head;
  int32_t split;         // within the sequence
  int32_t global_split;  // over all sequences
  int32_t begin, end;    // keys
  FmhaSplits splits;
};

// Position in the ring of slots.
template <int kSlots>
struct RingCursor {
  int32_t slot = 0;
  uint32_t phase = 0;
  __device__ void Next() {
    if (++slot == kSlots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// How the producer hands items to the consumers: a queue in shared memory.
inline constexpr int32_t kFmhaItemQueue = 4;

struct FmhaItemQueue {
  uint64_t* full;   // [kFmhaItemQueue] 1 arrival
  uint64_t* empty;  // [kFmhaItemQueue] an arrival from each consumer warp
  FmhaItem* items;  // [kFmhaItemQueue]; sequence -1: there are no more

  __device__ void Init(int32_t consumer_warps) const {
    for (int32_t slot = 0; slot < kFmhaItemQueue; ++slot) {
      ptx::MbarrierInit(&full[slot], 1);
      ptx::MbarrierInit(&empty[slot], consumer_warps);
    }
  }

  // A consumer warp's next item, null at the end. It is used where it is, since registers are dear, until it is released.
  __device__ const FmhaItem* Wait(const RingCursor<kFmhaItemQueue>& cursor) const {
    ptx::MbarrierWait(&full[cursor.slot], cursor.phase);
    return items[cursor.slot].sequence < 0 ? nullptr : &items[cursor.slot];
  }
  __device__ void Release(RingCursor<kFmhaItemQueue>& cursor, int32_t lane) const {
    __syncwarp();
    if (lane == 0) ptx::MbarrierArrive(&empty[cursor.slot]);
    cursor.Next();
  }
};

__device__ __forceinline__ FmhaItem DecodeItem(const FmhaDecodeArgs& args, const int2* sequences,
                                               int32_t index) {
  FmhaItem item;
  item.kv_head = index % args.p.num_kv_heads;
  item.global_split = index / args.p.num_kv_heads;
  int32_t low = 0, high = args.p.num_sequences;  // sequences[low].x <= global_split < sequences[high].x
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (sequences[middle].x <= item.global_split) {
      low = middle;
    } else {
      high = middle;
    }
  }
  item.sequence = low;
  item.split = item.global_split - sequences[low].x;
  item.splits = MakeFmhaSplits(sequences[low].y, args.p.sliding_window);
  item.begin = item.splits.Begin(item.split);
  item.end = item.splits.End(item.split);
  return item;
}

// The producer warp's items: the CTA's own first one, then from the counter that all CTAs share. The next index is fetched
// while the current item streams.
class FmhaItemSource {
 public:
  __device__ FmhaItemSource(const FmhaDecodeArgs& args, const FmhaItemQueue& queue, const int2* sequences,
                            int32_t lane)
      : args_(args),
        queue_(queue),
        sequences_(sequences),
        num_items_(sequences[args.p.num_sequences].x * args.p.num_kv_heads),
        lane_(lane),
        next_(blockIdx.x) {}

  // Queues the next item for the consumers; false when there is none, of which they are told too.
  __device__ bool Next(FmhaItem* item) {
    const int32_t index = __shfl_sync(~0u, next_, 0);
    const bool exists = index < num_items_;
    if (lane_ == 0 && exists) next_ = gridDim.x + atomicAdd(args_.next_item, 1);
    *item = {};
    item->sequence = -1;
    if (exists) *item = DecodeItem(args_, sequences_, index);
    ptx::MbarrierWait(&queue_.empty[cursor_.slot], cursor_.phase ^ 1);
    if (lane_ == 0) {
      queue_.items[cursor_.slot] = *item;
      ptx::MbarrierArrive(&queue_.full[cursor_.slot]);
    }
    __syncwarp();
    cursor_.Next();
    return exists;
  }

  // Every CTA's last take is behind it when it is done: the last one leaves the counters as it found them.
  __device__ void Finish() const {
    if (lane_ == 0 && ptx::AtomAddAcqRelGpu(args_.done_ctas, 1) == static_cast<int32_t>(gridDim.x) - 1) {
      *args_.next_item = 0;
      *args_.done_ctas = 0;
    }
  }

 private:
  const FmhaDecodeArgs& args_;
  const FmhaItemQueue& queue_;
  const int2* sequences_;
  int32_t num_items_, lane_, next_;
  RingCursor<kFmhaItemQueue> cursor_;
};

// A sequence's block table, 32 entries of it in the lanes of a warp.
class BlockTableWindow {
 public:
  __device__ BlockTableWindow(const FmhaDecodeArgs& args, const FmhaItem& item, int32_t lane)
      : lane_(lane), last_((item.end - 1) / args.p.block_size) {
    const int32_t row = args.p.table_rows ? args.p.table_rows[item.sequence] : item.sequence;
    table_ = args.p.block_table + int64_t{row} * args.p.block_table_stride;
    Load(item.begin / args.p.block_size);
  }

  // Makes the entries first .. last readable, at most 32. The whole warp calls it.
  __device__ void Cover(int32_t first, int32_t last) {
    if (last >= base_ + 32) Load(first);
  }

  // Entry `index`, or any other if it is past the item's last. Each lane may ask for another; the whole warp calls it.
  __device__ int32_t Get(int32_t index) const { return __shfl_sync(~0u, entry_, min(index - base_, 31)); }

 private:
  __device__ void Load(int32_t first) {
    base_ = first;
    entry_ = base_ + lane_ <= last_ ? table_[base_ + lane_] : 0;
  }

  int32_t lane_, last_, base_, entry_;
  const int32_t* table_;
};

// Index in q and out of a sequence's first query token.
__device__ __forceinline__ int64_t FirstToken(const FmhaDecodeArgs& args, int32_t sequence) {
  return args.p.first_tokens ? args.p.first_tokens[sequence] : int64_t{sequence} * args.p.q_len;
}

// Sums up the splits of all sequences; one warp.
__device__ __forceinline__ void ScanSplits(const FmhaDecodeArgs& args, int2* sequences, int32_t lane) {
  int32_t total = 0;
  for (int32_t base = 0; base < args.p.num_sequences; base += 32) {
    const int32_t sequence = base + lane;
    const bool exists = sequence < args.p.num_sequences;
    const int32_t length = exists ? args.p.lengths[sequence] : 0;
    const int32_t count = exists ? MakeFmhaSplits(length, args.p.sliding_window).count : 0;
    int32_t sum = count;
    for (int32_t distance = 1; distance < 32; distance *= 2) {
      const int32_t other = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (exists) sequences[sequence] = make_int2(total + sum - count, length);
    total += __shfl_sync(~0u, sum, 31);
  }
  if (lane == 0) sequences[args.p.num_sequences] = make_int2(total, 0);
}

// Combines the splits of a (sequence, KV head), in split order; lane s holds the statistics of split s. A warp takes up to 128
// dimensions of a row at a time, a lane kPerLane of them.
template <int kHeadDim, int kRows, int kWarps>
__device__ __forceinline__ void CombineSplits(const FmhaDecodeArgs& args, const FmhaItem& item, int32_t warp,
                                              int32_t lane) {
  constexpr int32_t kColumns = kHeadDim < 128 ? kHeadDim : 128, kPerLane = kColumns / 32;
  constexpr int32_t kChunks = kHeadDim / kColumns;
  // Splits whose parts are fetched together, as far as registers reach.
  constexpr int32_t kAtOnce = kHeadDim * kRows <= 8192 ? 8 : 65536 / (kHeadDim * kRows);
  const int32_t count = item.splits.count, group = args.p.num_query_heads / args.p.num_kv_heads;
  const int64_t stride = int64_t{args.p.num_kv_heads} * kRows;
#pragma unroll 1
  for (int32_t unit = warp; unit < args.group_rows * kChunks; unit += kWarps) {
    const int32_t row = unit / kChunks, column = unit % kChunks * kColumns + lane * kPerLane;
    const int64_t first = int64_t{item.global_split - item.split} * stride + item.kv_head * kRows + row;
    const float2 stats =
        lane < count ? __ldcg(&args.split_stats[first + lane * stride]) : make_float2(-INFINITY, 0.0f);
    float parts[kAtOnce][kPerLane];
    const auto fetch = [&](int32_t base) {
#pragma unroll
      for (int32_t i = 0; i < kAtOnce; ++i) {
        if (base + i >= count) break;
        const float* part = args.split_out + (first + (base + i) * stride) * kHeadDim + column;
#pragma unroll
        for (int32_t j = 0; j < kPerLane; j += 2) {
          const float2 pair = __ldcg(reinterpret_cast<const float2*>(part + j));
          parts[i][j] = pair.x;
          parts[i][j + 1] = pair.y;
        }
      }
    };
    fetch(0);
    float maximum = stats.x;  // of this lane's split and those before
#pragma unroll
    for (int32_t distance = 1; distance < 32; distance *= 2) {
      const float other = __shfl_up_sync(~0u, maximum, distance);
      if (lane >= distance) maximum = fmaxf(maximum, other);
    }
    const float before = __shfl_up_sync(~0u, maximum, 1);
    const FmhaCombination combination(lane == 0 ? -INFINITY : before, stats.x);
    float sum = 0.0f;
    float out[kPerLane] = {};
#pragma unroll 1
    for (int32_t base = 0;;) {
#pragma unroll
      for (int32_t i = 0; i < kAtOnce; ++i) {
        if (base + i >= count) break;
        FmhaCombination step = combination;
        step.old_factor = __shfl_sync(~0u, combination.old_factor, base + i);
        step.new_factor = __shfl_sync(~0u, combination.new_factor, base + i);
        sum = step.Add(sum, __shfl_sync(~0u, stats.y, base + i));
#pragma unroll
        for (int32_t j = 0; j < kPerLane; ++j) out[j] = step.Add(out[j], parts[i][j]);
      }
      base += kAtOnce;
      if (base >= count) break;
      fetch(base);
    }
    maximum = __shfl_sync(~0u, maximum, 31);
    const int32_t head = item.kv_head * group + row % group;
    const float inverse = args.p.v_scale * FmhaInverseSum(args.p.sinks, head, maximum, sum);
    const int64_t token = FirstToken(args, item.sequence) + row / group;
    __nv_bfloat16* target =
        static_cast<__nv_bfloat16*>(args.p.out) + (token * args.p.num_query_heads + head) * kHeadDim + column;
#pragma unroll
    for (int32_t j = 0; j < kPerLane; j += 2) {
      *reinterpret_cast<uint32_t*>(target + j) = ptx::PackBf16(out[j] * inverse, out[j + 1] * inverse);
    }
  }
}

// Tells that this CTA's part of the item is in the workspace; the CTA whose split is the last to arrive combines them all.
// Called by kWarps whole warps, which use barrier 1; `flag` is in shared memory.
template <int kHeadDim, int kRows, int kWarps>
__device__ __forceinline__ void PublishSplit(const FmhaDecodeArgs& args, const FmhaItem& item, int32_t* flag,
                                             int32_t warp, int32_t lane) {
  ptx::NamedBarrierSync(1, 32 * kWarps);  // the release below covers every thread's part
  if (warp == 0 && lane == 0) {
    int32_t* arrivals = &args.arrivals[item.sequence * args.p.num_kv_heads + item.kv_head];
    const bool last = ptx::AtomAddAcqRelGpu(arrivals, 1) == item.splits.count - 1;
    if (last) *arrivals = 0;
    *flag = last;
  }
  ptx::NamedBarrierSync(1, 32 * kWarps);
  if (*flag) CombineSplits<kHeadDim, kRows, kWarps>(args, item, warp, lane);
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_COMMON_CUH_
