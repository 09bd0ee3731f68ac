// NVFP4 matrices in the order in which tcgen05.mma reads them from shared memory: a tile and its block scales are
// contiguous in memory, so that one bulk copy brings them, and need no rearranging. Shared by host and device.
//
// A matrix [rows, k] is cut into row tiles and these into chunks of 256 k. A chunk is
//
//   codes   [row][128 bytes]: 256 codes of a row, the first in the low half of the first byte; 16-byte unit u of row r
//           stands in place u ^ (r % 8) (K-major, 128-byte swizzle)
//   scales  [step][512 bytes]: for each 64 k (one matrix instruction) the scales of 128 rows, E4M3: those of row r are the
//           four bytes at (r % 32) * 16 + r / 32 * 4 (the "128x4" layout)
//
// whatever the number of rows, so that 16 rows carry the scale bytes of 128. k is padded to a multiple of 64; the rest of
// the last chunk, and what belongs to no row, is zero.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_NVFP4_TILES_H_
#define TESSERA_KERNELS_CUDA_LINEAR_NVFP4_TILES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"

namespace tessera::cuda {

inline constexpr int32_t kNvfp4StepK = 64;  // K of one matrix instruction
inline constexpr int32_t kNvfp4ChunkSteps = 4;
inline constexpr int32_t kNvfp4ChunkK = kNvfp4StepK * kNvfp4ChunkSteps;
inline constexpr int32_t kNvfp4RowBytes = kNvfp4ChunkK / 2;
inline constexpr int32_t kNvfp4ScaleRows = 128;  // whose scales one step holds
inline constexpr int32_t kNvfp4StepScaleBytes = kNvfp4ScaleRows * 4;
inline constexpr int32_t kNvfp4ScaleBytes = kNvfp4ChunkSteps * kNvfp4StepScaleBytes;
inline constexpr int32_t kNvfp4RowTile = 128;  // output features of a weight tile: M of the instruction

TESSERA_HOST_DEVICE constexpr int32_t Nvfp4PaddedK(int32_t k) {
  return (k + kNvfp4StepK - 1) / kNvfp4StepK * kNvfp4StepK;
}

TESSERA_HOST_DEVICE constexpr int32_t Nvfp4Chunks(int32_t k) { return (k + kNvfp4ChunkK - 1) / kNvfp4ChunkK; }

// Bytes of a chunk of `tile_rows` rows.
TESSERA_HOST_DEVICE constexpr int32_t Nvfp4ChunkBytes(int32_t tile_rows) {
  return tile_rows * kNvfp4RowBytes + kNvfp4ScaleBytes;
}

// Where, in a chunk, the eight bytes of codes of block `block` (16 k; 0 to 15) of row `row` are.
TESSERA_HOST_DEVICE constexpr int32_t Nvfp4CodeOffset(int32_t row, int32_t block) {
  return row * kNvfp4RowBytes + ((block / 2) ^ (row % 8)) * 16 + block % 2 * 8;
}

// And its scale, after the codes of `tile_rows` rows.
TESSERA_HOST_DEVICE constexpr int32_t Nvfp4ScaleOffset(int32_t tile_rows, int32_t row, int32_t block) {
  return tile_rows * kNvfp4RowBytes + block / 4 * kNvfp4StepScaleBytes + row % 32 * 16 + row / 32 * 4 +
         block % 4;
}

static_assert(Nvfp4CodeOffset(1, 0) == 128 + 16 && Nvfp4CodeOffset(1, 2) == 128,
              "the swizzle exchanges units");
static_assert(Nvfp4ScaleOffset(16, 33, 5) == 16 * 128 + 512 + 16 + 4 + 1);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_NVFP4_TILES_H_
