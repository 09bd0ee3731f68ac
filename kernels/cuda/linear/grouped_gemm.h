#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_H_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

#include "kernels/cuda/linear/activation_order.h"
#include "kernels/cuda/linear/packed_weights.h"

namespace tessera::cuda {

// What becomes of the sums.
enum class GemmEpilogue {
  kStore,   // out float [row][n] = sum
  kAdd,     // out float [row][n] += sum: into the residual stream
  kSwiglu,  // weights packed gate-up: out bf16 [row][n / 2] = act(gate, up)
};

// act(gate, up) = g * sigmoid(sigmoid_scale * g) * (u + up_offset), g = min(gate, limit), u = clamp(up, -limit, limit).
// As it stands here it is SwiGLU, silu(gate) * up.
struct Glu {
  float limit = std::numeric_limits<float>::infinity();
  float sigmoid_scale = 1.0f;
  float up_offset = 0.0f;
};

// y = x W^T over the rows of one matrix or of several (mixture of experts), bf16 activations, exact bf16 products, float
// sums in an order that depends on k alone: the result of a row does not depend on the other rows.
//
// A "slot" is a row of the output: row `slot` of x, or row input_rows[slot] (an expert's tokens are gathered). For
// several matrices the slots are sorted by expert, and `tiles` cuts them into pieces of one expert each.
struct GroupedGemmParams {
  PackedWeights weights;
  const void* x = nullptr;  // bf16 [rows, k]
  // The order of the steps chooses the kernel for prompts, through wgmma: sm_90 alone, slot i reading row i (GatherRows).
  // Both give the same bits.
  ActivationOrder x_order = ActivationOrder::kPlain;
  const int32_t* input_rows = nullptr;  // device [num_slots], or null: slot i reads row i
  void* out = nullptr;
  int32_t out_features = 0;  // features that exist (n without padding); for kSwiglu, of the result
  GemmEpilogue epilogue = GemmEpilogue::kStore;
  Glu glu;  // kSwiglu
  // Of kSwiglu's result. The order of the steps needs x in it too, and out_features a multiple of 64.
  ActivationOrder out_order = ActivationOrder::kPlain;

  int32_t num_slots = 0;
  int32_t tile_slots = 8;  // most slots of a tile: 8, 16, 32, 64; in the order of the steps also 128
  // For several matrices: device arrays made by SortByExpert for the same tile_slots; else null.
  const int32_t* tile_expert = nullptr;   // [max_tiles]; those past *num_tiles may be read, but mean nothing
  const int2* tile_slot_range = nullptr;  // [max_tiles] first slot, end
  const int32_t* num_tiles = nullptr;     // [1]
  int32_t max_tiles = 0;                  // launch bound
  // The tiles were complete before the launch before this one began: that one is a GroupedGemm of the same tiles. Weights
  // of few slots are then loaded while it still runs.
  bool tiles_settled = false;
};

// Checks the shapes and launches. Returns what is wrong, or null. Can be captured in a graph.
const char* GroupedGemm(const GroupedGemmParams& params, cudaStream_t stream);

// Whether the matrices of a step of so many tokens are worth having their activations in the order of the steps.
bool StepOrderPays(int64_t tokens);

// The tile size that suits `slots` slots spread over the matrices of `weights`: large enough that a tile holds a matrix's
// share, small enough that the launch fills the device. Any size gives the same bits.
int32_t ChooseTileSlots(int64_t slots, const PackedWeights& weights,
                        ActivationOrder order = ActivationOrder::kPlain);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_H_
