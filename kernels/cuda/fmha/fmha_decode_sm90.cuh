// FMHA decode for sm_90: the kernel.
//
// A few persistent CTAs an SM take work items (sequence, split, KV head) from a counter: SMs differ in how fast memory
// serves them, by a third on an H200, so an even share would leave most of them waiting for the slowest. The last warp feeds
// a ring of shared-memory slots through TMA, a slot being 64 keys or 64 values of one head; four consumer warps each
// attend to 16 of the 64 keys with mma.sync and keep their own running maximum, sum and output, which are merged once
// an item. Query rows of one KV head (GQA group x query tokens) are packed into the N side: S^T = K Q^T and O^T = V^T
// P^T, so that a group of 8 wastes nothing and each key is read once. More query rows than a warp's registers hold
// (prompts) go to further teams of four warps, over the same slots.
//
// The CTA that finishes the last split of a (sequence, KV head) combines its splits, in split order: which CTA that is
// varies from run to run, the sums do not.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_CUH_

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_common.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace tessera::cuda {

template <int kHeadDimension, int kNumRowTiles, int kNumTeams = 1>
struct FmhaDecodeTraits {
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kRowTiles = kNumRowTiles;  // of 8 query rows, of a team
  static constexpr int kTeams = kNumTeams;
  static constexpr int kTeamRows = 8 * kRowTiles;
  static constexpr int kRows = kTeamRows * kTeams;
  static constexpr int kTeamWarps = 4;  // each takes 16 keys of a tile
  static constexpr int kConsumerWarps = kTeamWarps * kTeams;
  // The producer warp would leave a register file's quarter with three warps, so 168 registers each. A whole warp group
  // of producers, one of which works, can give theirs to the consumers.
  static constexpr bool kMovesRegisters = kTeams > 1;
  static constexpr int kThreads = 32 * (kConsumerWarps + (kMovesRegisters ? 4 : 1));
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static_assert(!kMovesRegisters || 4 * kProducerRegisters + kConsumerWarps * kConsumerRegisters <= 65536 / 32);
  static constexpr int kSlotBytes = kFmhaTileKeys * kHeadDim * 2;
  static constexpr int kBoxColumns = 64;  // 128 bytes, the width of the swizzle
  static constexpr int kBoxes = kHeadDim / kBoxColumns;
  static constexpr int kMergeStride = kHeadDim + 4;  // floats; spreads a fragment over the banks
  static constexpr int kMergeBytes = kTeamWarps * kRows * kMergeStride * 4;
  // Several teams leave a warp too few registers to keep the queries there.
  static constexpr bool kQueriesInShared = kTeams > 1 && kHeadDim > 64;
  static constexpr int kQueryBytes = kQueriesInShared ? kRows * kHeadDim * 2 : 0;
  static constexpr int kMostSlots = 16;
  // Merge statistics, barriers, the item queue, the flag, and each sequence's splits and length.
  static constexpr int kSmallBytes = kTeamWarps * kRows * 8 + kMostSlots * 16 + kFmhaItemQueue * 20 + 8 +
                                     (kFmhaMaxSequences + 1) * 8 + 128;
  // Several small CTAs an SM hide each other's waits between items; 228 KB an SM, of which 1 KB a CTA is reserved.
  static constexpr int SlotsThatFit(int ctas) {
    return (233472 / ctas - 1024 - 1024 - 512 - kQueryBytes - kMergeBytes - kSmallBytes) / kSlotBytes;
  }
  static constexpr int kCtasPerSm = SlotsThatFit(4) >= 3 && kRowTiles == 1   ? 4
                                    : SlotsThatFit(3) >= 3 && kRowTiles == 1 ? 3
                                    : SlotsThatFit(2) >= 2 && kRowTiles < 4  ? 2
                                                                             : 1;
  static constexpr int kSlots = SlotsThatFit(kCtasPerSm) < kMostSlots ? SlotsThatFit(kCtasPerSm) : kMostSlots;
  static constexpr int kSharedBytes = 1024 + kSlots * kSlotBytes + kQueryBytes + kMergeBytes + kSmallBytes;
  static_assert(kHeadDim % 64 == 0, "a head is cut into boxes of 64 columns");
  static_assert(kSlots >= 2, "a key and a value slot must fit");
};

template <class Traits>
struct FmhaShared {
  uint8_t* slots;
  uint8_t* queries;     // kQueriesInShared: [row][kHeadDim], the 16-byte chunks of a row swizzled
  float* merge_out;     // [warp of the team][row][kMergeStride]
  float2* merge_stats;  // [warp of the team][row]
  uint64_t* full;
  uint64_t* empty;
  FmhaItemQueue items;
  int32_t* flag;
  int2* sequences;  // [num_sequences + 1]: splits of the sequences before, length

  __device__ explicit FmhaShared(uint8_t* base) {
    slots = base + (1024 - ptx::SharedAddress(base) % 1024) % 1024;
    queries = slots + Traits::kSlots * Traits::kSlotBytes;
    merge_out = reinterpret_cast<float*>(queries + Traits::kQueryBytes);
    merge_stats = reinterpret_cast<float2*>(merge_out + Traits::kMergeBytes / 4);
    full = reinterpret_cast<uint64_t*>(merge_stats + Traits::kTeamWarps * Traits::kRows);
    empty = full + Traits::kSlots;
    items.full = empty + Traits::kSlots;
    items.empty = items.full + kFmhaItemQueue;
    items.index = reinterpret_cast<int32_t*>(items.empty + kFmhaItemQueue);
    flag = items.index + kFmhaItemQueue;
    sequences = reinterpret_cast<int2*>(flag + 2);
  }
};

// The producer's role: streams keys and values of every item through the ring.
template <class Traits>
__device__ void ProduceTiles(const FmhaDecodeArgs& args, const CUtensorMap* k_map, const CUtensorMap* v_map,
                             const FmhaShared<Traits>& shared, int32_t num_items, int32_t lane) {
  RingCursor<Traits::kSlots> ring;
  const int32_t block_size = args.p.block_size;
  const int32_t rows_per_box = min(block_size, kFmhaTileKeys);
  const int32_t boxes_per_tile = kFmhaTileKeys / rows_per_box;
  const int32_t kv_heads = args.p.num_kv_heads / args.kv_head_repeat;
  FmhaItemSource items(args, shared.items, num_items, lane);
  int32_t index;
  while (items.Next(&index)) {
    const FmhaItem item = DecodeItem(args, shared.sequences, index);
    BlockTableWindow table(args, item, lane);
    for (int32_t key = item.begin; key < item.end; key += kFmhaTileKeys) {
      table.Cover(key / block_size, min(key + kFmhaTileKeys - 1, item.end - 1) / block_size);
      // Lane b loads box b: rows (b / kBoxes), columns (b % kBoxes).
      const int32_t row_box = lane / Traits::kBoxes, column_box = lane % Traits::kBoxes;
      const int32_t box_key = key + row_box * rows_per_box;
      const int32_t block = table.Get(box_key / block_size);
      const bool loads = row_box < boxes_per_tile && box_key < item.end;
      const int32_t row =
          (block * kv_heads + item.kv_head / args.kv_head_repeat) * block_size + box_key % block_size;
      const int32_t num_row_boxes = min(boxes_per_tile, (item.end - key + rows_per_box - 1) / rows_per_box);
      const uint32_t bytes = num_row_boxes * rows_per_box * Traits::kHeadDim * 2;
      for (int32_t value = 0; value < 2; ++value) {
        ptx::MbarrierWait(&shared.empty[ring.slot], ring.phase ^ 1);
        if (lane == 0) ptx::MbarrierArriveExpectTx(&shared.full[ring.slot], bytes);
        __syncwarp();
        if (loads) {
          uint8_t* target = shared.slots + ring.slot * Traits::kSlotBytes +
                            column_box * (kFmhaTileKeys * 128) + row_box * rows_per_box * 128;
          ptx::CpAsyncBulkTensor2d(target, value ? v_map : k_map, column_box * Traits::kBoxColumns, row,
                                   &shared.full[ring.slot], ptx::kEvictFirst);
        }
        ring.Next();
      }
    }
  }
  items.Finish();
}

// Running softmax of one consumer warp over its 16 keys a tile, for its team's query rows, in the log2 domain. A lane
// holds rows 8 tile + 2 (lane % 4) + {0, 1} of the team's.
template <class Traits>
struct FmhaWarpState {
  // B fragments of Q^T, unless the queries are in shared memory.
  uint32_t q[Traits::kQueriesInShared ? 1 : Traits::kRowTiles][Traits::kHeadDim / 16][2];
  float out[Traits::kRowTiles][Traits::kHeadDim / 16][4];   // O^T
  float maximum[Traits::kRowTiles][2];
  float sum[Traits::kRowTiles][2];  // this lane's keys only
};

// Where row `row` of an item's query rows lies in q; null past the last.
template <class Traits>
__device__ __forceinline__ const __nv_bfloat16* QueryRow(const FmhaDecodeArgs& args, const FmhaItem& item,
                                                         int64_t first_token, int32_t row) {
  if (row >= args.group_rows) return nullptr;
  const int32_t group = args.p.num_query_heads / args.p.num_kv_heads;
  const int64_t head = item.kv_head * group + row % group;
  return static_cast<const __nv_bfloat16*>(args.p.q) +
         ((first_token + row / group) * args.p.num_query_heads + head) * Traits::kHeadDim;
}

template <class Traits>
__device__ __forceinline__ uint8_t* QueryChunk(uint8_t* queries, int32_t row, int32_t chunk) {
  return queries + row * (Traits::kHeadDim * 2) + ((chunk & ~7) | ((chunk ^ row) & 7)) * 16;
}

// Starts an item: its queries, and an empty softmax. Where the queries go to shared memory, the consumers meet after it.
template <class Traits>
__device__ __forceinline__ void LoadQueries(const FmhaDecodeArgs& args, const FmhaItem& item,
                                            const FmhaShared<Traits>& shared, int32_t first_row, int32_t warp,
                                            int32_t lane, FmhaWarpState<Traits>& state) {
  const int64_t first_token = FirstToken(args, item.sequence);
  if constexpr (Traits::kQueriesInShared) {
    constexpr int32_t kChunks = Traits::kHeadDim / 8;
#pragma unroll 4
    for (int32_t i = warp * 32 + lane; i < Traits::kRows * kChunks; i += 32 * Traits::kConsumerWarps) {
      const int32_t row = i / kChunks, chunk = i % kChunks;
      const __nv_bfloat16* source = QueryRow<Traits>(args, item, first_token, row);
      *reinterpret_cast<uint4*>(QueryChunk<Traits>(shared.queries, row, chunk)) =
          source ? reinterpret_cast<const uint4*>(source)[chunk] : make_uint4(0, 0, 0, 0);
    }
    ptx::NamedBarrierSync(1, 32 * Traits::kConsumerWarps);
  }
#pragma unroll
  for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile) {
    if constexpr (!Traits::kQueriesInShared) {
      const uint32_t* source = reinterpret_cast<const uint32_t*>(
          QueryRow<Traits>(args, item, first_token, first_row + tile * 8 + lane / 4));
#pragma unroll
      for (int32_t step = 0; step < Traits::kHeadDim / 16; ++step) {
        state.q[tile][step][0] = source ? source[step * 8 + lane % 4] : 0;
        state.q[tile][step][1] = source ? source[step * 8 + 4 + lane % 4] : 0;
      }
    }
#pragma unroll
    for (int32_t step = 0; step < Traits::kHeadDim / 16; ++step) {
      for (float& value : state.out[tile][step]) value = 0.0f;
    }
    state.maximum[tile][0] = state.maximum[tile][1] = -INFINITY;
    state.sum[tile][0] = state.sum[tile][1] = 0.0f;
  }
}

// The B fragments of Q^T of 16 dimensions, all row tiles of the team.
template <class Traits>
__device__ __forceinline__ void QueryFragments(const FmhaShared<Traits>& shared,
                                               const FmhaWarpState<Traits>& state, int32_t first_row,
                                               int32_t step, int32_t lane,
                                               uint32_t (&b)[Traits::kRowTiles][2]) {
  if constexpr (Traits::kQueriesInShared) {
    static_assert(Traits::kRowTiles % 2 == 0, "row tiles are loaded in pairs");
#pragma unroll
    for (int32_t tile = 0; tile < Traits::kRowTiles; tile += 2) {
      uint32_t loaded[4];
      const int32_t row = first_row + (tile + lane / 16) * 8 + lane % 8;
      ptx::LdmatrixX4(loaded, ptx::SharedAddress(QueryChunk<Traits>(shared.queries, row, step * 2 + lane / 8 % 2)));
      b[tile][0] = loaded[0];
      b[tile][1] = loaded[1];
      b[tile + 1][0] = loaded[2];
      b[tile + 1][1] = loaded[3];
    }
  } else {
#pragma unroll
    for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile) {
      b[tile][0] = state.q[tile][step][0];
      b[tile][1] = state.q[tile][step][1];
    }
  }
}

// Address of the 16-byte chunk `chunk` of row `row` in a slot, as TMA's 128-byte swizzle placed it.
__device__ __forceinline__ uint32_t SwizzledAddress(uint32_t slot, int32_t row, int32_t chunk) {
  return slot + (chunk / 8) * (kFmhaTileKeys * 128) + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
}

// S^T = K Q^T for 16 keys of the slot, starting at row `first`.
template <class Traits>
__device__ __forceinline__ void ScoreKeys(const FmhaShared<Traits>& shared, uint32_t slot, int32_t first,
                                          int32_t first_row, int32_t lane, const FmhaWarpState<Traits>& state,
                                          float (&scores)[Traits::kRowTiles][4]) {
  const int32_t row = first + lane % 8 + (lane / 8) % 2 * 8;
  float odd[Traits::kRowTiles][4];  // two chains of dependent multiplications instead of one
#pragma unroll
  for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile) {
    for (float& value : scores[tile]) value = 0.0f;
    for (float& value : odd[tile]) value = 0.0f;
  }
  // Unrolled further, fragments from shared memory are fetched so far ahead that registers run out.
#pragma unroll(Traits::kQueriesInShared ? 2 : Traits::kHeadDim / 16)
  for (int32_t step = 0; step < Traits::kHeadDim / 16; ++step) {
    uint32_t a[4];
    ptx::LdmatrixX4(a, SwizzledAddress(slot, row, step * 2 + lane / 16));
    uint32_t b[Traits::kRowTiles][2];
    QueryFragments(shared, state, first_row, step, lane, b);
#pragma unroll
    for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile) {
      ptx::MmaM16N8K16(step % 2 ? odd[tile] : scores[tile], a, b[tile]);
    }
  }
#pragma unroll
  for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile) {
    for (int32_t i = 0; i < 4; ++i) scores[tile][i] += odd[tile][i];
  }
}

// Masks keys that a query row must not see. `first_key` is the position of the fragment's first key.
template <class Traits>
__device__ __forceinline__ void MaskScores(const FmhaDecodeArgs& args, int32_t length, int32_t first_row,
                                           int32_t first_key, int32_t lane, float (&scores)[Traits::kRowTiles][4]) {
  const int32_t group = args.p.num_query_heads / args.p.num_kv_heads;
#pragma unroll
  for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t key = first_key + lane / 4 + i / 2 * 8;
      const int32_t row = first_row + tile * 8 + lane % 4 * 2 + i % 2;
      const int32_t position = length - args.p.q_len + min(row / group, args.p.q_len - 1);
      const bool in_window = args.p.sliding_window <= 0 || key > position - args.p.sliding_window;
      if (key > position || !in_window) scores[tile][i] = -INFINITY;
    }
  }
}

// Folds the scores of 16 keys into the running softmax; gives their weights as B fragments of P^T. Where a score
// exceeds the maximum by more than the slack, the maximum follows and the output is rescaled.
template <class Traits>
__device__ __forceinline__ void UpdateSoftmax(float scale_log2, FmhaWarpState<Traits>& state,
                                              const float (&scores)[Traits::kRowTiles][4],
                                              uint32_t (&weights)[Traits::kRowTiles][2]) {
#pragma unroll
  for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile) {
    float maximum[2];
#pragma unroll
    for (int32_t column = 0; column < 2; ++column) {
      maximum[column] = fmaxf(scores[tile][column], scores[tile][column + 2]) * scale_log2;
    }
    if (__any_sync(~0u, maximum[0] > state.maximum[tile][0] + kFmhaMaximumSlack ||
                            maximum[1] > state.maximum[tile][1] + kFmhaMaximumSlack)) {
      float rescale[2];
#pragma unroll
      for (int32_t column = 0; column < 2; ++column) {
        float grown = maximum[column];
        grown = fmaxf(grown, __shfl_xor_sync(~0u, grown, 4));
        grown = fmaxf(grown, __shfl_xor_sync(~0u, grown, 8));
        grown = fmaxf(grown, __shfl_xor_sync(~0u, grown, 16));
        // A row moves for its own scores alone: its result must not depend on the rows beside it.
        const bool moves = grown > state.maximum[tile][column] + kFmhaMaximumSlack;
        rescale[column] = moves ? ptx::Exp2(state.maximum[tile][column] - grown) : 1.0f;
        if (moves) state.maximum[tile][column] = grown;
        state.sum[tile][column] *= rescale[column];
      }
#pragma unroll
      for (int32_t step = 0; step < Traits::kHeadDim / 16; ++step) {
        state.out[tile][step][0] *= rescale[0];
        state.out[tile][step][1] *= rescale[1];
        state.out[tile][step][2] *= rescale[0];
        state.out[tile][step][3] *= rescale[1];
      }
    }
    float p[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const float base = state.maximum[tile][i % 2];
      p[i] = ptx::Exp2(scores[tile][i] * scale_log2 - (base == -INFINITY ? 0.0f : base));
    }
    state.sum[tile][0] += p[0] + p[2];
    state.sum[tile][1] += p[1] + p[3];
    weights[tile][0] = ptx::MovmatrixTrans(ptx::PackBf16(p[0], p[1]));
    weights[tile][1] = ptx::MovmatrixTrans(ptx::PackBf16(p[2], p[3]));
  }
}

// Keeps the halves of a packed pair whose key is below `valid`; garbage past the end must not meet a weight of 0.
__device__ __forceinline__ uint32_t KeepValid(uint32_t pair, int32_t key, int32_t valid) {
  return pair & ((key < valid ? 0x0000FFFFu : 0u) | (key + 1 < valid ? 0xFFFF0000u : 0u));
}

// O^T += V^T P^T for 16 values of the slot, of which the first `valid` are the sequence's.
template <class Traits>
__device__ __forceinline__ void AddValues(uint32_t slot, int32_t first, int32_t valid, int32_t lane,
                                          const uint32_t (&weights)[Traits::kRowTiles][2],
                                          FmhaWarpState<Traits>& state) {
  const int32_t row = first + lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int32_t step = 0; step < Traits::kHeadDim / 16; ++step) {
    uint32_t a[4];
    ptx::LdmatrixX4Trans(a, SwizzledAddress(slot, row, step * 2 + (lane / 8) % 2));
    if (valid < 16) {
      a[0] = KeepValid(a[0], lane % 4 * 2, valid);
      a[1] = KeepValid(a[1], lane % 4 * 2, valid);
      a[2] = KeepValid(a[2], lane % 4 * 2 + 8, valid);
      a[3] = KeepValid(a[3], lane % 4 * 2 + 8, valid);
    }
#pragma unroll
    for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile)
      ptx::MmaM16N8K16(state.out[tile][step], a, weights[tile]);
  }
}

// Puts one warp's result of an item into shared memory; `warp` is its number in the team.
template <class Traits>
__device__ __forceinline__ void StoreForMerge(const FmhaShared<Traits>& shared, int32_t first_row,
                                              int32_t warp, int32_t lane, FmhaWarpState<Traits>& state) {
#pragma unroll
  for (int32_t tile = 0; tile < Traits::kRowTiles; ++tile) {
#pragma unroll
    for (int32_t column = 0; column < 2; ++column) {
      float sum = state.sum[tile][column];
      sum += __shfl_xor_sync(~0u, sum, 4);
      sum += __shfl_xor_sync(~0u, sum, 8);
      sum += __shfl_xor_sync(~0u, sum, 16);
      const int32_t row = first_row + tile * 8 + lane % 4 * 2 + column;
      if (lane < 4)
        shared.merge_stats[warp * Traits::kRows + row] = make_float2(state.maximum[tile][column], sum);
      float* out = shared.merge_out + (warp * Traits::kRows + row) * Traits::kMergeStride;
#pragma unroll
      for (int32_t step = 0; step < Traits::kHeadDim / 16; ++step) {
        out[step * 16 + lane / 4] = state.out[tile][step][column];
        out[step * 16 + lane / 4 + 8] = state.out[tile][step][column + 2];
      }
    }
  }
}

// Adds up the results of a team's four warps, in warp order; rows are shared out among all warps. A sequence of one split
// is finished here, else the partial result goes to the workspace.
template <class Traits>
__device__ __forceinline__ void MergeWarps(const FmhaDecodeArgs& args, const FmhaItem& item,
                                           const FmhaShared<Traits>& shared, int32_t warp, int32_t lane) {
  constexpr int32_t kPerLane = Traits::kHeadDim / 32;
  for (int32_t row = warp; row < args.group_rows; row += Traits::kConsumerWarps) {
    float maximum = -INFINITY;
#pragma unroll
    for (int32_t w = 0; w < Traits::kTeamWarps; ++w) {
      maximum = fmaxf(maximum, shared.merge_stats[w * Traits::kRows + row].x);
    }
    const float base = maximum == -INFINITY ? 0.0f : maximum;
    float out[kPerLane] = {};
    float sum = 0.0f;
#pragma unroll
    for (int32_t w = 0; w < Traits::kTeamWarps; ++w) {
      const float2 stats = shared.merge_stats[w * Traits::kRows + row];
      const float weight = ptx::Exp2(stats.x - base);
      sum += stats.y * weight;
      const float* part =
          shared.merge_out + (w * Traits::kRows + row) * Traits::kMergeStride + lane * kPerLane;
#pragma unroll
      for (int32_t i = 0; i < kPerLane; ++i) out[i] += part[i] * weight;
    }
    if (item.splits.count == 1) {
      WriteRow<kPerLane>(args, item, row, lane, out, maximum, sum);
      continue;
    }
    const int64_t index =
        (int64_t{item.global_split} * args.p.num_kv_heads + item.kv_head) * Traits::kRows + row;
    if (lane == 0) args.split_stats[index] = make_float2(maximum, sum);
    float* target = args.split_out + index * Traits::kHeadDim + lane * kPerLane;
#pragma unroll
    for (int32_t i = 0; i < kPerLane; i += 2) {
      *reinterpret_cast<float2*>(target + i) = make_float2(out[i], out[i + 1]);
    }
  }
}

// The consumers' role.
template <class Traits>
__device__ void ConsumeTiles(const FmhaDecodeArgs& args, const FmhaShared<Traits>& shared, int32_t num_items,
                             int32_t warp, int32_t lane) {
  constexpr uint32_t kConsumers = 32 * Traits::kConsumerWarps;
  RingCursor<Traits::kSlots> ring;
  FmhaWarpState<Traits> state;
  const int32_t team_warp = warp % Traits::kTeamWarps;
  const int32_t first_row = warp / Traits::kTeamWarps * Traits::kTeamRows;
  RingCursor<kFmhaItemQueue> queue;
  while (true) {
    const int32_t index = shared.items.Take(queue, lane);
    if (index >= num_items) break;
    const FmhaItem item = DecodeItem(args, shared.sequences, index);
    const int32_t length = item.splits.end;
    LoadQueries(args, item, shared, first_row, warp, lane, state);
    // Keys that every query token sees need no mask.
    const int32_t all_see_until = length - args.p.q_len + 1;
    const int32_t all_see_from = args.p.sliding_window > 0 ? length - args.p.sliding_window : 0;
    for (int32_t tile = item.begin; tile < item.end; tile += kFmhaTileKeys) {
      const int32_t first_key = tile + team_warp * 16;
      const bool any = first_key < item.end;
      uint32_t weights[Traits::kRowTiles][2];
      ptx::MbarrierWait(&shared.full[ring.slot], ring.phase);
      if (any) {
        float scores[Traits::kRowTiles][4];
        ScoreKeys(shared, ptx::SharedAddress(shared.slots + ring.slot * Traits::kSlotBytes), team_warp * 16,
                  first_row, lane, state, scores);
        if (first_key + 16 > all_see_until || first_key < all_see_from) {
          MaskScores<Traits>(args, length, first_row, first_key, lane, scores);
        }
        UpdateSoftmax(args.scale_log2, state, scores, weights);
      }
      __syncwarp();
      if (lane == 0) ptx::MbarrierArrive(&shared.empty[ring.slot]);
      ring.Next();
      ptx::MbarrierWait(&shared.full[ring.slot], ring.phase);
      if (any) {
        AddValues(ptx::SharedAddress(shared.slots + ring.slot * Traits::kSlotBytes), team_warp * 16,
                  item.end - first_key, lane, weights, state);
      }
      __syncwarp();
      if (lane == 0) ptx::MbarrierArrive(&shared.empty[ring.slot]);
      ring.Next();
    }
    StoreForMerge(shared, first_row, team_warp, lane, state);
    ptx::NamedBarrierSync(1, kConsumers);
    MergeWarps(args, item, shared, warp, lane);
    if (item.splits.count > 1) {
      PublishSplit<Traits::kHeadDim, Traits::kRows, Traits::kConsumerWarps>(args, item, shared.flag, warp,
                                                                            lane);
    }
    ptx::NamedBarrierSync(1, kConsumers);  // the merge buffer and the flag are free again
  }
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kCtasPerSm)
    FmhaDecodeKernel(const __grid_constant__ FmhaDecodeArgs args, const __grid_constant__ CUtensorMap k_map,
                     const __grid_constant__ CUtensorMap v_map) {
  extern __shared__ uint8_t shared_base[];
  const FmhaShared<Traits> shared(shared_base);
  const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (warp == Traits::kConsumerWarps && lane == 0) {
    ptx::PrefetchTensorMap(&k_map);
    ptx::PrefetchTensorMap(&v_map);
    for (int32_t slot = 0; slot < Traits::kSlots; ++slot) {
      ptx::MbarrierInit(&shared.full[slot], 1);
      ptx::MbarrierInit(&shared.empty[slot], Traits::kConsumerWarps);
    }
    shared.items.Init(Traits::kConsumerWarps);
    ptx::FenceBarrierInit();
  }
  if (warp == 0) ScanSplits(args, shared.sequences, lane);
  __syncthreads();
  const int32_t num_items = shared.sequences[args.p.num_sequences].x * args.p.num_kv_heads;
  if (warp >= Traits::kConsumerWarps) {
    if constexpr (Traits::kMovesRegisters) ptx::SetmaxnregDec<Traits::kProducerRegisters>();
    if (warp == Traits::kConsumerWarps) ProduceTiles<Traits>(args, &k_map, &v_map, shared, num_items, lane);
  } else {
    if constexpr (Traits::kMovesRegisters) ptx::SetmaxnregInc<Traits::kConsumerRegisters>();
    ConsumeTiles<Traits>(args, shared, num_items, warp, lane);
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_CUH_
