// Work items of the FMHA prefill kernel: query rows of one chunk and KV head. A row is (token, query head of the group).
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_ITEMS_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_ITEMS_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_split.h"
#include "kernels/cuda/fmha/fmha_prefill.h"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

struct FmhaPrefillArgs {
  FmhaPrefillParams p;
  int32_t group;            // query heads a KV head
  int32_t block_shift;      // log2 of the block size
  float scale_log2;         // softmax scale times log2(e)
  int32_t heads_at_a_time;  // KV heads whose items are taken together, so that their keys and values fit L2
  int32_t* next_item;       // workspace, both zero between launches: items taken beyond each CTA's first
  int32_t* done_ctas;
  float4* totals;  // workspace, see FmhaTotals::kGlobal
};

struct FmhaPrefillItem {
  FmhaPrefillChunk chunk;
  int32_t kv_head;
  int32_t first_row;  // of chunk.num_tokens * group
  int32_t begin;      // keys that its rows see, from a multiple of the tile
  int32_t end;

  __device__ bool IsNone() const { return chunk.num_tokens == 0; }
  __device__ int32_t tiles() const { return (end - begin + kFmhaTileKeys - 1) / kFmhaTileKeys; }
};

// Finds the items of a launch in the order of their indices, the whole warp together. Chunk by chunk, the rows that see
// most keys first.
template <int kRows>
class FmhaPrefillItems {
 public:
  __device__ FmhaPrefillItems(const FmhaPrefillArgs& args, int32_t lane) : args_(args), lane_(lane) {
    Load();
  }

  // `index` must not be below the last call's. An item of no tokens: there are no more.
  __device__ FmhaPrefillItem Get(int32_t index) {
    while (true) {
      int32_t sum = tiles_ * args_.p.num_kv_heads;
      for (int32_t distance = 1; distance < 32; distance *= 2) {
        const int32_t other = __shfl_up_sync(~0u, sum, distance);
        if (lane_ >= distance) sum += other;
      }
      const uint32_t beyond = __ballot_sync(~0u, index < before_ + sum);
      if (beyond == 0) {
        before_ += __shfl_sync(~0u, sum, 31);
        base_ += 32;
        if (base_ >= args_.p.num_chunks) return {};
        Load();
        continue;
      }
      const int32_t at = __ffs(beyond) - 1;
      const int32_t tiles = __shfl_sync(~0u, tiles_, at);
      const int32_t first = before_ + __shfl_sync(~0u, sum, at) - tiles * args_.p.num_kv_heads;
      return Find(base_ + at, tiles, index - first);
    }
  }

 private:
  __device__ void Load() {
    const int32_t chunk = base_ + lane_;
    const int64_t rows =
        chunk < args_.p.num_chunks ? int64_t{args_.p.chunks[chunk].num_tokens} * args_.group : 0;
    tiles_ = static_cast<int32_t>((rows + kRows - 1) / kRows);
  }

  __device__ FmhaPrefillItem Find(int32_t chunk, int32_t tiles, int32_t index) const {
    FmhaPrefillItem item;
    item.chunk = args_.p.chunks[chunk];
    const int32_t section = index / (tiles * args_.heads_at_a_time);
    index -= section * tiles * args_.heads_at_a_time;
    const int32_t first_head = section * args_.heads_at_a_time;
    const int32_t heads = min(args_.heads_at_a_time, args_.p.num_kv_heads - first_head);
    item.kv_head = first_head + index % heads;
    item.first_row = (tiles - 1 - index / heads) * kRows;
    const int32_t start = item.chunk.length - item.chunk.num_tokens;
    const int32_t first = start + item.first_row / args_.group;
    const int32_t last = start + min((item.first_row + kRows - 1) / args_.group, item.chunk.num_tokens - 1);
    const int32_t seen = args_.p.sliding_window > 0 ? max(0, first - args_.p.sliding_window + 1) : 0;
    item.begin = seen / kFmhaTileKeys * kFmhaTileKeys;
    item.end = last + 1;
    return item;
  }

  const FmhaPrefillArgs& args_;
  const int32_t lane_;
  int32_t base_ = 0, before_ = 0;  // first chunk of those in the lanes, items of the chunks before it
  int32_t tiles_;                  // of this lane's chunk
};

// Position in a ring in shared memory.
template <int kSlots>
struct FmhaRing {
  int32_t slot = 0;
  uint32_t phase = 0;
  __device__ void Advance(int32_t by = 1) {
    slot += by;
    if (slot >= kSlots) {
      slot -= kSlots;
      phase ^= 1;
    }
  }
};

// How the producer hands items to the other warps.
struct FmhaPrefillQueue {
  static constexpr int kSlots = 4;
  uint64_t* full;   // [kSlots] 1 arrival
  uint64_t* empty;  // [kSlots] an arrival from each warp that takes items
  FmhaPrefillItem* items;

  __device__ void Init(int32_t takers) const {
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      ptx::MbarrierInit(&full[slot], 1);
      ptx::MbarrierInit(&empty[slot], takers);
    }
  }
  __device__ void Put(FmhaRing<kSlots>& ring, const FmhaPrefillItem& item, int32_t lane) const {
    ptx::MbarrierWait(&empty[ring.slot], ring.phase ^ 1);
    if (lane == 0) {
      items[ring.slot] = item;
      ptx::MbarrierArrive(&full[ring.slot]);
    }
    ring.Advance();
  }
  // The next item, which stays where it is until this warp releases it.
  __device__ const FmhaPrefillItem& Take(const FmhaRing<kSlots>& ring) const {
    ptx::MbarrierWait(&full[ring.slot], ring.phase);
    return items[ring.slot];
  }
  __device__ void Release(FmhaRing<kSlots>& ring, int32_t lane) const {
    __syncwarp();
    if (lane == 0) ptx::MbarrierArrive(&empty[ring.slot]);
    ring.Advance();
  }
};

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_ITEMS_CUH_
