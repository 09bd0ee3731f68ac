#include "kernels/cuda/ops/ops.h"

#include <cuda_bf16.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops/row_norm.cuh"
#include "kernels/cuda/ptx/load.cuh"

namespace tessera::cuda {
namespace {

constexpr int32_t kThreads = 256;

const char* Reason(cudaError_t status) {
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

__global__ void EmbedKernel(const __nv_bfloat16* table, const int32_t* ids, DrawnTokens drawn, int32_t dim,
                            float* out) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t token = blockIdx.x;
  int32_t id = ids[token];
  if (id < 0) id = max(drawn.data[int64_t{IdOfDraw(id)} * drawn.stride], 0);
  const __nv_bfloat16* row = table + int64_t{id} * dim;
  for (int32_t i = threadIdx.x; i < dim; i += blockDim.x) out[token * dim + i] = __bfloat162float(row[i]);
}

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int32_t distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}

__device__ __forceinline__ void Store(float* out, float value) { *out = value; }
__device__ __forceinline__ void Store(__nv_bfloat16* out, float value) { *out = __float2bfloat16(value); }

// One CTA a row. Elements from dim to `zero_end` of the result are zeroed.
template <class Out>
__global__ void __launch_bounds__(kNormThreads)
    RmsNormKernel(const __grid_constant__ RmsNormParams p, Out* out, int64_t out_stride, int32_t zero_end) {
  constexpr int32_t kHeld = 8;  // elements of a thread that stay in registers
  __shared__ float parts[kNormWarps];
  const int32_t dim = p.dim;
  float weights[kHeld], values[kHeld];
  GridDependencyLaunch();
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    const int32_t at = threadIdx.x + i * kNormThreads;
    weights[i] = at < dim ? ptx::LoadNow(p.weight + at) : 0.0f;
  }
  GridDependencyWait();
  const int64_t row = p.rows ? p.rows[blockIdx.x] : blockIdx.x;
  const float* source = p.x + row * p.x_stride;
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    const int32_t at = threadIdx.x + i * kNormThreads;
    values[i] = at < dim ? source[at] : 0.0f;
  }
  float squares = 0.0f;
#pragma unroll
  for (const float value : values) squares = fmaf(value, value, squares);
  constexpr int32_t kRest = kHeld * kNormThreads;
  for (int32_t at = kRest + threadIdx.x; at < dim; at += kNormThreads) squares = fmaf(source[at], source[at], squares);
  const float scale = RmsScale(squares, dim, p.eps, parts);
  Out* target = out + int64_t{blockIdx.x} * out_stride;
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    const int32_t at = threadIdx.x + i * kNormThreads;
    if (at < dim) Store(target + at, values[i] * scale * weights[i]);
  }
  for (int32_t at = kRest + threadIdx.x; at < dim; at += kNormThreads) {
    Store(target + at, source[at] * scale * p.weight[at]);
  }
  for (int32_t i = dim + threadIdx.x; i < zero_end; i += kNormThreads) Store(target + i, 0.0f);
}

template <class Out>
const char* LaunchRmsNorm(RmsNormParams p, Out* out, int64_t out_stride, int32_t zero_end,
                          cudaStream_t stream) {
  if (p.tokens < 1 || p.dim < 1) return "rms norm: tokens and dim must be positive";
  if (out_stride < p.dim) return "rms norm: rows of the result must hold dim elements";
  if (p.x_stride == 0) p.x_stride = p.dim;
  return Reason(
      LaunchDependent(RmsNormKernel<Out>, p.tokens, kNormThreads, 0, stream, p, out, out_stride, zero_end));
}

// One warp a (token, head); heads in the order q, k, v. A lane holds the elements lane, lane + 32, ...
constexpr int32_t kMostPerLane = 16;

__global__ void FinishQkvKernel(const __grid_constant__ QkvParams p) {
  constexpr int32_t kHeld = 4;  // elements of a lane that are held in registers: all of a head of 128
  GridDependencyLaunch();
  const int32_t lane = threadIdx.x % 32;
  const int32_t heads = p.num_query_heads + 2 * p.num_kv_heads;
  const int32_t index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (index >= p.tokens * heads) return;
  const int32_t token = index / heads, head = index % heads;
  const bool is_q = head < p.num_query_heads;
  const bool is_v = head >= p.num_query_heads + p.num_kv_heads;
  extern __shared__ float shared[];
  float* x = shared + threadIdx.x / 32 * p.head_dim;  // rotation pairs elements of different lanes

  // All that memory is asked for before the first of it is used.
  const float* norm = is_v ? nullptr : is_q ? p.q_norm : p.k_norm;
  float norms[kHeld];
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    norms[i] = norm != nullptr && lane + i * 32 < p.head_dim ? ptx::LoadNow(norm + lane + i * 32) : 1.0f;
  }
  GridDependencyWait();
  const int32_t kv_head = is_q ? 0 : (head - p.num_query_heads) % p.num_kv_heads;
  const float* source = p.qkv + int64_t{token} * p.row_stride +
                        (is_q ? head * p.head_dim : (is_v ? p.v_offset : p.k_offset) + kv_head * p.head_dim);
  const bool rotates = p.rope != nullptr && !is_v;
  const int32_t position = rotates ? ptx::LoadNow(p.positions + token) : 0;
  const uint32_t slot = is_q ? 0 : static_cast<uint32_t>(ptx::LoadNow(p.slots + token));
  float values[kHeld];
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    values[i] = lane + i * 32 < p.head_dim ? ptx::LoadNow(source + lane + i * 32) : 0.0f;
  }
  const int32_t half = p.rotary_dim / 2;
  const float2* angles = p.rope + (rotates ? int64_t{position} * half : 0);
  float2 held_angles[kHeld / 2];
#pragma unroll
  for (int32_t i = 0; i < kHeld / 2; ++i) {
    if (rotates && lane + i * 32 < half) held_angles[i] = ptx::LoadNow(angles + lane + i * 32);
  }
  float sum = 0.0f;
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) sum += values[i] * values[i];
  for (int32_t i = lane + kHeld * 32; i < p.head_dim; i += 32) {
    x[i] = source[i];
    sum += x[i] * x[i];
  }
  float scale = 1.0f;
  if (norm != nullptr) {
    scale = rsqrtf(WarpSum(sum) / p.head_dim + p.eps);
    for (int32_t i = lane + kHeld * 32; i < p.head_dim; i += 32) x[i] *= scale * norm[i];
  }
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    if (lane + i * 32 < p.head_dim) x[lane + i * 32] = norm != nullptr ? values[i] * (scale * norms[i]) : values[i];
  }
  __syncwarp();
  if (rotates) {
    const auto rotate = [&](int32_t i, float2 angle) {
      const int32_t first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + half;
      const float a = x[first], b = x[second];
      x[first] = a * angle.x - b * angle.y;
      x[second] = b * angle.x + a * angle.y;
    };
#pragma unroll
    for (int32_t i = 0; i < kHeld / 2; ++i) {
      if (lane + i * 32 < half) rotate(lane + i * 32, held_angles[i]);
    }
    for (int32_t i = lane + kHeld * 16; i < half; i += 32) rotate(i, angles[i]);
    __syncwarp();
  }
  __nv_bfloat16* target;
  if (is_q) {
    target = static_cast<__nv_bfloat16*>(p.q) + (int64_t{token} * p.num_query_heads + head) * p.out_dim;
  } else {
    const int64_t block = slot / p.block_size, offset = slot % p.block_size;
    target = static_cast<__nv_bfloat16*>(is_v ? p.v_cache : p.k_cache) +
             ((block * p.num_kv_heads + kv_head) * p.block_size + offset) * p.out_dim;
  }
  for (int32_t i = lane; i < p.out_dim; i += 32) target[i] = __float2bfloat16(i < p.head_dim ? x[i] : 0.0f);
}

}  // namespace

const char* EmbedTokens(const void* table, const int32_t* ids, DrawnTokens drawn, int32_t tokens, int32_t dim,
                        float* out, cudaStream_t stream) {
  if (tokens < 1 || dim < 1) return "embed tokens: tokens and dim must be positive";
  return Reason(LaunchDependent(EmbedKernel, tokens, kThreads, 0, stream,
                                static_cast<const __nv_bfloat16*>(table), ids, drawn, dim, out));
}

const char* RmsNorm(const RmsNormParams& params, void* out, int32_t out_dim, cudaStream_t stream) {
  return LaunchRmsNorm(params, static_cast<__nv_bfloat16*>(out), out_dim, out_dim, stream);
}

const char* RmsNormFloat(const RmsNormParams& params, float* out, int64_t out_stride, cudaStream_t stream) {
  return LaunchRmsNorm(params, out, out_stride, params.dim, stream);
}

const char* FinishQkv(const QkvParams& p, cudaStream_t stream) {
  if (p.tokens < 1 || p.num_query_heads < 1 || p.num_kv_heads < 1)
    return "finish qkv: sizes must be positive";
  if (p.head_dim < 2 || p.head_dim > 32 * kMostPerLane || p.head_dim % 2 != 0) {
    return "finish qkv: head_dim must be even, 2 to 512";
  }
  if (p.out_dim < p.head_dim) return "finish qkv: out_dim must not be less than head_dim";
  if (p.rope != nullptr && (p.rotary_dim < 2 || p.rotary_dim > p.head_dim || p.rotary_dim % 2 != 0)) {
    return "finish qkv: rotary_dim must be even, 2 to head_dim";
  }
  if (p.block_size < 1) return "finish qkv: block_size must be positive";
  const int64_t warps = int64_t{p.tokens} * (p.num_query_heads + 2 * p.num_kv_heads);
  constexpr int32_t kWarps = kThreads / 32;
  return Reason(LaunchDependent(FinishQkvKernel, static_cast<uint32_t>((warps + kWarps - 1) / kWarps),
                                kThreads, kWarps * p.head_dim * 4, stream, p));
}

}  // namespace tessera::cuda
