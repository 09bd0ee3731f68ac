// Grouped GEMM for sm_90 with wgmma: the tile's constants, shared memory, and the work of a CTA.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_TILE_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_TILE_CUH_

#include <cstdint>

#include "kernels/cuda/linear/grouped_gemm.h"
#include "kernels/cuda/linear/grouped_gemm_sm90.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/sync.cuh"

namespace tessera::cuda {

template <WeightFormat kWeights>
struct LargeGemm {
  static constexpr WeightFormat kFormat = kWeights;
  static constexpr bool kHasScales = kFormat == WeightFormat::kNvfp4;
  static constexpr int kSlots = 128;
  static constexpr int kRowTiles = 8;  // a consumer warp each
  static constexpr int kFeatures = kRowTiles * kRowTile;
  static constexpr int kConsumerWarps = kRowTiles;
  static constexpr int kThreads =
      32 * (kConsumerWarps + 4);  // whole warp groups; two warps have nothing to do
  static constexpr int kConsumerRegisters = 224;
  static constexpr int kProducerRegisters = 56;

  // Activations: a row of 128 bytes a slot, swizzled.
  static constexpr int kTokenRowBytes = kGroupK * 2;
  static constexpr int kTokenBytes = kSlots * kTokenRowBytes;
  static constexpr int kTokenStages = 6;
  static constexpr int kBoxSlots = 32;
  static constexpr int kBoxBytes = kBoxSlots * kTokenRowBytes;

  // Weights: what is contiguous in a row tile's stream, for each of the eight row tiles: a chunk, or a group of BF16.
  static constexpr int kPieceGroups = kHasScales ? kChunkGroups : 1;
  static constexpr int kGroupBytes = kHasScales ? 512 : 2048;
  static constexpr int kPieceBytes = kPieceGroups * kGroupBytes + (kHasScales ? 512 : 0);
  static constexpr int kWeightBytes = kRowTiles * kPieceBytes;
  static constexpr int kWeightStages = kHasScales ? 3 : 5;

  // Results of SwiGLU on their way to whole rows: 32 words a slot, and one against bank conflicts.
  static constexpr int kStagedStride = 33;
  static constexpr int kStagedBytes = kSlots * kStagedStride * 4;

  static constexpr int kBarriers = 2 * (kTokenStages + kWeightStages);
  static constexpr int kSharedBytes =
      1024 + kTokenStages * kTokenBytes + kWeightStages * kWeightBytes + kStagedBytes + kBarriers * 8;

  static_assert(2 * kConsumerRegisters + kProducerRegisters <= 3 * 168, "what the CTA is launched with");
  static_assert(kSharedBytes <= 232448, "227 KB of shared memory a CTA");
  static_assert(kTokenBytes % 1024 == 0 && kWeightBytes % 16 == 0 && kStagedBytes % 8 == 0);
};

// One pointer, and offsets known when compiled: registers are few.
template <class Gemm>
struct LargeGemmShared {
  uint8_t* tokens;  // [kTokenStages]

  __device__ explicit LargeGemmShared(uint8_t* base)
      : tokens(base + (1024 - ptx::SharedAddress(base) % 1024) % 1024) {}

  __device__ __forceinline__ uint8_t* weights() const {  // [kWeightStages][row tile]
    return tokens + Gemm::kTokenStages * Gemm::kTokenBytes;
  }
  __device__ __forceinline__ uint32_t* staged() const {
    return reinterpret_cast<uint32_t*>(weights() + Gemm::kWeightStages * Gemm::kWeightBytes);
  }
  __device__ __forceinline__ uint64_t* tokens_full() const {
    return reinterpret_cast<uint64_t*>(staged() + Gemm::kStagedBytes / 4);
  }
  __device__ __forceinline__ uint64_t* tokens_empty() const { return tokens_full() + Gemm::kTokenStages; }
  __device__ __forceinline__ uint64_t* weights_full() const { return tokens_empty() + Gemm::kTokenStages; }
  __device__ __forceinline__ uint64_t* weights_empty() const { return weights_full() + Gemm::kWeightStages; }

  __device__ void InitBarriers() const {
    for (int32_t i = 0; i < Gemm::kTokenStages; ++i) {
      ptx::MbarrierInit(&tokens_full()[i], 1);
      ptx::MbarrierInit(&tokens_empty()[i], Gemm::kConsumerWarps);
    }
    for (int32_t i = 0; i < Gemm::kWeightStages; ++i) {
      ptx::MbarrierInit(&weights_full()[i], 1);
      ptx::MbarrierInit(&weights_empty()[i], Gemm::kConsumerWarps);
    }
    ptx::FenceBarrierInit();
  }
};

// A place in a ring of stages.
template <int kStages>
struct RingPlace {
  int32_t stage = 0;
  uint32_t round = 0;  // its parity is the phase

  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      ++round;
    }
  }
  __device__ __forceinline__ void WaitFull(uint64_t* full) const {
    ptx::MbarrierWait(&full[stage], round % 2);
  }
  __device__ __forceinline__ void WaitEmpty(uint64_t* empty) const {
    ptx::MbarrierWait(&empty[stage], (round + 1) % 2);
  }
};

// One tile of the result.
struct LargeGemmItem {
  int32_t matrix;
  int32_t first_tile;  // row tile
  int2 slots;
};

// The tiles of this CTA: every gridDim.x-th.
struct LargeGemmItems {
  int32_t feature_tiles, count;

  __device__ LargeGemmItems(const GroupedGemmParams& p, const GemmGeometry& g) {
    feature_tiles = (g.row_tiles + 7) / 8;
    const int32_t slot_tiles = p.num_tiles ? *p.num_tiles : (p.num_slots + p.tile_slots - 1) / p.tile_slots;
    count = slot_tiles * feature_tiles;
  }

  __device__ LargeGemmItem At(const GroupedGemmParams& p, int32_t item) const {
    const int32_t tile = item / feature_tiles;
    LargeGemmItem i = {0, item % feature_tiles * 8, make_int2(tile * p.tile_slots, p.num_slots)};
    if (p.num_tiles != nullptr) {
      i.matrix = p.tile_expert[tile];
      i.slots = p.tile_slot_range[tile];
    }
    i.slots.y = min(i.slots.y, i.slots.x + p.tile_slots);
    return i;
  }
};

// Columns that the products of so many slots take.
__device__ __forceinline__ int32_t LargeGemmColumns(int32_t slots) {
  return slots <= 32 ? 32 : slots <= 64 ? 64 : 128;
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_TILE_CUH_
