#include "kernels/cuda/moe/combine_norm.h"

#include <cuda_bf16.h>

#include "kernels/cuda/launch.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kEach = 4;  // elements of a thread that are summed at a time
constexpr int32_t kMostTopK = 32;

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int32_t distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}

// One CTA a token.
__global__ void __launch_bounds__(kThreads) CombineNormKernel(const __grid_constant__ CombineNormParams p) {
  __shared__ const float* rows[kMostTopK];
  __shared__ float weights[kMostTopK], parts[kThreads / 32];
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t token = blockIdx.x;
  if (threadIdx.x < p.top_k) {
    const int64_t pair = token * p.top_k + threadIdx.x;
    rows[threadIdx.x] = p.rows + int64_t{p.token_slot[pair]} * p.dim;
    weights[threadIdx.x] = p.weights[pair];
  }
  __syncthreads();
  float* residual = p.residual + token * p.dim;
  float squares = 0.0f;
  for (int32_t first = threadIdx.x; first < p.dim; first += kEach * kThreads) {
    float sums[kEach] = {};
#pragma unroll 4
    for (int32_t k = 0; k < p.top_k; ++k) {
#pragma unroll
      for (int32_t i = 0; i < kEach; ++i) {
        const int32_t at = first + i * kThreads;
        if (at < p.dim) sums[i] = fmaf(weights[k], rows[k][at], sums[i]);
      }
    }
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      const int32_t at = first + i * kThreads;
      if (at >= p.dim) continue;
      const float value = residual[at] + sums[i];
      residual[at] = value;
      squares = fmaf(value, value, squares);
    }
  }
  squares = WarpSum(squares);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = squares;
  __syncthreads();
  squares = 0.0f;
  for (const float part : parts) squares += part;
  const float scale = rsqrtf(squares / p.dim + p.eps);
  __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.normed) + token * p.normed_stride;
  for (int32_t at = threadIdx.x; at < p.normed_stride; at += kThreads) {
    out[at] = __float2bfloat16(at < p.dim ? residual[at] * scale * p.norm_weight[at] : 0.0f);
  }
}

}  // namespace

const char* CombineExpertsAndNorm(const CombineNormParams& p, cudaStream_t stream) {
  if (p.tokens < 1 || p.dim < 1 || p.top_k < 1 || p.top_k > kMostTopK) {
    return "combine experts: tokens and dim must be positive, top_k 1 to 32";
  }
  if (p.normed_stride < p.dim) return "combine experts: rows of the result must hold dim elements";
  const cudaError_t status = LaunchDependent(CombineNormKernel, p.tokens, kThreads, 0, stream, p);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace tessera::cuda
