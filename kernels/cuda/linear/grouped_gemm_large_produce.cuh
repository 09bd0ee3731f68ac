// Grouped GEMM for sm_90 with wgmma: the warps that bring the operands.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_PRODUCE_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LARGE_PRODUCE_CUH_

#include <cstdint>

#include "kernels/cuda/linear/grouped_gemm_large_tile.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace tessera::cuda {

// The role of a copier: every kCopierWarps-th four rows of each group, a lane 16 bytes of one.
template <class Gemm>
__device__ void CopyTokens(const GroupedGemmParams& p, const GemmGeometry& g,
                           const LargeGemmShared<Gemm>& shared, const LargeGemmItems& items, int32_t copier) {
  constexpr int32_t kRowsApart = 4 * Gemm::kCopierWarps;  // of a lane
  constexpr int kBatch = 4;                               // registers are few
  const int32_t lane = threadIdx.x % 32, row = copier * 4 + lane / 8, piece = lane % 8;
  static_assert(kRowsApart % 8 == 0, "a lane's pieces stand at the same place of their rows");
  uint8_t* const targets = shared.tokens + row * Gemm::kTokenRowBytes + (piece ^ (row % 8)) * 16;
  uint32_t* const sources = shared.sources() + row;
  RingPlace<Gemm::kTokenStages> filled, handed;
  int32_t under_way = 0;
  const auto hand_over = [&] {
    ptx::FenceProxyAsyncShared();
    __syncwarp();
    if (lane == 0) ptx::MbarrierArrive(&shared.tokens_full()[handed.stage]);
    handed.Advance();
  };
  for (int32_t at = blockIdx.x; at < items.count; at += gridDim.x) {
    const LargeGemmItem item = items.At(p, at);
    // Rows of stages that no slot fills keep what they have: a column's products are its own.
    const int32_t copies = (item.slots.y - item.slots.x - row + kRowsApart - 1) / kRowsApart;
    __syncwarp();
    for (int32_t i = 0; i < copies && piece == 0; ++i) {
      const int32_t slot = item.slots.x + row + kRowsApart * i;
      sources[i * kRowsApart] = uint32_t(p.input_rows ? p.input_rows[slot] : slot) * g.groups;
    }
    __syncwarp();
    const uint8_t* x = static_cast<const uint8_t*>(p.x) + piece * 16;
    for (int32_t group = 0; group < g.groups; ++group, x += Gemm::kTokenRowBytes) {
      filled.WaitEmpty(shared.tokens_empty());
      uint8_t* target = targets + filled.stage * Gemm::kTokenBytes;
#pragma unroll 1
      for (int32_t first = 0; first < copies; first += kBatch) {
#pragma unroll
        for (int32_t i = 0; i < kBatch; ++i) {
          if (first + i < copies) {
            ptx::CpAsync16(target + i * kRowsApart * Gemm::kTokenRowBytes,
                           x + uint64_t{sources[(first + i) * kRowsApart]} * Gemm::kTokenRowBytes, 16);
          }
        }
        target += kBatch * kRowsApart * Gemm::kTokenRowBytes;
      }
      ptx::CpAsyncCommit();
      filled.Advance();
      if (++under_way > Gemm::kTokensAhead) {
        ptx::CpAsyncWait<Gemm::kTokensAhead>();
        hand_over();
        --under_way;
      }
    }
  }
  ptx::CpAsyncWait<0>();
  for (; under_way > 0; --under_way) hand_over();
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
