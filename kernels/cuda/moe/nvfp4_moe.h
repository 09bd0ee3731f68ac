#ifndef TESSERA_KERNELS_CUDA_MOE_NVFP4_MOE_H_
#define TESSERA_KERNELS_CUDA_MOE_NVFP4_MOE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/linear/nvfp4_gemm.h"

namespace tessera::cuda {

// The experts of a mixture, weights and activations in NVFP4 (W4A4), on sm_100:
//
//   residual[t] += sum over k of expert_weights[t, k] * down(silu(gate(x[t])) * up(x[t])), of expert experts[t, k]
//
// in the order of k. A token's result depends on that token alone, bit for bit. Pointers are device pointers.
struct Nvfp4MoeParams {
  const void* x = nullptr;  // bf16 [tokens, x_stride], zeros from hidden on
  int32_t tokens = 0;
  int32_t hidden = 0;    // a multiple of 16
  int32_t x_stride = 0;  // 0: hidden; else a multiple of 16, at most hidden rounded up to a multiple of 64
  int32_t intermediate = 0;  // of one expert, a multiple of 16
  int32_t num_experts = 0;
  int32_t top_k = 0;
  const int32_t* experts = nullptr;       // [tokens, top_k], as RouteTokens chooses them
  const float* expert_weights = nullptr;  // [tokens, top_k]

  Nvfp4Weights gate_up;  // num_experts matrices, kGateUp
  Nvfp4Weights down;
  // [num_experts] tensor scales of the activations that go into gate and up, and into down, by calibration; or null: from
  // each row. With down's given, the intermediate result is quantised where it is computed.
  const float* gate_up_input_scales = nullptr;
  const float* down_input_scales = nullptr;

  float* residual = nullptr;  // [tokens, hidden]
  void* workspace = nullptr;  // Nvfp4MoeWorkspaceBytes, 256-byte aligned
};

// Bytes of workspace for these sizes; the pointers are not looked at.
size_t Nvfp4MoeWorkspaceBytes(const Nvfp4MoeParams& params);

// Launches on `stream`; can be captured in a graph. Returns null or what is wrong.
const char* Nvfp4Moe(const Nvfp4MoeParams& params, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_MOE_NVFP4_MOE_H_
