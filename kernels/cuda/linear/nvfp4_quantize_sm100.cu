#include <cstdint>

#include "kernels/cuda/linear/nvfp4_gemm.h"
#include "kernels/cuda/linear/nvfp4_gemm_launch.h"
#include "kernels/cuda/linear/nvfp4_quantize.cuh"
#include "kernels/cuda/linear/nvfp4_tiles.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kWarps = 8;

// Sixteen bf16 values.
__device__ __forceinline__ void LoadBlock(const uint4* source, float (&values)[16]) {
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const uint4 packed = source[half];
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      values[half * 8 + 2 * i] = __uint_as_float(words[i] << 16);
      values[half * 8 + 2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
    }
  }
}

// A warp a row of a tile; blockIdx.y is the tile. Every byte of a tile that exists is written: what no slot or no k has is
// zero.
__global__ void __launch_bounds__(32 * kWarps)
    QuantizeKernel(const uint8_t* x, const int32_t* rows, int32_t x_k,
                   const __grid_constant__ SlotTiles tiles, const __grid_constant__ Nvfp4Activations out) {
  const int32_t tile = blockIdx.y, lane = threadIdx.x % 32;
  const SlotTile t = FindTile(tiles, tile);
  if (t.first >= t.end) return;
  const int32_t row = blockIdx.x * kWarps + threadIdx.x / 32, slot = t.first + row;
  const int32_t blocks = slot < t.end ? x_k / 16 : 0;
  const int64_t source_row = slot >= t.end ? 0 : rows ? rows[slot] : slot;
  const uint4* source = reinterpret_cast<const uint4*>(x + source_row * x_k * 2);
  float values[16], scale = 1.0f;
  if (out.matrix_scales != nullptr) {
    scale = out.matrix_scales[t.matrix];
  } else if (blocks > 0) {
    uint32_t magnitude = 0;
    for (int32_t block = lane; block < blocks; block += 32) {
      LoadBlock(source + block * 2, values);
#pragma unroll
      for (float value : values) magnitude = MaxMagnitude(magnitude, value);
    }
#pragma unroll
    for (int32_t distance = 16; distance > 0; distance /= 2) {
      magnitude = max(magnitude, __shfl_xor_sync(~0u, magnitude, distance));
    }
    scale = ScaleFromAmax(__uint_as_float(magnitude));
    if (lane == 0) out.row_scales[slot] = scale;
  }
  constexpr int32_t kChunkBlocks = kNvfp4ChunkK / 16;
  const int32_t chunks = Nvfp4Chunks(out.k), chunk_bytes = Nvfp4ChunkBytes(tiles.tile_slots);
  uint8_t* tile_data = out.data + int64_t{tile} * chunks * chunk_bytes;
  for (int32_t block = lane; block < chunks * kChunkBlocks; block += 32) {
    Nvfp4Block quantized = {make_uint2(0, 0), 0};
    if (block < blocks) {
      LoadBlock(source + block * 2, values);
      quantized = QuantizeBlock(values, scale);
    }
    uint8_t* chunk = tile_data + int64_t{block / kChunkBlocks} * chunk_bytes;
    *reinterpret_cast<uint2*>(chunk + Nvfp4CodeOffset(row, block % kChunkBlocks)) = quantized.codes;
    chunk[Nvfp4ScaleOffset(tiles.tile_slots, row, block % kChunkBlocks)] = quantized.scale;
  }
  // Scales have room for 128 rows.
  for (int32_t other = row + tiles.tile_slots; other < kNvfp4ScaleRows; other += tiles.tile_slots) {
    for (int32_t step = lane; step < chunks * kNvfp4ChunkSteps; step += 32) {
      uint8_t* chunk = tile_data + int64_t{step / kNvfp4ChunkSteps} * chunk_bytes;
      *reinterpret_cast<uint32_t*>(
          chunk + Nvfp4ScaleOffset(tiles.tile_slots, other, step % kNvfp4ChunkSteps * 4)) = 0;
    }
  }
}

}  // namespace

cudaError_t LaunchQuantizeNvfp4(const void* x, const int32_t* rows, int32_t x_k, const SlotTiles& tiles,
                                const Nvfp4Activations& out, cudaStream_t stream) {
  const dim3 grid((tiles.tile_slots + kWarps - 1) / kWarps, NumTiles(tiles));
  QuantizeKernel<<<grid, 32 * kWarps, 0, stream>>>(static_cast<const uint8_t*>(x), rows, x_k, tiles, out);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
