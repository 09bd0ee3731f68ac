// Work items of the FMHA decode kernels: which there are, how a CTA takes them, where their keys lie.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_ITEMS_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_ITEMS_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_common.cuh"
#include "kernels/cuda/fmha/fmha_decode_split.h"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

// A work item: one split of a sequence, or all of them, for one KV head.
struct FmhaItem {
  int32_t sequence, kv_head;
  bool whole;          // all splits
  bool joins;          // there is a CTA for every item of the launch: see CombineTogether
  int32_t split;       // within the sequence
  int32_t part;        // of the workspace: over all sequences
  int32_t begin, end;  // keys
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
  item.part = index / args.p.num_kv_heads;
  int32_t low = 0, high = args.p.num_sequences;  // sequences[low].x <= part < sequences[high].x
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (sequences[middle].x <= item.part) {
      low = middle;
    } else {
      high = middle;
    }
  }
  item.sequence = low;
  item.split = item.part - sequences[low].x;
  item.splits = MakeFmhaSplits(sequences[low].y, args.p.sliding_window);
  item.whole = sequences[low + 1].x == sequences[low].x + 1;
  item.begin = item.splits.Begin(item.split);
  item.end = item.whole ? item.splits.end : item.splits.End(item.split);
  item.joins = sequences[args.p.num_sequences].x * args.p.num_kv_heads <= static_cast<int32_t>(gridDim.x);
  return item;
}

// The producer warp's items: the CTA's own first one, then from the counter that all CTAs share. The next index is fetched
// while the current item streams. Where there is a CTA for every item, none is fetched.
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

  // The item that Next() will queue; sequence -1: none. Until the next call.
  __device__ const FmhaItem& Peek() {
    if (!peeked_) {
      const int32_t index = __shfl_sync(~0u, next_, 0);
      ahead_ = {};
      ahead_.sequence = -1;
      if (index < num_items_) ahead_ = DecodeItem(args_, sequences_, index);
      peeked_ = true;
    }
    return ahead_;
  }

  // Queues the next item for the consumers; false when there is none, of which they are told too.
  __device__ bool Next(FmhaItem* item) {
    *item = Peek();
    peeked_ = false;
    const bool exists = item->sequence >= 0;
    if (HasCtaForEach()) {
      next_ = num_items_;
    } else if (lane_ == 0 && exists) {
      next_ = gridDim.x + atomicAdd(args_.next_item, 1);
    }
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
    if (HasCtaForEach()) return;
    if (lane_ == 0 && ptx::AtomAddAcqRelGpu(args_.done_ctas, 1) == static_cast<int32_t>(gridDim.x) - 1) {
      *args_.next_item = 0;
      *args_.done_ctas = 0;
    }
  }

 private:
  __device__ bool HasCtaForEach() const { return num_items_ <= static_cast<int32_t>(gridDim.x); }

  const FmhaDecodeArgs& args_;
  const FmhaItemQueue& queue_;
  const int2* sequences_;
  int32_t num_items_, lane_, next_;
  bool peeked_ = false;
  FmhaItem ahead_;
  RingCursor<kFmhaItemQueue> cursor_;
};

// A sequence's block table, 32 entries of it in the lanes of a warp.
class BlockTableWindow {
 public:
  BlockTableWindow() = default;
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

// Which sequences are one item, all splits of which a CTA attends to: no partial results are then written and read.
template <bool kFolds>
class FmhaWholeSequences {
 public:
  // `sum`, `longest`: of the keys that the sequences see.
  __device__ FmhaWholeSequences(const FmhaDecodeArgs& args, int64_t sum, int32_t longest)
      : ctas_(gridDim.x), all_keys_(sum * args.p.num_kv_heads) {
    const int32_t items = args.p.num_sequences * args.p.num_kv_heads, rounds = (items + ctas_ - 1) / ctas_;
    all_fit_ = int64_t{longest} * rounds * ctas_ * 17 <= all_keys_ * 20;
  }

  // Sequences of one split. Where splits can be folded, those of at most half of an even share of the keys for a CTA, so that
  // none keeps the others waiting; or all, if they fill the CTAs for six sevenths of the time at least.
  __device__ bool Has(const FmhaSplits& splits) const {
    return splits.count == 1 ||
           (kFolds && (all_fit_ || int64_t{splits.end - splits.begin} * ctas_ * 2 <= all_keys_));
  }

 private:
  const int32_t ctas_;
  const int64_t all_keys_;
  bool all_fit_;
};

// Finds out which items there are: leaves {items of the sequences before, for a KV head; length} for each sequence. One warp.
template <bool kFolds>
__device__ __forceinline__ void ScanItems(const FmhaDecodeArgs& args, int2* sequences, int32_t lane) {
  const auto splits_of = [&](int32_t sequence) {
    return MakeFmhaSplits(sequences[sequence].y, args.p.sliding_window);
  };
  // The lengths come together, not one wait after the other.
#pragma unroll 8
  for (int32_t sequence = lane; sequence < args.p.num_sequences; sequence += 32) {
    sequences[sequence].y = args.p.lengths[sequence];
  }
  int64_t sum = 0;
  int32_t longest = 0;
  for (int32_t sequence = lane; sequence < args.p.num_sequences; sequence += 32) {
    const FmhaSplits splits = splits_of(sequence);
    sum += splits.end - splits.begin;
    longest = max(longest, splits.end - splits.begin);
  }
#pragma unroll
  for (int32_t distance = 1; distance < 32; distance *= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
    longest = max(longest, __shfl_xor_sync(~0u, longest, distance));
  }
  const FmhaWholeSequences<kFolds> whole(args, sum, longest);
  int32_t total = 0;
  for (int32_t base = 0; base < args.p.num_sequences; base += 32) {
    const int32_t sequence = base + lane;
    const bool exists = sequence < args.p.num_sequences;
    int32_t count = 0;
    if (exists) {
      const FmhaSplits splits = splits_of(sequence);
      count = whole.Has(splits) ? 1 : splits.count;
    }
    int32_t before = count;
    for (int32_t distance = 1; distance < 32; distance *= 2) {
      const int32_t other = __shfl_up_sync(~0u, before, distance);
      if (lane >= distance) before += other;
    }
    if (exists) sequences[sequence].x = total + before - count;
    total += __shfl_sync(~0u, before, 31);
  }
  if (lane == 0) sequences[args.p.num_sequences] = make_int2(total, 0);
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_ITEMS_CUH_
