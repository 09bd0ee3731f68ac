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
  // Lane b loads box b of a slot: rows (b / kSlotBoxes), columns (b % kSlotBoxes). Of listed keys it loads four.
  const int32_t row_box = lane / Traits::kSlotBoxes, column_box = lane % Traits::kSlotBoxes;
  const bool has_row_box = row_box < Traits::kTileKeys / rows_per_box;
  const bool listed = args.p.key_slots != nullptr;
  RingCursor<Traits::kSlots> ring;
  // `rows`: this lane's row of the cache, or its four.
  const auto load = [&](const CUtensorMap* map, int32_t columns, const int4& rows) {
    for (int32_t column = 0; column < columns; column += Traits::kSlotColumns) {
      const int32_t boxes = min(Traits::kSlotBoxes, (columns - column) / 64);
      uint64_t* full = &shared.load_full[ring.slot];
      ptx::MbarrierWait(&shared.load_empty[ring.slot], ring.phase ^ 1);
      if (lane == 0) ptx::MbarrierArriveExpectTx(full, boxes * Traits::kLoadBoxBytes);
      __syncwarp();
      uint8_t* slot = shared.loads + ring.slot * Traits::kLoadBytes;
      if (listed) {
        for (int32_t box = 0; box < boxes; ++box) {
          ptx::CpAsyncBulkTensorGather4(slot + box * Traits::kLoadBoxBytes + lane * 4 * Traits::kLoadRowBytes,
                                        map, column + box * 64, rows, full, ptx::kEvictFirst);
        }
      } else if (has_row_box && column_box < boxes) {
        ptx::CpAsyncBulkTensor2d(
            slot + column_box * Traits::kLoadBoxBytes + row_box * rows_per_box * Traits::kLoadRowBytes, map,
            column + column_box * 64, rows.x, full, ptx::kEvictFirst);
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
    const auto stream = [&](auto find_rows) {
      int4 rows = find_rows(item.begin);
      load(&maps.k, Traits::kKeyDim, rows);
      for (int32_t key = item.begin; key < item.end; key += Traits::kTileKeys) {
        int4 next_rows = rows;
        if (key + Traits::kTileKeys < item.end) {
          next_rows = find_rows(key + Traits::kTileKeys);
          load(&maps.k, Traits::kKeyDim, next_rows);
        }
        load(&maps.v, Traits::kValueDim, rows);
        rows = next_rows;
      }
    };
    // This lane's rows of the cache. Boxes past the item's end, and keys that a list leaves out, lie outside the tensor:
    // TMA fills them with zeros and reads nothing.
    const int32_t kv_head = item.kv_head / args.kv_head_repeat;
    const auto row_of = [&](int32_t block, int32_t offset) {
      return (block * kv_heads + kv_head) * block_size + offset;
    };
    if (listed) {
      stream([&](int32_t key) {
        int32_t rows[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t entry = key + lane * 4 + i;
          const int32_t slot = entry < item.end ? ListedSlot(args, item.sequence, entry) : -1;
          rows[i] = slot < 0 ? end_of_cache : row_of(slot / block_size, slot % block_size);
        }
        return make_int4(rows[0], rows[1], rows[2], rows[3]);
      });
    } else {
      BlockTableWindow table(args, item, lane);
      stream([&](int32_t key) {
        table.Cover(key / block_size, min(key + Traits::kTileKeys - 1, item.end - 1) / block_size);
        const int32_t box_key = key + row_box * rows_per_box;
        const int32_t block = table.Get(box_key / block_size);
        return make_int4(box_key < item.end ? row_of(block, box_key % block_size) : end_of_cache, 0, 0, 0);
      });
    }
  }
  items.Finish();
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_PRODUCER_CUH_
