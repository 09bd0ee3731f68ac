#include <algorithm>
#include <cstdint>

#include "kernels/cuda/linear/nvfp4_gemm.h"
#include "kernels/cuda/linear/nvfp4_tiles.h"

namespace tessera::cuda {
namespace {

struct Source {
  const uint8_t *codes, *scales;
  const uint8_t *up_codes, *up_scales;  // or null
  int32_t n, k;
};

// One thread a (packed feature, block of 16 k) of all chunks; the blocks past k are zero.
__global__ void PackTilesKernel(Source s, int32_t chunks, uint8_t* target) {
  const int32_t block = blockIdx.x * blockDim.x + threadIdx.x;
  const int32_t row = blockIdx.y * blockDim.y + threadIdx.y;
  constexpr int32_t kChunkBlocks = kNvfp4ChunkK / 16;
  if (block >= chunks * kChunkBlocks) return;
  const int32_t tile = row / kNvfp4RowTile, tile_row = row % kNvfp4RowTile;
  constexpr int32_t kHalf = kNvfp4RowTile / 2;
  const bool gate_up = s.up_codes != nullptr, up = gate_up && tile_row >= kHalf;
  const int32_t feature = gate_up ? tile * kHalf + tile_row % kHalf : row;
  uint2 codes = make_uint2(0, 0);
  uint8_t scale = 0;
  if (feature < s.n && block < s.k / 16) {
    const size_t at = size_t(feature) * (s.k / 16) + block;
    codes = reinterpret_cast<const uint2*>(up ? s.up_codes : s.codes)[at];
    scale = (up ? s.up_scales : s.scales)[at];
  }
  uint8_t* chunk = target + (size_t(tile) * chunks + block / kChunkBlocks) * Nvfp4ChunkBytes(kNvfp4RowTile);
  *reinterpret_cast<uint2*>(chunk + Nvfp4CodeOffset(tile_row, block % kChunkBlocks)) = codes;
  chunk[Nvfp4ScaleOffset(kNvfp4RowTile, tile_row, block % kChunkBlocks)] = scale;
}

}  // namespace

size_t Nvfp4WeightBytes(int32_t n, int32_t k) {
  const size_t tiles = (n + kNvfp4RowTile - 1) / kNvfp4RowTile;
  return tiles * Nvfp4Chunks(Nvfp4PaddedK(k)) * Nvfp4ChunkBytes(kNvfp4RowTile);
}

int32_t Nvfp4PackedFeatures(int32_t n, RowOrder order) {
  const int32_t each = order == RowOrder::kGateUp ? kNvfp4RowTile / 2 : kNvfp4RowTile;
  return (n + each - 1) / each * kNvfp4RowTile;
}

const char* PackNvfp4Tiles(const uint8_t* codes, const uint8_t* scales, const uint8_t* up_codes,
                           const uint8_t* up_scales, int32_t n, int32_t k, RowOrder order, uint8_t* target,
                           cudaStream_t stream) {
  if (n < 1 || k < 16 || k % 16 != 0)
    return "pack nvfp4 tiles: n must be positive and k a positive multiple of 16";
  if (!codes || !scales || !target) return "pack nvfp4 tiles: a required pointer is null";
  const bool gate_up = order == RowOrder::kGateUp;
  if (gate_up != (up_codes != nullptr) || gate_up != (up_scales != nullptr)) {
    return "pack nvfp4 tiles: the up matrix goes with the gate-up order";
  }
  const dim3 threads(32, 8);
  const int32_t chunks = Nvfp4Chunks(k);
  const dim3 grid((chunks * kNvfp4ChunkK / 16 + threads.x - 1) / threads.x,
                  Nvfp4PackedFeatures(n, order) / threads.y);
  PackTilesKernel<<<grid, threads, 0, stream>>>({codes, scales, up_codes, up_scales, n, k}, chunks, target);
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace tessera::cuda
