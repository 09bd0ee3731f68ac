// FMHA decode for sm_90: constants of an instantiation, and its shared memory.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_TRAITS_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_TRAITS_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_items.cuh"

namespace tessera::cuda {

template <int kKeyDimension, int kValueDimension, int kQueryRows, FmhaKvFormat kFormat>
struct FmhaDecodeTraits {
  static constexpr int kKeyDim = kKeyDimension;
  static constexpr int kValueDim = kValueDimension;
  static constexpr bool kValuesAreKeys =
      kKeyDim != kValueDim;                 // MLA: the first kValueDim elements of the keys
  static constexpr int kRows = kQueryRows;  // query rows of an item: 8, 16, 32 or 64
  static constexpr bool kIsE4m3 = kFormat == FmhaKvFormat::kE4m3;
  static constexpr int kElementBytes = kIsE4m3 ? 1 : 2;

  // A team of four warps attends to 32 rows at most: registers hold no more.
  static constexpr int kTeams = kRows <= 32 ? 1 : 2;
  static constexpr int kTeamRows = kRows / kTeams;
  static constexpr int kRowTiles = kTeamRows / 8;
  static constexpr int kTeamWarps = 4;
  static constexpr int kConsumerWarps = kTeamWarps * kTeams;
  static constexpr int kThreads = 32 * (kConsumerWarps + 1);

  // A slot holds 64 keys or values in boxes of 64 dimensions: rows of 128 bytes (bf16) or 64 (e4m3), swizzled as wide.
  static constexpr int kBoxColumns = 64;
  static constexpr int kBoxRowBytes = kBoxColumns * kElementBytes;
  static constexpr int kBoxBytes = kFmhaTileKeys * kBoxRowBytes;
  static constexpr int kKeyBoxes = kKeyDim / kBoxColumns;
  static constexpr int kValueBoxes = kValueDim / kBoxColumns;
  static constexpr int kSlotBoxes = kValuesAreKeys ? 3 : kKeyDim < 128 ? 1 : 2;
  static constexpr int kSlotBytes = kSlotBoxes * kBoxBytes;
  static constexpr int kKeySlots = kKeyBoxes / kSlotBoxes;
  static constexpr int kValueSlots = (kValueBoxes + kSlotBoxes - 1) / kSlotBoxes;

  // Whether registers hold the output of the splits before beside that of the split under way.
  static constexpr bool kFolds = kRows * kValueDim <= (kIsE4m3 && kKeyDim > 128 ? 1024 : 2048);

  // Whether a tile's values are added while the scores of the second tile after it are computed, which takes slots and
  // registers for both at a time.
  static constexpr bool kOverlaps = kKeyDim == kValueDim && kKeyDim * kRows <= 2048;

  // Fragments of the queries stay in registers where they are few.
  static constexpr bool kQueriesInRegisters = kKeyDim <= 128 && kRowTiles * kKeyDim / 8 <= 32;
  static constexpr int kQueryBoxBytes = kRows * 128;
  static constexpr int kQueryBytes = kKeyBoxes * kQueryBoxBytes;
  static constexpr int kQueryBuffers = kQueriesInRegisters || kQueryBytes > 20 * 1024 ? 1 : 2;

  static constexpr int kWeightBytes = 2 * kRows * kFmhaTileKeys * 2;
  static constexpr int kStatFloats = 2 * kTeamWarps * kRows;  // a float a row from each warp, for two tiles
  static constexpr int kFixedBytes = 1024 + kQueryBuffers * kQueryBytes + kWeightBytes + kStatFloats * 5 * 4 +
                                     kFmhaItemQueue * (16 + sizeof(FmhaItem)) + kQueryBuffers * 16 +
                                     (kFmhaMaxSequences + 1) * 8;
  static constexpr int kBytesPerSlot = kSlotBytes + 24;  // with its two barriers and its mask
  static constexpr int kMostSlots = 16;
  // Several small CTAs an SM hide each other's waits between items; 228 KB an SM, of which 1 KB a CTA is reserved.
  static constexpr int kCtasPerSm = kRows > 16 || kKeyDim > 256 ? 1 : kRows > 8 || kKeyDim > 64 ? 2 : 3;
  static constexpr int kSlotsThatFit = (233472 / kCtasPerSm - 1024 - kFixedBytes) / kBytesPerSlot;
  static constexpr int kSlots = kSlotsThatFit < kMostSlots ? kSlotsThatFit : kMostSlots;
  static constexpr int kSharedBytes = kFixedBytes + kSlots * kBytesPerSlot;

  static_assert(kKeyDim % 64 == 0 && kValueDim % 64 == 0, "a head is cut into boxes of 64 columns");
  static_assert(kKeyBoxes % kSlotBoxes == 0, "keys fill their slots");
  static_assert(kSlots >= (kValuesAreKeys ? 2 * kKeySlots + 1 : 4), "a slot must load while others are used");
  static_assert(kSharedBytes <= 232448, "227 KB of shared memory a CTA");
};

template <class Traits>
struct FmhaShared {
  uint8_t* slots;         // [kSlots][box][64 keys][kBoxRowBytes], swizzled
  uint8_t* queries;       // [kQueryBuffers][box][row][128 bytes], swizzled
  uint8_t* weights;       // [team][2][row of the team][64 keys] bf16, swizzled
  float* maxima;          // [team][2][warp][row of the team]: largest score of the warp's keys
  float* sums;            // [team][2][warp][row tile][lane]: see FmhaConsumer::StoreWeights
  int2* sequences;        // [num_sequences + 1]: splits of the sequences before, length
  uint64_t* full;         // [kSlots]
  uint64_t* empty;        // [kSlots]
  uint64_t* query_full;   // [kQueryBuffers]
  uint64_t* query_empty;  // [kQueryBuffers]
  uint2* masks;           // [kSlots]: with key slots, which keys of the tile exist; of its first slot of keys
  FmhaItemQueue items;

  __device__ explicit FmhaShared(uint8_t* base) {
    slots = base + (1024 - ptx::SharedAddress(base) % 1024) % 1024;
    queries = slots + Traits::kSlots * Traits::kSlotBytes;
    weights = queries + Traits::kQueryBuffers * Traits::kQueryBytes;
    maxima = reinterpret_cast<float*>(weights + Traits::kWeightBytes);
    sums = maxima + Traits::kStatFloats;
    items.items = reinterpret_cast<FmhaItem*>(sums + 4 * Traits::kStatFloats);
    full = reinterpret_cast<uint64_t*>(items.items + kFmhaItemQueue);
    empty = full + Traits::kSlots;
    query_full = empty + Traits::kSlots;
    query_empty = query_full + Traits::kQueryBuffers;
    items.full = query_empty + Traits::kQueryBuffers;
    items.empty = items.full + kFmhaItemQueue;
    masks = reinterpret_cast<uint2*>(items.empty + kFmhaItemQueue);
    sequences = reinterpret_cast<int2*>(masks + Traits::kSlots);
  }

  __device__ uint32_t SlotAddress(int32_t slot) const {
    return ptx::SharedAddress(slots) + slot * Traits::kSlotBytes;
  }
};

// Which of an item's rows (a team's), keys and dimensions (a warp's quarter of them) a thread has.
struct FmhaWarpPlace {
  int32_t team, quarter, lane;
};

// Offset of the 16-byte chunk `chunk` of row `row` in a box, as TMA's swizzle places it.
template <class Traits>
__device__ __forceinline__ uint32_t BoxOffset(int32_t row, int32_t chunk) {
  return row * Traits::kBoxRowBytes + (Traits::kIsE4m3 ? chunk ^ row / 2 % 4 : chunk ^ row % 8) * 16;
}

// The same in rows of 128 bytes: queries, weights.
__device__ __forceinline__ uint32_t Row128Offset(int32_t row, int32_t chunk) {
  return row * 128 + (chunk ^ row % 8) * 16;
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_TRAITS_CUH_
