// FMHA decode for sm_100: the warp that loads queries, keys and values.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_PRODUCER_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_PRODUCER_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_launch.h"
#include "kernels/cuda/fmha/fmha_decode_sm100_traits.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace tessera::cuda {

// The producer's role. Slots come in the order in which the products take them: the keys of tile t + 1 before the values
// of tile t.
template <class Traits>
__device__ void ProduceTilesSm100(const FmhaDecodeArgs& args, const FmhaTensorMaps& maps,
                                  const FmhaSm100Shared<Traits>& shared, int32_t lane) {
  const int32_t block_size = args.p.block_size;
  const int32_t rows_per_box = min(block_size, kFmhaTileKeys);
  const int32_t kv_heads = args.p.num_kv_heads / args.kv_head_repeat;
  const int32_t end_of_cache = args.p.num_blocks * kv_heads * block_size;
  // Lane b loads box b of a slot: rows (b / kSlotBoxes), columns (b % kSlotBoxes).
  const int32_t row_box = lane / Traits::kSlotBoxes, column_box = lane % Traits::kSlotBoxes;
  const bool has_row_box = row_box < Traits::kTileKeys / rows_per_box;
  RingCursor<Traits::kSlots> ring;
  const auto load = [&](const CUtensorMap* map, int32_t columns, int32_t row) {
    for (int32_t column = 0; column < columns; column += Traits::kSlotColumns) {
      const int32_t boxes = min(Traits::kSlotBoxes, (columns - column) / 64);
      ptx::MbarrierWait(&shared.empty[ring.slot], ring.phase ^ 1);
      if (lane == 0) ptx::MbarrierArriveExpectTx(&shared.full[ring.slot], boxes * Traits::kBoxBytes);
      __syncwarp();
      if (has_row_box && column_box < boxes) {
        uint8_t* target = shared.slots + ring.slot * Traits::kSlotBytes + column_box * Traits::kBoxBytes +
                          row_box * rows_per_box * 128;
        ptx::CpAsyncBulkTensor2d(target, map, column + column_box * 64, row, &shared.full[ring.slot],
                                 ptx::kEvictFirst);
      }
      ring.Next();
    }
  };
  FmhaItemSource items(args, shared.items, shared.sequences, lane);
  uint32_t item_phase = 0;
  FmhaItem item;
  while (items.Next(&item)) {
    ptx::MbarrierWait(shared.q_empty, item_phase ^ 1);
    if (lane == 0) {
      ptx::MbarrierArriveExpectTx(shared.q_full, args.group_rows * Traits::kKeyDim * 2);
      for (int32_t box = 0; box < Traits::kKeyBoxes; ++box) {
        ptx::CpAsyncBulkTensor3d(shared.queries + box * Traits::kQueryBoxBytes, &maps.q, box * 64,
                                 item.kv_head * (args.p.num_query_heads / args.p.num_kv_heads),
                                 static_cast<int32_t>(FirstToken(args, item.sequence)), shared.q_full,
                                 ptx::kEvictFirst);
      }
    }
    item_phase ^= 1;
    __syncwarp();
    BlockTableWindow table(args, item, lane);
    // This lane's row of the cache. Boxes past the item's end lie outside the tensor: TMA fills them with zeros and reads
    // nothing.
    const auto find_row = [&](int32_t key) {
      table.Cover(key / block_size, min(key + Traits::kTileKeys - 1, item.end - 1) / block_size);
      const int32_t box_key = key + row_box * rows_per_box;
      const int32_t block = table.Get(box_key / block_size);
      if (box_key >= item.end) return end_of_cache;
      return (block * kv_heads + item.kv_head / args.kv_head_repeat) * block_size + box_key % block_size;
    };
    int32_t row = find_row(item.begin);
    load(&maps.k, Traits::kKeyDim, row);
    for (int32_t key = item.begin; key < item.end; key += Traits::kTileKeys) {
      int32_t next_row = 0;
      if (key + Traits::kTileKeys < item.end) {
        next_row = find_row(key + Traits::kTileKeys);
        load(&maps.k, Traits::kKeyDim, next_row);
      }
      load(&maps.v, Traits::kValueDim, row);
      row = next_row;
    }
  }
  items.Finish();
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_PRODUCER_CUH_
