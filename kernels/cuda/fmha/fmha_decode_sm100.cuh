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
//   full      1 + bytes   (TMA)         a slot holds its keys or values
//   empty     1 (commit)                the products that read the slot are done
//   q_full    1 + bytes   (TMA)         the item's queries are there
//   q_empty   1 (commit)                the item's last scores are computed
//   s_full    1 (commit)                a tile's scores are there
//   p_full    4 (softmax warps)         a tile's weights are in shared memory; its scores were read; O was rescaled
//   p_empty   1 (commit)                a tile's values are added; after an item's last tile, O is complete
//
// Scores and O need no "empty" barrier of their own: whoever waits for p_full of a tile knows that its scores, and the
// output of the item before, were read.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_common.cuh"
#include "kernels/cuda/fmha/fmha_decode_launch.h"
#include "kernels/cuda/ptx/instruction_descriptor.h"
#include "kernels/cuda/ptx/smem_descriptor.h"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tcgen05.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace tessera::cuda {

template <int kKeyDimension, int kValueDimension, int kQueryRows>
struct FmhaDecodeSm100Traits {
  static constexpr int kKeyDim = kKeyDimension;
  static constexpr int kValueDim = kValueDimension;
  static constexpr int kRows = kQueryRows;                  // query rows of an item: 8, 16, 32 or 64
  static constexpr int kColumns = kRows < 16 ? 16 : kRows;  // N of the products
  static constexpr int kTileKeys = 128;                     // M of S^T
  static constexpr int kSoftmaxWarps = 4;
  static constexpr int kThreads = 32 * (kSoftmaxWarps + 2);

  // A slot holds up to 128 columns of a tile's keys or values, in boxes of 64 (128 bytes, the width of the swizzle).
  static constexpr int kBoxBytes = kTileKeys * 128;
  static constexpr int kSlotColumns = kKeyDim < 128 ? 64 : 128;
  static constexpr int kSlotBoxes = kSlotColumns / 64;
  static constexpr int kSlotBytes = kSlotBoxes * kBoxBytes;
  static constexpr int kKeyBoxes = kKeyDim / 64;
  static constexpr int kKeySlots = (kKeyBoxes + kSlotBoxes - 1) / kSlotBoxes;
  static constexpr int kValueSlots = kValueDim / kSlotColumns;

  static constexpr int kQueryBoxBytes = kColumns * 128;
  static constexpr int kQueryBytes = kKeyBoxes * kQueryBoxBytes;
  static constexpr int kWeightBytes = kColumns * kTileKeys * 2;
  static constexpr int kSmallBytes = 6656;  // barriers, lengths and split prefix sums, softmax statistics
  // Two CTAs an SM hide each other's waits between items, where that leaves each 96 KB of keys and values in flight.
  static constexpr int SlotsThatFit(int ctas) {
    return (233472 / ctas - 1024 - 1024 - kQueryBytes - kWeightBytes - kSmallBytes) / kSlotBytes;
  }
  static constexpr int kCtasPerSm = SlotsThatFit(2) * kSlotBytes >= 96 * 1024 && kRows <= 16 ? 2 : 1;
  static constexpr int kSlots = SlotsThatFit(kCtasPerSm) < 16 ? SlotsThatFit(kCtasPerSm) : 16;
  static constexpr int kSharedBytes = 1024 + kSlots * kSlotBytes + kQueryBytes + kWeightBytes + kSmallBytes;

  // Tensor memory: two tiles of scores, then the output, 128 value dimensions after 128.
  static constexpr int kOutColumn = 2 * kColumns;
  static constexpr int kUsedTmem = kOutColumn + kValueSlots * kColumns;
  static constexpr int kTmemColumns = kUsedTmem <= 64    ? 64
                                      : kUsedTmem <= 128 ? 128
                                      : kUsedTmem <= 256 ? 256
                                                         : 512;
  static constexpr int kChunk = kRows < 16 ? 8 : 16;  // query rows that a thread loads at a time

  static_assert(kKeyDim % 64 == 0 && kValueDim % kSlotColumns == 0, "heads are cut into boxes of 64 columns");
  static_assert(kSlots >= 2, "a slot must load while another is used");
  static_assert(kSharedBytes <= 232448, "227 KB of shared memory a CTA");
  static_assert(kUsedTmem <= 512 && kTmemColumns * kCtasPerSm <= 512, "512 columns of tensor memory an SM");
};

template <class Traits>
struct FmhaSm100Shared {
  uint8_t* slots;    // [kSlots][kSlotBoxes][key][128 bytes], swizzled
  uint8_t* queries;  // [kKeyBoxes][row][128 bytes], swizzled
  uint8_t* weights;  // [kColumns / 8][key][8 rows] bf16
  uint64_t* full;    // [kSlots]
  uint64_t* empty;   // [kSlots]
  uint64_t* q_full;
  uint64_t* q_empty;
  uint64_t* s_full;  // [2]
  uint64_t* p_full;
  uint64_t* p_empty;
  FmhaItemQueue items;
  int32_t* flag;
  uint32_t* tmem;
  float* maximum;   // [row] what the weights are relative to, log2 domain
  float* factor;    // [row] of a rescale, or of the final division
  float* by_warp;   // [warp][row] maxima, sums
  int32_t* offset;  // [row] its place among the sequence's query heads, for KV head 0
  int2* sequences;  // [num_sequences + 1]: splits of the sequences before, length

  __device__ explicit FmhaSm100Shared(uint8_t* base) {
    slots = base + (1024 - ptx::SharedAddress(base) % 1024) % 1024;
    queries = slots + Traits::kSlots * Traits::kSlotBytes;
    weights = queries + Traits::kQueryBytes;
    full = reinterpret_cast<uint64_t*>(weights + Traits::kWeightBytes);
    empty = full + Traits::kSlots;
    q_full = empty + Traits::kSlots;
    q_empty = q_full + 1;
    s_full = q_empty + 1;
    p_full = s_full + 2;
    p_empty = p_full + 1;
    items.full = p_empty + 1;
    items.empty = items.full + kFmhaItemQueue;
    items.index = reinterpret_cast<int32_t*>(items.empty + kFmhaItemQueue);
    flag = items.index + kFmhaItemQueue;
    tmem = reinterpret_cast<uint32_t*>(flag + 1);
    sequences = reinterpret_cast<int2*>(tmem + 1);
    maximum = reinterpret_cast<float*>(sequences + kFmhaMaxSequences + 2);
    factor = maximum + Traits::kRows;
    by_warp = factor + Traits::kRows;
    offset = reinterpret_cast<int32_t*>(by_warp + Traits::kSoftmaxWarps * Traits::kRows);
  }
  static_assert((2 * Traits::kSlots + 6 + 2 * kFmhaItemQueue) * 8 + (kFmhaItemQueue + 2) * 4 +
                        (kFmhaMaxSequences + 2) * 8 + (Traits::kSoftmaxWarps + 3) * Traits::kRows * 4 <=
                    Traits::kSmallBytes,
                "the small things must fit");
};

// The producer's role. Slots come in the order in which the products take them: the keys of tile t + 1 before the values
// of tile t.
template <class Traits>
__device__ void ProduceTilesSm100(const FmhaDecodeArgs& args, const FmhaTensorMaps& maps,
                                  const FmhaSm100Shared<Traits>& shared, int32_t num_items, int32_t lane) {
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
  FmhaItemSource items(args, shared.items, num_items, lane);
  uint32_t item_phase = 0;
  int32_t index;
  while (items.Next(&index)) {
    const FmhaItem item = DecodeItem(args, shared.sequences, index);
    ptx::MbarrierWait(shared.q_empty, item_phase ^ 1);
    if (lane == 0) {
      ptx::MbarrierArriveExpectTx(shared.q_full, args.group_rows * Traits::kKeyDim * 2);
      for (int32_t box = 0; box < Traits::kKeyBoxes; ++box) {
        ptx::CpAsyncBulkTensor3d(shared.queries + box * Traits::kQueryBoxBytes, &maps.q, box * 64,
                                 item.kv_head * (args.p.num_query_heads / args.p.num_kv_heads),
                                 static_cast<int32_t>(FirstToken(args, item.sequence)), shared.q_full, ptx::kEvictFirst);
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

// The issuer of matrix products; its warp waits as a whole, one lane issues.
template <class Traits>
class FmhaProducts {
 public:
  __device__ FmhaProducts(const FmhaSm100Shared<Traits>& shared, uint32_t tmem, int32_t lane)
      : shared_(shared), tmem_(tmem), lane_(lane), leads_(ptx::ElectSync()) {
    queries_ = ptx::MakeSmemDescriptor(ptx::SharedAddress(shared.queries), 0, 1024, ptx::SmemSwizzle::k128);
    // 8 keys of 8 rows are 128 bytes; the next 8 keys follow, the next 8 rows come after all keys.
    weights_ = ptx::MakeSmemDescriptor(ptx::SharedAddress(shared.weights), 128, Traits::kTileKeys * 16,
                                       ptx::SmemSwizzle::kNone);
  }

  // S^T of a tile into score buffer `buffer`.
  __device__ void Score(int32_t buffer) {
    constexpr uint32_t kInstruction = ptx::MakeBf16InstructionDescriptor(Traits::kTileKeys, Traits::kColumns,
                                                                         ptx::Major::kK, ptx::Major::kK);
#pragma unroll 1
    for (int32_t box = 0; box < Traits::kKeyBoxes; box += Traits::kSlotBoxes) {
      ptx::MbarrierWait(&shared_.full[ring_.slot], ring_.phase);
      if (leads_) {
        const uint64_t keys = ptx::MakeSmemDescriptor(SlotAddress(), 0, 1024, ptx::SmemSwizzle::k128);
        const uint64_t queries = ptx::AdvanceSmemDescriptor(queries_, box * Traits::kQueryBoxBytes);
#pragma unroll
        for (int32_t i = 0; i < Traits::kSlotBoxes; ++i) {
          if (box + i >= Traits::kKeyBoxes) break;
#pragma unroll
          for (int32_t step = 0; step < 4; ++step) {
            ptx::Tcgen05MmaF16(tmem_ + buffer * Traits::kColumns,
                               ptx::AdvanceSmemDescriptor(keys, i * Traits::kBoxBytes + step * 32),
                               ptx::AdvanceSmemDescriptor(queries, i * Traits::kQueryBoxBytes + step * 32),
                               kInstruction, box + i + step > 0);
          }
        }
      }
      ReleaseSlot();
    }
    Commit(&shared_.s_full[buffer]);
  }

  // O^T = V^T P^T, or += if `accumulate`, over a tile's first `valid` keys.
  __device__ void AddValues(int32_t valid, bool accumulate) {
    constexpr uint32_t kInstruction =
        ptx::MakeBf16InstructionDescriptor(128, Traits::kColumns, ptx::Major::kMn, ptx::Major::kMn);
    // With 64 value dimensions the second half of M repeats the first: it costs nothing, a product of 64 rows takes as
    // long, and O keeps one layout.
    constexpr uint32_t kNextBox = Traits::kSlotBoxes == 1 ? 0 : Traits::kBoxBytes;
    const int32_t steps = valid >= Traits::kTileKeys ? Traits::kTileKeys / 16 : (valid + 15) / 16;
#pragma unroll 1
    for (int32_t slot = 0; slot < Traits::kValueSlots; ++slot) {
      ptx::MbarrierWait(&shared_.full[ring_.slot], ring_.phase);
      if (valid < steps * 16) ClearKeys(valid, steps * 16);
      if (leads_) {
        const uint64_t values =
            ptx::MakeSmemDescriptor(SlotAddress(), kNextBox, 1024, ptx::SmemSwizzle::k128);
        for (int32_t step = 0; step < steps; ++step) {
          ptx::Tcgen05MmaF16(tmem_ + Traits::kOutColumn + slot * Traits::kColumns,
                             ptx::AdvanceSmemDescriptor(values, step * 16 * 128),
                             ptx::AdvanceSmemDescriptor(weights_, step * 256), kInstruction,
                             accumulate || step > 0);
        }
      }
      ReleaseSlot();
    }
    Commit(shared_.p_empty);
  }

  __device__ void Commit(uint64_t* barrier) const {
    if (leads_) ptx::Tcgen05Commit(barrier);
    __syncwarp();
  }

 private:
  __device__ uint32_t SlotAddress() const {
    return ptx::SharedAddress(shared_.slots + ring_.slot * Traits::kSlotBytes);
  }

  __device__ void ReleaseSlot() {
    Commit(&shared_.empty[ring_.slot]);
    ring_.Next();
  }

  // Zeroes the values of the keys first .. end - 1: garbage past the sequence's end must not meet a weight of 0.
  __device__ void ClearKeys(int32_t first, int32_t end) const {
    uint4* slot = reinterpret_cast<uint4*>(shared_.slots + ring_.slot * Traits::kSlotBytes);
    for (int32_t box = 0; box < Traits::kSlotBoxes; ++box) {
      for (int32_t i = first * 8 + lane_; i < end * 8; i += 32)
        slot[box * Traits::kBoxBytes / 16 + i] = make_uint4(0, 0, 0, 0);
    }
    ptx::FenceProxyAsyncShared();
    __syncwarp();
  }

  const FmhaSm100Shared<Traits>& shared_;
  uint32_t tmem_;
  int32_t lane_;
  bool leads_;
  uint64_t queries_, weights_;
  RingCursor<Traits::kSlots> ring_;
};

// The role of the warp that issues matrix products.
template <class Traits>
__device__ void MultiplyTiles(const FmhaDecodeArgs& args, const FmhaSm100Shared<Traits>& shared,
                              uint32_t tmem, int32_t num_items, int32_t lane) {
  FmhaProducts<Traits> products(shared, tmem, lane);
  RingCursor<kFmhaItemQueue> queue;
  uint32_t tile = 0, item_phase = 0;  // tiles of all items
  while (true) {
    const int32_t index = shared.items.Take(queue, lane);
    if (index >= num_items) break;
    const FmhaItem item = DecodeItem(args, shared.sequences, index);
    ptx::MbarrierWait(shared.q_full, item_phase);
    item_phase ^= 1;
    products.Score(tile % 2);
    for (int32_t key = item.begin; key < item.end; key += Traits::kTileKeys, ++tile) {
      if (key + Traits::kTileKeys < item.end) {
        products.Score((tile + 1) % 2);
      } else {
        products.Commit(shared.q_empty);
      }
      ptx::MbarrierWait(shared.p_full, tile % 2);
      ptx::Tcgen05FenceAfterThreadSync();
      products.AddValues(item.end - key, key > item.begin);
    }
  }
}

// Loads the columns of this thread's lane that belong to a tile of query rows.
template <class Traits, class Use>
__device__ __forceinline__ void ForEachRowChunk(uint32_t address, Use use) {
#pragma unroll
  for (int32_t first = 0; first < Traits::kRows; first += Traits::kChunk) {
    uint32_t values[Traits::kChunk];
    ptx::Tcgen05Ld32x32b(values, address + first);
    ptx::Tcgen05WaitLd(values);
    use(first, values);
  }
}

// The softmax of warps 0 to 3, one key a thread, all query rows of the item.
template <class Traits>
class FmhaSoftmax {
 public:
  __device__ FmhaSoftmax(const FmhaDecodeArgs& args, const FmhaSm100Shared<Traits>& shared, uint32_t tmem,
                         int32_t warp, int32_t lane)
      : args_(args), shared_(shared), tmem_(ptx::TmemLane(tmem, warp * 32)), warp_(warp), lane_(lane) {
    if (Thread() < Traits::kRows) {
      const int32_t group = args.p.num_query_heads / args.p.num_kv_heads;
      shared.maximum[Thread()] = -INFINITY;
      shared.offset[Thread()] = Thread() / group * args.p.num_query_heads + Thread() % group;
    }
    Sync();
  }

  __device__ void Begin() {
#pragma unroll
    for (float& sum : sums_) sum = 0.0f;
  }

  // Weighs tile `tile` (of all items), whose first key is `key`.
  __device__ void WeighTile(const FmhaItem& item, int32_t key, uint32_t tile) {
    ptx::MbarrierWait(&shared_.s_full[tile % 2], tile / 2 % 2);
    ptx::Tcgen05FenceAfterThreadSync();
    float scores[Traits::kRows];
    ForEachRowChunk<Traits>(tmem_ + tile % 2 * Traits::kColumns, [&](int32_t first, const auto& values) {
#pragma unroll
      for (int32_t i = 0; i < Traits::kChunk; ++i)
        scores[first + i] = __uint_as_float(values[i]) * args_.scale_log2;
    });
    // Keys that every query token sees need no mask.
    const int32_t length = item.splits.end;
    if (key + Traits::kTileKeys > length - args_.p.q_len + 1 ||
        (args_.p.sliding_window > 0 && key < length - args_.p.sliding_window)) {
      MaskScores(length, key + Thread(), scores);
    }
    bool exceeds = false;
#pragma unroll
    for (int32_t row = 0; row < Traits::kRows; ++row) {
      exceeds |= scores[row] > shared_.maximum[row] + kFmhaMaximumSlack;
    }
    const uint32_t values_added = (tile + 1) % 2;  // phase of p_empty: the tile before is done
    if (ptx::NamedBarrierRedOr(1, kThreads, exceeds)) {
      RaiseMaxima(scores);
      ptx::MbarrierWait(shared_.p_empty, values_added);
      if (key > item.begin) RescaleOutput();
    }
    ptx::MbarrierWait(shared_.p_empty, values_added);
    StoreWeights(scores);
    ptx::FenceProxyAsyncShared();
    ptx::Tcgen05FenceBeforeThreadSync();
    __syncwarp();
    if (lane_ == 0) ptx::MbarrierArrive(shared_.p_full);
  }

  // Finishes an item whose last tile was `tile`.
  __device__ void WriteItem(const FmhaItem& item, uint32_t tile) {
#pragma unroll
    for (int32_t row = 0; row < Traits::kRows; ++row) {
      float sum = sums_[row];
#pragma unroll
      for (int32_t distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
      if (lane_ == 0) shared_.by_warp[warp_ * Traits::kRows + row] = sum;
    }
    Sync();
    const bool whole = item.splits.count == 1;
    const int64_t first_part =
        (int64_t{item.global_split} * args_.p.num_kv_heads + item.kv_head) * Traits::kRows;
    if (const int32_t row = Thread(); row < args_.group_rows) {
      float sum = 0.0f;
      for (int32_t w = 0; w < Traits::kSoftmaxWarps; ++w) sum += shared_.by_warp[w * Traits::kRows + row];
      const int32_t group = args_.p.num_query_heads / args_.p.num_kv_heads;
      const float maximum = shared_.maximum[row];
      if (whole) {
        shared_.factor[row] = InverseSum(args_, item.kv_head * group + row % group, maximum, sum);
      } else {
        args_.split_stats[first_part + row] = make_float2(maximum, sum);
      }
    }
    Sync();
    ptx::MbarrierWait(shared_.p_empty, tile % 2);
    ptx::Tcgen05FenceAfterThreadSync();
    if (whole) {
      const int64_t head = FirstToken(args_, item.sequence) * args_.p.num_query_heads +
                           item.kv_head * (args_.p.num_query_heads / args_.p.num_kv_heads);
      __nv_bfloat16* out = static_cast<__nv_bfloat16*>(args_.p.out) + head * Traits::kValueDim;
      ForEachOutput([&](int32_t row, int32_t dim, float value) {
        out[int64_t{shared_.offset[row]} * Traits::kValueDim + dim] =
            __float2bfloat16(value * shared_.factor[row]);
      });
    } else {
      float* out = args_.split_out + first_part * Traits::kValueDim;
      ForEachOutput(
          [&](int32_t row, int32_t dim, float value) { out[row * Traits::kValueDim + dim] = value; });
      PublishSplit<Traits::kValueDim, Traits::kRows, Traits::kSoftmaxWarps>(args_, item, shared_.flag, warp_,
                                                                            lane_);
    }
    ptx::Tcgen05FenceBeforeThreadSync();
    Sync();  // the statistics and the flag are free again
    if (Thread() < Traits::kRows) shared_.maximum[Thread()] = -INFINITY;
    Sync();
  }

 private:
  static constexpr int kThreads = 32 * Traits::kSoftmaxWarps;

  __device__ int32_t Thread() const { return warp_ * 32 + lane_; }
  __device__ void Sync() const { ptx::NamedBarrierSync(1, kThreads); }

  // This thread's key is not for every query row.
  __device__ __forceinline__ void MaskScores(int32_t length, int32_t key,
                                             float (&scores)[Traits::kRows]) const {
    const int32_t group = args_.p.num_query_heads / args_.p.num_kv_heads;
    const int32_t window = args_.p.sliding_window > 0 ? args_.p.sliding_window : length;
    int32_t position = length - args_.p.q_len, left = group;  // rows left of this query token
#pragma unroll
    for (int32_t row = 0; row < Traits::kRows; ++row) {
      if (key > position || key <= position - window) scores[row] = -INFINITY;
      if (--left == 0) {
        left = group;
        position = min(position + 1, length - 1);
      }
    }
  }

  // Lets the maxima of the rows whose scores exceed them by more than the slack follow. A row moves for its own scores
  // alone: its result must not depend on the rows beside it.
  __device__ __forceinline__ void RaiseMaxima(const float (&scores)[Traits::kRows]) {
#pragma unroll
    for (int32_t row = 0; row < Traits::kRows; ++row) {
      float maximum = scores[row];
#pragma unroll
      for (int32_t distance = 16; distance > 0; distance /= 2) {
        maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, distance));
      }
      if (lane_ == 0) shared_.by_warp[warp_ * Traits::kRows + row] = maximum;
    }
    Sync();
    if (const int32_t row = Thread(); row < Traits::kRows) {
      float grown = shared_.by_warp[row];
      for (int32_t w = 1; w < Traits::kSoftmaxWarps; ++w)
        grown = fmaxf(grown, shared_.by_warp[w * Traits::kRows + row]);
      const float maximum = shared_.maximum[row];
      const bool moves = grown > maximum + kFmhaMaximumSlack;
      shared_.factor[row] = moves ? ptx::Exp2(maximum - grown) : 1.0f;
      if (moves) shared_.maximum[row] = grown;
    }
    Sync();
#pragma unroll
    for (int32_t row = 0; row < Traits::kRows; ++row) sums_[row] *= shared_.factor[row];
  }

  // This thread's dimension of O^T, 128 dimensions after 128. With 64 dimensions two warps hold a copy.
  static constexpr int kOutWarps = Traits::kValueDim < 128 ? 2 : 4;

  __device__ __forceinline__ void RescaleOutput() const {
    if (warp_ >= kOutWarps) return;
    ptx::Tcgen05FenceAfterThreadSync();
#pragma unroll 1
    for (int32_t slot = 0; slot < Traits::kValueSlots; ++slot) {
      const uint32_t address = tmem_ + Traits::kOutColumn + slot * Traits::kColumns;
      ForEachRowChunk<Traits>(address, [&](int32_t first, auto& values) {
#pragma unroll
        for (int32_t i = 0; i < Traits::kChunk; ++i) {
          values[i] = __float_as_uint(__uint_as_float(values[i]) * shared_.factor[first + i]);
        }
        ptx::Tcgen05St32x32b(address + first, values);
      });
    }
    ptx::Tcgen05WaitSt();
  }

  // Weights of this thread's key to shared memory, eight rows at a time, and to the sums.
  __device__ __forceinline__ void StoreWeights(const float (&scores)[Traits::kRows]) {
#pragma unroll
    for (int32_t first = 0; first < Traits::kRows; first += 8) {
      uint32_t pairs[4];
#pragma unroll
      for (int32_t i = 0; i < 8; i += 2) {
        float weight[2];
#pragma unroll
        for (int32_t j = 0; j < 2; ++j) {
          const float base = shared_.maximum[first + i + j];
          weight[j] = ptx::Exp2(scores[first + i + j] - (base == -INFINITY ? 0.0f : base));
          sums_[first + i + j] += weight[j];
        }
        pairs[i / 2] = ptx::PackBf16(weight[0], weight[1]);
      }
      reinterpret_cast<uint4*>(shared_.weights)[first / 8 * Traits::kTileKeys + Thread()] =
          make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }

  template <class Use>
  __device__ __forceinline__ void ForEachOutput(Use use) const {
    if (warp_ >= kOutWarps) return;
#pragma unroll 1
    for (int32_t slot = 0; slot < Traits::kValueSlots; ++slot) {
      ForEachRowChunk<Traits>(tmem_ + Traits::kOutColumn + slot * Traits::kColumns,
                              [&](int32_t first, const auto& values) {
#pragma unroll
                                for (int32_t i = 0; i < Traits::kChunk; ++i) {
                                  if (first + i < args_.group_rows) {
                                    use(first + i, slot * 128 + Thread(), __uint_as_float(values[i]));
                                  }
                                }
                              });
    }
  }

  const FmhaDecodeArgs& args_;
  const FmhaSm100Shared<Traits>& shared_;
  uint32_t tmem_;
  int32_t warp_, lane_;
  float sums_[Traits::kRows];  // of this thread's keys
};

// The role of warps 0 to 3.
template <class Traits>
__device__ void AttendTiles(const FmhaDecodeArgs& args, const FmhaSm100Shared<Traits>& shared, uint32_t tmem,
                            int32_t num_items, int32_t warp, int32_t lane) {
  FmhaSoftmax<Traits> softmax(args, shared, tmem, warp, lane);
  RingCursor<kFmhaItemQueue> queue;
  uint32_t tile = 0;  // of all items
  while (true) {
    const int32_t index = shared.items.Take(queue, lane);
    if (index >= num_items) break;
    const FmhaItem item = DecodeItem(args, shared.sequences, index);
    softmax.Begin();
    for (int32_t key = item.begin; key < item.end; key += Traits::kTileKeys)
      softmax.WeighTile(item, key, tile++);
    softmax.WriteItem(item, tile - 1);
  }
}

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
  const FmhaSm100Shared<Traits> shared(shared_base);
  const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  constexpr int kProducerWarp = Traits::kSoftmaxWarps, kIssuerWarp = kProducerWarp + 1;
  if (warp == kProducerWarp && lane == 0) {
    ptx::PrefetchTensorMap(&maps.q);
    ptx::PrefetchTensorMap(&maps.k);
    ptx::PrefetchTensorMap(&maps.v);
    for (int32_t slot = 0; slot < Traits::kSlots; ++slot) {
      ptx::MbarrierInit(&shared.full[slot], 1);
      ptx::MbarrierInit(&shared.empty[slot], 1);
    }
    ptx::MbarrierInit(shared.q_full, 1);
    ptx::MbarrierInit(shared.q_empty, 1);
    ptx::MbarrierInit(&shared.s_full[0], 1);
    ptx::MbarrierInit(&shared.s_full[1], 1);
    ptx::MbarrierInit(shared.p_full, Traits::kSoftmaxWarps);
    ptx::MbarrierInit(shared.p_empty, 1);
    shared.items.Init(Traits::kSoftmaxWarps + 1);
    ptx::FenceBarrierInit();
  }
  if (warp == 0) ScanSplits(args, shared.sequences, lane);
  if (warp == kIssuerWarp) {
    ptx::Tcgen05Alloc(shared.tmem, Traits::kTmemColumns);
    ptx::Tcgen05RelinquishAllocPermit();
  }
  ClearPadding(args, shared);
  ptx::Tcgen05FenceBeforeThreadSync();
  __syncthreads();
  ptx::Tcgen05FenceAfterThreadSync();
  const uint32_t tmem = *shared.tmem;
  const int32_t num_items = shared.sequences[args.p.num_sequences].x * args.p.num_kv_heads;
  if (warp == kProducerWarp) {
    ProduceTilesSm100<Traits>(args, maps, shared, num_items, lane);
  } else if (warp == kIssuerWarp) {
    MultiplyTiles<Traits>(args, shared, tmem, num_items, lane);
  } else {
    AttendTiles<Traits>(args, shared, tmem, num_items, warp, lane);
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
