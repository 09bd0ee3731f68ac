// FMHA decode for sm_90: the producer warp, which feeds the items, their queries, keys and values to the consumers.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_PRODUCER_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_PRODUCER_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_launch.h"
#include "kernels/cuda/fmha/fmha_decode_sm90_traits.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace tessera::cuda {

// A slot in order of the ring: waits until it is free, has `fill` put `boxes` boxes of 64 columns into it, from column
// `column` on, goes on to the next.
template <class Traits>
struct FmhaSlotFiller {
  const FmhaShared<Traits>& shared;
  RingCursor<Traits::kSlots> ring;

  template <class Fill>
  __device__ __forceinline__ void Rows(int32_t num_boxes, Fill fill) {
#pragma unroll 1
    for (int32_t box = 0; box < num_boxes; box += Traits::kSlotBoxes) {
      ptx::MbarrierWait(&shared.empty[ring.slot], ring.phase ^ 1);
      fill(ring.slot, box, min(Traits::kSlotBoxes, num_boxes - box));
      ring.Next();
    }
  }
};

// Keys and values of an item through TMA, in boxes of one block's slots.
template <class Traits>
class FmhaPagedTiles {
 public:
  __device__ FmhaPagedTiles(const FmhaDecodeArgs& args, const FmhaTensorMaps& maps,
                            FmhaSlotFiller<Traits>& filler, int32_t lane)
      : args_(args),
        maps_(maps),
        filler_(filler),
        lane_(lane),
        block_size_(args.p.block_size),
        rows_per_box_(min(args.p.block_size, kFmhaTileKeys)),
        kv_heads_(args.p.num_kv_heads / args.kv_head_repeat) {}

  // Fetches what Begin wants to know of the item, without waiting for it.
  __device__ __forceinline__ void Prepare(const FmhaItem& item) {
    next_table_ = BlockTableWindow(args_, item, lane_);
  }

  // Starts the item that was last prepared.
  __device__ __forceinline__ void Begin(const FmhaItem& item) {
    table_ = next_table_;
    end_ = item.end;
    kv_head_ = item.kv_head / args_.kv_head_repeat;
  }

  // Makes the tile at `key` the current one.
  __device__ __forceinline__ void Find(int32_t key) {
    table_.Cover(key / block_size_, min(key + kFmhaTileKeys - 1, end_ - 1) / block_size_);
    // Lane b loads box b of a slot: rows (b / kSlotBoxes), columns (b % kSlotBoxes).
    const int32_t box_key = key + lane_ / Traits::kSlotBoxes * rows_per_box_;
    const int32_t block = table_.Get(box_key / block_size_);
    loads_ = lane_ / Traits::kSlotBoxes < kFmhaTileKeys / rows_per_box_ && box_key < end_;
    row_ = (block * kv_heads_ + kv_head_) * block_size_ + box_key % block_size_;
    rows_ =
        min(kFmhaTileKeys / rows_per_box_, (end_ - key + rows_per_box_ - 1) / rows_per_box_) * rows_per_box_;
  }

  __device__ __forceinline__ void LoadKeys() { Load(&maps_.k, Traits::kKeyBoxes, row_, loads_, rows_); }

  // What is to be known of a tile's place, for its values.
  struct Place {
    int32_t row, rows;
    bool loads;
  };
  __device__ __forceinline__ Place place() const { return {row_, rows_, loads_}; }
  __device__ __forceinline__ void LoadValues(const Place& at) {
    Load(&maps_.v, Traits::kValueBoxes, at.row, at.loads, at.rows);
  }

 private:
  __device__ __forceinline__ void Load(const CUtensorMap* map, int32_t num_boxes, int32_t row, bool loads,
                                       int32_t rows) {
    const FmhaShared<Traits>& shared = filler_.shared;
    filler_.Rows(num_boxes, [&](int32_t slot, int32_t first_box, int32_t boxes) {
      if (lane_ == 0) ptx::MbarrierArriveExpectTx(&shared.full[slot], boxes * rows * Traits::kBoxRowBytes);
      __syncwarp();
      const int32_t box = lane_ % Traits::kSlotBoxes;
      if (loads && box < boxes) {
        uint8_t* target = shared.slots + slot * Traits::kSlotBytes + box * Traits::kBoxBytes +
                          lane_ / Traits::kSlotBoxes * rows_per_box_ * Traits::kBoxRowBytes;
        ptx::CpAsyncBulkTensor2d(target, map, (first_box + box) * Traits::kBoxColumns, row,
                                 &shared.full[slot], ptx::kEvictFirst);
      }
    });
  }

  const FmhaDecodeArgs& args_;
  const FmhaTensorMaps& maps_;
  FmhaSlotFiller<Traits>& filler_;
  int32_t lane_, block_size_, rows_per_box_, kv_heads_, kv_head_, end_;
  BlockTableWindow table_, next_table_;
  int32_t row_, rows_;
  bool loads_;
};

// Keys and values of an item gathered one by one from a list of key slots, by copies of 16 bytes. Keys that do not exist
// become zeros.
template <class Traits>
class FmhaListedTiles {
 public:
  __device__ FmhaListedTiles(const FmhaDecodeArgs& args, FmhaSlotFiller<Traits>& filler, int32_t lane)
      : args_(args), filler_(filler), lane_(lane), kv_heads_(args.p.num_kv_heads / args.kv_head_repeat) {}

  // As FmhaPagedTiles'. An item is prepared when the one before has found all its tiles.
  __device__ __forceinline__ void Prepare(const FmhaItem& item) {
    const int32_t row = args_.p.table_rows ? args_.p.table_rows[item.sequence] : item.sequence;
    list_ = args_.p.key_slots + int64_t{row} * args_.p.key_slots_stride;
    end_ = item.end;
    kv_head_ = item.kv_head / args_.kv_head_repeat;
    Fetch(item.begin);
  }
  __device__ __forceinline__ void Begin(const FmhaItem&) {}

  __device__ __forceinline__ void Find(int32_t key) {
    keys_[0] = next_[0];
    keys_[1] = next_[1];
    Fetch(key + kFmhaTileKeys);
  }

  __device__ __forceinline__ void LoadKeys() {
    const uint32_t low = __ballot_sync(~0u, keys_[0] >= 0), high = __ballot_sync(~0u, keys_[1] >= 0);
    if (lane_ == 0) mask_ = make_uint2(low, high);
    Load(args_.p.k_cache, Traits::kKeyDim, Traits::kKeyBoxes, keys_, true);
  }
  struct Place {
    int32_t keys[2];
  };
  __device__ __forceinline__ Place place() const { return {keys_[0], keys_[1]}; }
  __device__ __forceinline__ void LoadValues(const Place& at) {
    Load(args_.p.v_cache, Traits::kValueDim, Traits::kValueBoxes, at.keys, false);
  }

 private:
  // The rows of the cache (this KV head's) of the next tile's keys, -1 where there is none: lane l has keys l, l + 32.
  __device__ __forceinline__ void Fetch(int32_t key) {
    const int32_t block_size = args_.p.block_size;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t at = key + lane_ + 32 * i;
      const int32_t slot = at < end_ ? list_[at] : -1;
      next_[i] = slot < 0 ? -1 : (slot / block_size * kv_heads_ + kv_head_) * block_size + slot % block_size;
    }
  }

  __device__ __forceinline__ void Load(const void* cache, int32_t dim, int32_t num_boxes,
                                       const int32_t (&rows)[2], bool keys) {
    constexpr int32_t kBoxChunks = Traits::kBoxRowBytes / 16, kKeysAtOnce = 32 / kBoxChunks;
    const FmhaShared<Traits>& shared = filler_.shared;
    const int32_t lane_key = lane_ / kBoxChunks, chunk = lane_ % kBoxChunks;
    filler_.Rows(num_boxes, [&](int32_t slot, int32_t first_box, int32_t boxes) {
      uint8_t* target = shared.slots + slot * Traits::kSlotBytes;
      const uint8_t* columns =
          static_cast<const uint8_t*>(cache) + first_box * Traits::kBoxRowBytes + chunk * 16;
#pragma unroll 4
      for (int32_t step = 0; step < kFmhaTileKeys; step += kKeysAtOnce) {
        const int32_t key = step + lane_key;
        const int32_t row = __shfl_sync(~0u, step < 32 ? rows[0] : rows[1], key % 32);
        const uint8_t* source = columns + int64_t{max(row, 0)} * (dim * Traits::kElementBytes);
#pragma unroll
        for (int32_t box = 0; box < Traits::kSlotBoxes; ++box) {
          if (box < boxes) {
            ptx::CpAsync16(target + box * Traits::kBoxBytes + BoxOffset<Traits>(key, chunk),
                           source + box * Traits::kBoxRowBytes, row < 0 ? 0 : 16);
          }
        }
      }
      ptx::CpAsyncMbarrierArriveNoinc(&shared.full[slot]);
      if (lane_ == 0) {
        if (keys && first_box == 0) shared.masks[slot] = mask_;
        ptx::MbarrierArrive(&shared.full[slot]);
      }
    });
  }

  const FmhaDecodeArgs& args_;
  FmhaSlotFiller<Traits>& filler_;
  int32_t lane_, kv_heads_, kv_head_, end_;
  const int32_t* list_;
  int32_t keys_[2], next_[2];
  uint2 mask_;
};

// The producer's role. Slots come in the order in which they are used: the keys of a tile, then the values of the second tile
// before (kOverlaps) or its own. MLA has keys alone.
template <class Traits>
class FmhaProducer {
 public:
  __device__ FmhaProducer(const FmhaDecodeArgs& args, const FmhaTensorMaps& maps,
                          const FmhaShared<Traits>& shared, int32_t lane)
      : args_(args), maps_(maps), shared_(shared), lane_(lane), filler_{shared, {}} {}

  __device__ void Run() {
    if (args_.p.key_slots != nullptr) {
      StreamItems(FmhaListedTiles<Traits>(args_, filler_, lane_));
    } else {
      StreamItems(FmhaPagedTiles<Traits>(args_, maps_, filler_, lane_));
    }
  }

 private:
  template <class Tiles>
  __device__ __forceinline__ void StreamItems(Tiles tiles) {
    FmhaItemSource items(args_, shared_.items, shared_.sequences, lane_);
    if (items.Peek().sequence >= 0) tiles.Prepare(items.Peek());
    FmhaItem item;
    while (items.Next(&item)) {
      tiles.Begin(item);
      Stream(item, tiles, items);
    }
    items.Finish();
  }

  // The queries come after the first keys, so that these are under way while the last item's queries are in use. Where the
  // next item's keys lie is looked up before this one's last loads wait for slots.
  template <class Tiles>
  __device__ __forceinline__ void Stream(const FmhaItem& item, Tiles& tiles, FmhaItemSource& items) {
    tiles.Find(item.begin);
    tiles.LoadKeys();
    LoadQueries(item);
    typename Tiles::Place last = tiles.place(), before = last;  // tiles whose values are still to be loaded
    for (int32_t key = item.begin + kFmhaTileKeys; key < item.end; key += kFmhaTileKeys) {
      if constexpr (!Traits::kOverlaps && !Traits::kValuesAreKeys) tiles.LoadValues(last);
      tiles.Find(key);
      tiles.LoadKeys();
      if (Traits::kOverlaps && key >= item.begin + 2 * kFmhaTileKeys) tiles.LoadValues(before);
      before = last;
      last = tiles.place();
    }
    if (items.Peek().sequence >= 0) tiles.Prepare(items.Peek());
    if (Traits::kOverlaps && item.end - item.begin > kFmhaTileKeys) tiles.LoadValues(before);
    if constexpr (!Traits::kValuesAreKeys) tiles.LoadValues(last);
  }

  __device__ void LoadQueries(const FmhaItem& item) {
    ptx::MbarrierWait(&shared_.query_empty[queries_.slot], queries_.phase ^ 1);
    if (lane_ == 0) {
      uint64_t* full = &shared_.query_full[queries_.slot];
      ptx::MbarrierArriveExpectTx(full, args_.group_rows * Traits::kKeyDim * 2);
      for (int32_t box = 0; box < Traits::kKeyBoxes; ++box) {
        ptx::CpAsyncBulkTensor3d(
            shared_.queries + queries_.slot * Traits::kQueryBytes + box * Traits::kQueryBoxBytes, &maps_.q,
            box * 64, item.kv_head * (args_.p.num_query_heads / args_.p.num_kv_heads),
            static_cast<int32_t>(FirstToken(args_, item.sequence)), full, ptx::kEvictFirst);
      }
    }
    __syncwarp();
    queries_.Next();
  }

  const FmhaDecodeArgs& args_;
  const FmhaTensorMaps& maps_;
  const FmhaShared<Traits>& shared_;
  int32_t lane_;
  FmhaSlotFiller<Traits> filler_;
  RingCursor<Traits::kQueryBuffers> queries_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_PRODUCER_CUH_
