// Grouped NVFP4 GEMM for sm_100: tile sizes, shared and tensor memory.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_SM100_TRAITS_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_SM100_TRAITS_CUH_

#include <cstdint>

#include "kernels/cuda/linear/nvfp4_tiles.h"
#include "kernels/cuda/ptx/mbarrier.cuh"

namespace tessera::cuda {

template <int kTileSlots, bool kIsPair>
struct Nvfp4GemmTraits {
  static constexpr int kSlots = kTileSlots;
  static constexpr bool kPair = kIsPair;
  static constexpr int kLoadedSlots = kPair ? kSlots / 2 : kSlots;  // whose codes this CTA loads
  static constexpr int kEpilogueWarps = 4;
  static constexpr int kThreads = 32 * (kEpilogueWarps + 2);
  static constexpr int kWeightBytes = Nvfp4ChunkBytes(kNvfp4RowTile);
  static constexpr int kActivationBytes = Nvfp4ChunkBytes(kSlots);  // in memory
  static constexpr int kStageBytes = kWeightBytes + Nvfp4ChunkBytes(kLoadedSlots);
  // Sums of some slots on their way from a thread a feature to a thread a result, padded against bank conflicts.
  static constexpr int kStagedSlots = 16;
  static constexpr int kStagedStride = kNvfp4RowTile + 4;
  static constexpr int kStagedBytes = kStagedSlots * kStagedStride * 4;
  static constexpr int kSmallBytes = 256;  // barriers, the address of tensor memory
  static constexpr int kCtasPerSm = kSlots <= 64 ? 2 : 1;
  static constexpr int StagesThatFit(int ctas) {
    return (233472 / ctas - 1024 - 1024 - kStagedBytes - kSmallBytes) / kStageBytes;
  }
  static constexpr int kStages = StagesThatFit(kCtasPerSm);
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes + kStagedBytes + kSmallBytes;
  // Tensor memory: D, then for each stage the scales of both operands, four columns a step.
  static constexpr int kStepColumns = 4;
  static constexpr int kOperandColumns = kNvfp4ChunkSteps * kStepColumns;
  static constexpr int kUsedTmem = kSlots + kStages * 2 * kOperandColumns;
  static constexpr int kTmemColumns = kUsedTmem <= 128 ? 128 : kUsedTmem <= 256 ? 256 : 512;

  static_assert(kSlots % 16 == 0 && kSlots <= 128, "N, whose scales are one block of 128 rows");
  static_assert(kStageBytes % 1024 == 0 && kWeightBytes % 1024 == 0,
                "swizzled operands start at multiples of 1024 bytes");
  static_assert(kStages >= 2 && (3 * kStages + 1) * 8 + 4 <= kSmallBytes);
  static_assert(kSharedBytes <= 232448, "227 KB of shared memory a CTA");
  static_assert(kUsedTmem <= 512 && kTmemColumns * kCtasPerSm <= 512, "512 columns of tensor memory an SM");
};

template <class Traits>
struct Nvfp4GemmShared {
  uint8_t* stages;  // [kStages] weight chunk, activation chunk
  float* staged;    // [kStagedSlots][kStagedStride]
  uint64_t* full;
  uint64_t* empty;
  uint64_t* peer;
  uint64_t* done;
  uint32_t* tmem;

  __device__ explicit Nvfp4GemmShared(uint8_t* base) {
    stages = base + (1024 - ptx::SharedAddress(base) % 1024) % 1024;
    staged = reinterpret_cast<float*>(stages + Traits::kStages * Traits::kStageBytes);
    full = reinterpret_cast<uint64_t*>(staged + Traits::kStagedBytes / 4);
    empty = full + Traits::kStages;
    peer = empty + Traits::kStages;
    done = peer + Traits::kStages;
    tmem = reinterpret_cast<uint32_t*>(done + 1);
  }
};

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_SM100_TRAITS_CUH_
