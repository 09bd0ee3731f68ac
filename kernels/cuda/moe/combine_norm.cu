#include "kernels/cuda/moe/combine_norm.h"

#include <cuda_bf16.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops/row_norm.cuh"
#include "kernels/cuda/ptx/load.cuh"

namespace tessera::cuda {
namespace {

constexpr int32_t kThreads = kNormThreads;
constexpr int32_t kEach = 4;  // elements of a thread that are summed at a time
constexpr int32_t kHeldBlocks = 2, kHeld = kHeldBlocks * kEach;  // that stay in registers
constexpr int32_t kMostTopK = 32;

struct Choices {
  const float* rows[kMostTopK];
  float weights[kMostTopK];
};

// What the elements first, first + kThreads, ... of a residual become.
__device__ __forceinline__ void Combine(const CombineNormParams& p, const Choices& choices, const float* residual,
                                        int32_t first, float* values) {
  float sums[kEach] = {};
#pragma unroll
  for (int32_t i = 0; i < kEach; ++i) {
    const int32_t at = first + i * kThreads;
    values[i] = at < p.dim ? residual[at] : 0.0f;
  }
#pragma unroll 8
  for (int32_t k = 0; k < p.top_k; ++k) {
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      const int32_t at = first + i * kThreads;
      if (at < p.dim) sums[i] = fmaf(choices.weights[k], choices.rows[k][at], sums[i]);
    }
  }
#pragma unroll
  for (int32_t i = 0; i < kEach; ++i) values[i] += sums[i];
}

// One CTA a token.
__global__ void __launch_bounds__(kThreads) CombineNormKernel(const __grid_constant__ CombineNormParams p) {
  __shared__ Choices choices;
  __shared__ float parts[kNormWarps];
  float norm_weights[kHeld], values[kHeld];
  GridDependencyLaunch();
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    const int32_t at = threadIdx.x + i * kThreads;
    norm_weights[i] = at < p.dim ? ptx::LoadNow(p.norm_weight + at) : 0.0f;
  }
  GridDependencyWait();
  const int64_t token = blockIdx.x;
  if (threadIdx.x < p.top_k) {
    const int64_t pair = token * p.top_k + threadIdx.x;
    choices.weights[threadIdx.x] = ptx::LoadNow(p.weights + pair);
    choices.rows[threadIdx.x] = p.rows + int64_t{p.token_slot[pair]} * p.dim;
  }
  __syncthreads();
  float* residual = p.residual + token * p.dim;
  float squares = 0.0f;
  const auto add = [&](int32_t first, float* block) {
    Combine(p, choices, residual, first, block);
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      const int32_t at = first + i * kThreads;
      if (at >= p.dim) continue;
      residual[at] = block[i];
      squares = fmaf(block[i], block[i], squares);
    }
  };
#pragma unroll
  for (int32_t block = 0; block < kHeldBlocks; ++block) {
    const int32_t first = threadIdx.x + block * kEach * kThreads;
    if (first < p.dim) add(first, values + block * kEach);
  }
  constexpr int32_t kRest = kHeld * kThreads;
  for (int32_t first = kRest + threadIdx.x; first < p.dim; first += kEach * kThreads) {
    float block[kEach];
    add(first, block);
  }
  const float scale = RmsScale(squares, p.dim, p.eps, parts);
  __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.normed) + token * p.normed_stride;
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    const int32_t at = threadIdx.x + i * kThreads;
    if (at < p.dim) out[at] = __float2bfloat16(values[i] * scale * norm_weights[i]);
  }
  for (int32_t at = kRest + threadIdx.x; at < p.dim; at += kThreads) {
    out[at] = __float2bfloat16(residual[at] * scale * p.norm_weight[at]);
  }
  for (int32_t at = p.dim + threadIdx.x; at < p.normed_stride; at += kThreads) out[at] = __float2bfloat16(0.0f);
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
