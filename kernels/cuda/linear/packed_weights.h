// Weights in the order in which the Hopper matrix kernels stream them; made once, at load, on the device.
//
// A matrix [n, k] (n output features) is cut into row tiles of 16 features; a row tile into groups of 64 k, and 8 groups
// make a chunk. Within a group, lane l of a warp owns features l / 4 and l / 4 + 8 of the tile and the 16 consecutive k
// 16 (l % 4) ..: one NVFP4 block of each feature, hence one scale. These are its share of the A fragments of four
// mma.m16n8k16 steps, step s taking the k 4 s .. 4 s + 3 of every block: the order of k within a group is the kernel's
// own, and the activations are read in the same order.
//
//   NVFP4 chunk: [group][lane] 16 bytes of codes, then [lane] 16 bytes of scales, two a group.
//   BF16 chunk:  [group][quarter][lane] 16 bytes; quarters 0, 1 feature l / 4, quarters 2, 3 feature l / 4 + 8.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_PACKED_WEIGHTS_H_
#define TESSERA_KERNELS_CUDA_LINEAR_PACKED_WEIGHTS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tessera::cuda {

inline constexpr int32_t kRowTile = 16;     // output features
inline constexpr int32_t kGroupK = 64;      // four mma steps
inline constexpr int32_t kChunkGroups = 8;  // partial sums are kept per chunk and added in order
inline constexpr int32_t kChunkK = kGroupK * kChunkGroups;

enum class WeightFormat { kNvfp4, kBf16 };

// One or more matrices of the same shape (experts), packed one after the other.
struct PackedWeights {
  WeightFormat format = WeightFormat::kBf16;
  int32_t n = 0;  // output features of one matrix; a multiple of 16 after padding with zero rows
  int32_t k = 0;  // a multiple of 64
  int32_t num_matrices = 1;
  const uint8_t* data = nullptr;  // device, 16-byte aligned
  // NVFP4: device [num_matrices, n / 8]: what the sums of each half tile (8 features) are multiplied with, its tensor
  // scale times kNvfp4SumScale: gate and up, or q, k and v packed into one matrix, may differ. BF16 matrices may have them
  // too; null for 1.
  const float* sum_scales = nullptr;
  // Device [num_matrices, n], in the packed order of features: added to the scaled sums; null for none.
  const float* bias = nullptr;
};

// The kernels compute with block scales times 2^-8, exact in bf16.
inline constexpr float kNvfp4SumScale = 256.0f;

inline size_t PackedTileBytes(WeightFormat format, int32_t k) {
  const size_t groups = k / kGroupK;
  const size_t chunks = (groups + kChunkGroups - 1) / kChunkGroups;
  return format == WeightFormat::kNvfp4 ? (groups + chunks) * 512 : groups * 2048;
}

inline size_t PackedMatrixBytes(WeightFormat format, int32_t n, int32_t k) {
  return size_t((n + kRowTile - 1) / kRowTile) * PackedTileBytes(format, k);
}

// How the features of a source matrix are laid into the tiles.
enum class RowOrder {
  kPlain,
  kGateUp,  // two sources: the first 8 features of a tile from `gate`, the last 8 from `up`
};

// Packs on the device, asynchronously. Sources are device pointers: codes [n, k / 2] (low nibble first), scales
// [n, k / 16] E4M3, or bf16 [n, k]. `n` and `k` are of one source. For kGateUp the packed matrix has 2 n features.
// `target` has PackedMatrixBytes. Returns null or what is wrong.
const char* PackNvfp4(const uint8_t* codes, const uint8_t* scales, const uint8_t* up_codes,
                      const uint8_t* up_scales, int32_t n, int32_t k, RowOrder order, uint8_t* target,
                      cudaStream_t stream);
const char* PackBf16(const void* weights, const void* up_weights, int32_t n, int32_t k, RowOrder order,
                     uint8_t* target, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_PACKED_WEIGHTS_H_
