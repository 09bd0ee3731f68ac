// Grouped GEMM for sm_90 with wgmma: the warps that bring the operands.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_PRODUCE_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_PRODUCE_CUH_

#include <cstdint>

#include "kernels/cuda/linear/grouped_gemm_large_tile.cuh"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace tessera::cuda {

// The role of the loader, one thread: activations, a group of 64 k a stage, in boxes of 32 slots. Boxes reach past a tile's
// last slot, into rows that the products' columns keep apart.
template <class Gemm>
__device__ void LoadTokens(const GroupedGemmParams& p, const GemmGeometry& g, const CUtensorMap* x_map,
                           const LargeGemmShared<Gemm>& shared, const LargeGemmItems& items) {
  RingPlace<Gemm::kTokenStages> place;
  for (int32_t at = blockIdx.x; at < items.count; at += gridDim.x) {
    const int2 slots = items.At(p, at).slots;
    const int32_t boxes = LargeGemmColumns(slots.y - slots.x) / Gemm::kBoxSlots;
    for (int32_t group = 0; group < g.groups; ++group) {
      place.WaitEmpty(shared.tokens_empty());
      uint64_t* full = &shared.tokens_full()[place.stage];
      ptx::MbarrierArriveExpectTx(full, boxes * Gemm::kBoxBytes);
      for (int32_t box = 0; box < boxes; ++box) {
        ptx::CpAsyncBulkTensor2d(shared.tokens + place.stage * Gemm::kTokenBytes + box * Gemm::kBoxBytes,
                                 x_map, group * kGroupK, slots.x + box * Gemm::kBoxSlots, full,
                                 ptx::kEvictNormal);
      }
      place.Advance();
    }
  }
}

// The role of the streamer: lane l brings row tile l of each piece. Past the last row tile it is that one once more.
template <class Gemm>
__device__ void StreamWeights(const GroupedGemmParams& p, const GemmGeometry& g,
                              const LargeGemmShared<Gemm>& shared, const LargeGemmItems& items) {
  const int32_t lane = threadIdx.x % 32;
  RingPlace<Gemm::kWeightStages> place;
  for (int32_t at = blockIdx.x; at < items.count; at += gridDim.x) {
    const LargeGemmItem item = items.At(p, at);
    const int32_t tile = min(item.first_tile + lane % Gemm::kRowTiles, g.row_tiles - 1);
    const uint8_t* source = p.weights.data + item.matrix * g.matrix_bytes + tile * g.tile_bytes;
    for (int32_t group = 0; group < g.groups; group += Gemm::kPieceGroups) {
      const int32_t bytes = min(Gemm::kPieceGroups, g.groups - group) * Gemm::kGroupBytes +
                            (Gemm::kPieceBytes - Gemm::kPieceGroups * Gemm::kGroupBytes);
      place.WaitEmpty(shared.weights_empty());
      if (lane == 0)
        ptx::MbarrierArriveExpectTx(&shared.weights_full()[place.stage], bytes * Gemm::kRowTiles);
      __syncwarp();
      if (lane < Gemm::kRowTiles) {
        ptx::CpAsyncBulk(shared.weights() + place.stage * Gemm::kWeightBytes + lane * Gemm::kPieceBytes,
                         source, bytes, &shared.weights_full()[place.stage], ptx::kEvictNormal);
      }
      source += bytes;
      place.Advance();
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_PRODUCE_CUH_
