// FMHA decode for sm_100: tile sizes, shared and tensor memory.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_TRAITS_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_TRAITS_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_items.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"

namespace tessera::cuda {

template <int kKeyDimension, int kValueDimension, int kQueryRows, FmhaKvFormat kFormat>
struct FmhaDecodeSm100Traits {
  static constexpr int kKeyDim = kKeyDimension;
  static constexpr int kValueDim = kValueDimension;
  static constexpr int kRows = kQueryRows;                  // query rows of an item: 8, 16, 32 or 64
  static constexpr int kColumns = kRows < 16 ? 16 : kRows;  // N of the products
  static constexpr int kTileKeys = 128;                     // M of S^T
  static constexpr int kSoftmaxWarps = 4;
  static constexpr bool kIsE4m3 = kFormat == FmhaKvFormat::kE4m3;
  // Of 64 rows the softmax needs more registers than ten warps leave it.
  static constexpr int kConvertWarps = !kIsE4m3 ? 0 : kRows <= 32 ? 4 : 2;
  static constexpr int kThreads = 32 * (kSoftmaxWarps + 2 + kConvertWarps);

  // A slot holds up to 128 columns of a tile's keys or values, in boxes of 64 (128 bytes, the width of the swizzle).
  static constexpr int kBoxBytes = kTileKeys * 128;
  static constexpr int kSlotColumns = kKeyDim < 128 ? 64 : 128;
  static constexpr int kSlotBoxes = kSlotColumns / 64;
  static constexpr int kSlotBytes = kSlotBoxes * kBoxBytes;
  static constexpr int kKeyBoxes = kKeyDim / 64;
  static constexpr int kKeySlots = (kKeyBoxes + kSlotBoxes - 1) / kSlotBoxes;
  static constexpr int kValueSlots = kValueDim / kSlotColumns;

  // What TMA writes: bf16 into the slots themselves; e4m3 beside them, rows of 64 bytes, swizzled as wide.
  static constexpr int kLoadRowBytes = kIsE4m3 ? 64 : 128;
  static constexpr int kLoadBoxBytes = kTileKeys * kLoadRowBytes;
  static constexpr int kLoadBytes = kSlotBoxes * kLoadBoxBytes;

  static constexpr int kQueryBoxBytes = kColumns * 128;
  static constexpr int kQueryBytes = kKeyBoxes * kQueryBoxBytes;
  static constexpr int kWeightBytes = kColumns * kTileKeys * 2;
  static constexpr int kSmallBytes = 6912;  // barriers, lengths and split prefix sums, softmax statistics
  // Two CTAs an SM hide each other's waits between items, where that leaves each 96 KB of keys and values in flight.
  static constexpr int SlotsThatFit(int ctas) {
    return (233472 / ctas - 1024 - 1024 - kQueryBytes - kWeightBytes - kSmallBytes) /
           (kSlotBytes + (kIsE4m3 ? kLoadBytes : 0));
  }
  static constexpr int kCtasPerSm = SlotsThatFit(2) * kSlotBytes >= 96 * 1024 && kRows <= 16 ? 2 : 1;
  static constexpr int kSlots = SlotsThatFit(kCtasPerSm) < 16 ? SlotsThatFit(kCtasPerSm) : 16;
  static constexpr int kSharedBytes =
      1024 + kSlots * (kSlotBytes + (kIsE4m3 ? kLoadBytes : 0)) + kQueryBytes + kWeightBytes + kSmallBytes;

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
  uint8_t* slots;        // [kSlots][kSlotBoxes][key][128 bytes], swizzled
  uint8_t* queries;      // [kKeyBoxes][row][128 bytes], swizzled
  uint8_t* weights;      // [kColumns / 8][key][8 rows] bf16
  uint8_t* loads;        // [kSlots][kLoadBytes] what TMA writes: for bf16 the slots
  uint64_t* full;        // [kSlots]
  uint64_t* empty;       // [kSlots]
  uint64_t* load_full;   // [kSlots] of the loads: for bf16 full and empty
  uint64_t* load_empty;  // [kSlots]
  uint64_t* q_full;
  uint64_t* q_empty;
  uint64_t* s_full;  // [2]
  uint64_t* p_full;
  uint64_t* p_empty;
  FmhaItemQueue items;
  uint32_t* tmem;
  float* maximum;       // [row] what the weights are relative to, log2 domain
  float* factor;        // [row] of a rescale, or of the final division
  float* by_warp;       // [warp][row] maxima, sums
  int32_t* offset;      // [row] its place among the sequence's query heads, for KV head 0
  int32_t* listed_key;  // [kTileKeys] each thread's own
  int2* sequences;      // [num_sequences + 1]: splits of the sequences before, length

  __device__ explicit FmhaSm100Shared(uint8_t* base) {
    slots = base + (1024 - ptx::SharedAddress(base) % 1024) % 1024;
    queries = slots + Traits::kSlots * Traits::kSlotBytes;
    weights = queries + Traits::kQueryBytes;
    uint8_t* next = weights + Traits::kWeightBytes;
    loads = Traits::kIsE4m3 ? next : slots;
    if constexpr (Traits::kIsE4m3) next += Traits::kSlots * Traits::kLoadBytes;
    full = reinterpret_cast<uint64_t*>(next);
    empty = full + Traits::kSlots;
    load_full = Traits::kIsE4m3 ? empty + Traits::kSlots : full;
    load_empty = load_full + Traits::kSlots;
    q_full = load_empty + Traits::kSlots;
    q_empty = q_full + 1;
    s_full = q_empty + 1;
    p_full = s_full + 2;
    p_empty = p_full + 1;
    items.full = p_empty + 1;
    items.empty = items.full + kFmhaItemQueue;
    items.items = reinterpret_cast<FmhaItem*>(items.empty + kFmhaItemQueue);
    tmem = reinterpret_cast<uint32_t*>(items.items + kFmhaItemQueue);
    sequences = reinterpret_cast<int2*>(tmem + 2);
    maximum = reinterpret_cast<float*>(sequences + kFmhaMaxSequences + 2);
    factor = maximum + Traits::kRows;
    by_warp = factor + Traits::kRows;
    offset = reinterpret_cast<int32_t*>(by_warp + Traits::kSoftmaxWarps * Traits::kRows);
    listed_key = offset + Traits::kRows;
  }
  static_assert(((Traits::kIsE4m3 ? 4 : 2) * Traits::kSlots + 6 + 2 * kFmhaItemQueue) * 8 +
                        kFmhaItemQueue * sizeof(FmhaItem) + 2 * 4 + (kFmhaMaxSequences + 2) * 8 +
                        ((Traits::kSoftmaxWarps + 3) * Traits::kRows + Traits::kTileKeys) * 4 <=
                    Traits::kSmallBytes,
                "the small things must fit");
};

// Entry `entry` of a sequence's list of keys: a slot of the cache, negative for none.
__device__ __forceinline__ int32_t ListedSlot(const FmhaDecodeArgs& args, int32_t sequence, int32_t entry) {
  const int32_t row = args.p.table_rows ? args.p.table_rows[sequence] : sequence;
  return args.p.key_slots[int64_t{row} * args.p.key_slots_stride + entry];
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_TRAITS_CUH_
