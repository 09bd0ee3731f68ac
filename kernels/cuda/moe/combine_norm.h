#ifndef TESSERA_KERNELS_CUDA_MOE_COMBINE_NORM_H_
#define TESSERA_KERNELS_CUDA_MOE_COMBINE_NORM_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::cuda {

struct CombineNormParams {
  const float* rows = nullptr;          // [slots, dim] the experts' results
  const int32_t* token_slot = nullptr;  // [tokens, top_k]
  const float* weights = nullptr;       // [tokens, top_k]
  int32_t tokens = 0;
  int32_t top_k = 0;  // at most 32
  int32_t dim = 0;
  float* residual = nullptr;           // [tokens, dim]
  const float* norm_weight = nullptr;  // [dim]
  float eps = 0.0f;
  void* normed = nullptr;  // out: bf16 [tokens, normed_stride], zero from dim on
  int64_t normed_stride = 0;
};

// CombineExperts, and the RMS norm of what comes out, for the next layer: residual[t] += sum over k of
// weights[t, k] * rows[token_slot[t, k]] in the order of k; normed[t] = bf16(residual[t] * rsqrt(mean square + eps) * weight).
const char* CombineExpertsAndNorm(const CombineNormParams& params, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_MOE_COMBINE_NORM_H_
