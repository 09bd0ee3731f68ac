#ifndef TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_H_
#define TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/linear/packed_weights.h"

namespace tessera::cuda {

// Matrix products with weights and activations in NVFP4 (W4A4) on sm_100, for one matrix or for several (mixture of
// experts). The products of codes and block scales are exact, the sums float, in an order that depends on k alone: the
// result of a row does not depend on the other rows.
//
// Functions return null or what is wrong, launch asynchronously and can be captured in a graph. Pointers are device
// pointers unless said otherwise.

// One or more matrices of the same shape (experts), as PackNvfp4Tiles lays them, one after the other.
struct Nvfp4Weights {
  int32_t n = 0;  // output features of one matrix, padded: a multiple of 128
  int32_t k = 0;  // a multiple of 64
  int32_t num_matrices = 1;
  const uint8_t* data = nullptr;  // 128-byte aligned
  // [num_matrices, n / 8]: the tensor scale of each 8 packed features; gate and up, or q, k and v, may differ.
  const float* sum_scales = nullptr;
};

size_t Nvfp4WeightBytes(int32_t n, int32_t k);  // of one matrix, padding included

// Features of the packed matrix that holds one source, or a gate and an up matrix, of n features.
int32_t Nvfp4PackedFeatures(int32_t n, RowOrder order);

// Packs a matrix into `target` (Nvfp4WeightBytes of the packed shape). Sources as ModelOpt writes them: codes [n, k / 2]
// (low nibble first), scales [n, k / 16] E4M3; k a multiple of 16. For kGateUp each 128 packed features are 64 of gate,
// then the same 64 of up. Features and k are padded with zeros.
const char* PackNvfp4Tiles(const uint8_t* codes, const uint8_t* scales, const uint8_t* up_codes,
                           const uint8_t* up_scales, int32_t n, int32_t k, RowOrder order, uint8_t* target,
                           cudaStream_t stream);

// Which slots a launch computes: "slots" are rows of the output, in tiles of at most tile_slots. For several matrices they
// are sorted by matrix and the tiles, of one matrix each, made by SortByExpert; else the device arrays are null and tile i
// holds the slots from i * tile_slots.
struct SlotTiles {
  int32_t num_slots = 0;
  int32_t tile_slots = 16;                // 16, 32, 64 or 128
  const int32_t* tile_expert = nullptr;   // [max_tiles]
  const int2* tile_slot_range = nullptr;  // [max_tiles] first slot, end
  const int32_t* num_tiles = nullptr;     // [1]
  int32_t max_tiles = 0;                  // launch bound
};

// The activations of such slots in NVFP4.
struct Nvfp4Activations {
  int32_t k = 0;            // a multiple of 64
  uint8_t* data = nullptr;  // Nvfp4ActivationBytes, 128-byte aligned
  // Tensor scales. Given by calibration, one a matrix [num_matrices]; or null, and each row has its own in row_scales
  // [num_slots], from its largest magnitude (not the tensor's, which would depend on the batch).
  const float* matrix_scales = nullptr;
  float* row_scales = nullptr;
};

size_t Nvfp4ActivationBytes(const SlotTiles& tiles, int32_t k);

// Quantises rows for the slots, and zeroes the rest of their tiles: slot s is row rows[s] of x, or row s where rows is null. x bf16 [.., x_k], x_k a multiple of
// 16 and at most out.k; the rest is zero. Each block of 16 is rounded as nvfp4::QuantizeRow rounds it with the same tensor
// scale. A NaN or an infinity makes its row's results NaN, no other's.
const char* QuantizeNvfp4(const void* x, const int32_t* rows, int32_t x_k, const SlotTiles& tiles,
                          const Nvfp4Activations& out, cudaStream_t stream);

enum class Nvfp4Epilogue {
  kStore,        // out float [slot][out_features] = sum
  kAdd,          // out float [slot][out_features] += sum: into the residual stream
  kSwiglu,       // weights packed gate-up: out bf16 [slot][out_features] = silu(gate) * up
  kSwigluNvfp4,  // the same, quantised for the next product
};

struct Nvfp4GemmParams {
  Nvfp4Weights weights;
  SlotTiles tiles;
  Nvfp4Activations x;
  Nvfp4Epilogue epilogue = Nvfp4Epilogue::kStore;
  void* out = nullptr;
  int32_t out_features = 0;  // features that exist; for kSwiglu, of the result; for kSwigluNvfp4, next.k
  Nvfp4Activations next;     // kSwigluNvfp4: with given matrix_scales
};

// y = x W^T.
const char* Nvfp4Gemm(const Nvfp4GemmParams& params, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_H_
