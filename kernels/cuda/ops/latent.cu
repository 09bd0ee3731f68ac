#include "kernels/cuda/ops/latent.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/launch.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kWarps = kThreads / 32;

const char* Reason(cudaError_t status) {
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int32_t distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}

// The rotated part of a query or key, zeros before it from `begin` and behind it to the end of `row`.
__device__ __forceinline__ void WriteRotated(const LatentParams& p, const float* x, const float2* angles,
                                             int32_t begin, __nv_bfloat16* row, int32_t lane) {
  const int32_t half = p.rope_dim / 2;
  for (int32_t i = begin + lane; i < p.key_dim; i += 32) {
    const int32_t at = i - p.rope_offset;
    float value = 0.0f;
    if (at >= 0 && at < p.rope_dim) {
      value = x[at];
      if (angles != nullptr) {
        const int32_t pair = p.interleaved ? at / 2 : at % half;
        const bool is_second = p.interleaved ? at % 2 != 0 : at >= half;
        const float a = x[p.interleaved ? 2 * pair : pair], b = x[p.interleaved ? 2 * pair + 1 : pair + half];
        value = is_second ? b * angles[pair].x + a * angles[pair].y : a * angles[pair].x - b * angles[pair].y;
      }
    }
    row[i] = __float2bfloat16(value);
  }
}

// One warp a (token, head), and one more a token for its key.
__global__ void FinishLatentKernel(const __grid_constant__ LatentParams p) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int32_t lane = threadIdx.x % 32;
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (index >= int64_t{p.tokens} * (p.num_heads + 1)) return;
  const int32_t token = index / (p.num_heads + 1), head = index % (p.num_heads + 1);
  const float2* angles = p.rope ? p.rope + int64_t{p.positions[token]} * (p.rope_dim / 2) : nullptr;
  if (head == p.num_heads) {
    const float* latent = p.kv + token * p.kv_stride;
    float sum = 0.0f;
    for (int32_t i = lane; i < p.kv_rank; i += 32) sum += latent[i] * latent[i];
    const float scale = rsqrtf(WarpSum(sum) / p.kv_rank + p.eps);
    __nv_bfloat16* key = static_cast<__nv_bfloat16*>(p.k_cache) + p.slots[token] * p.key_dim;
    for (int32_t i = lane; i < p.kv_rank; i += 32)
      key[i] = __float2bfloat16(latent[i] * scale * p.kv_norm[i]);
    WriteRotated(p, latent + p.kv_rank, angles, p.kv_rank, key, lane);
    return;
  }
  const float* source = p.heads + token * p.heads_stride + int64_t{head} * (p.nope_dim + p.rope_dim);
  const int64_t row = int64_t{token} * p.num_heads + head;
  __nv_bfloat16* nope = static_cast<__nv_bfloat16*>(p.q_nope) + row * p.nope_stride;
  for (int32_t i = lane; i < p.nope_stride; i += 32) {
    nope[i] = __float2bfloat16(i < p.nope_dim ? source[i] : 0.0f);
  }
  WriteRotated(p, source + p.nope_dim, angles, p.kv_rank, static_cast<__nv_bfloat16*>(p.q) + row * p.key_dim,
               lane);
}

__global__ void TileHeadsKernel(int32_t tokens, int32_t heads, int32_t tile_slots, int32_t head_tiles,
                                const __grid_constant__ SortedSlots out) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index < int64_t{tokens} * heads) {
    out.slot_token[index] = static_cast<int32_t>(index % tokens * heads + index / tokens);
  }
  if (index < int64_t{head_tiles} * heads) {
    const int32_t head = index / head_tiles, first = index % head_tiles * tile_slots;
    out.tile_expert[index] = head;
    out.tile_slot_range[index] =
        make_int2(head * tokens + first, head * tokens + min(first + tile_slots, tokens));
  }
  if (index == 0) *out.num_tiles = head_tiles * heads;
}

__global__ void GatherHeadsKernel(const float* rows, int32_t tokens, int32_t heads, int32_t dim,
                                  __nv_bfloat16* out, int32_t head_stride, int32_t row_stride) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int32_t token = blockIdx.x, step = gridDim.y * kThreads, first = blockIdx.y * kThreads + threadIdx.x;
  __nv_bfloat16* row = out + int64_t{token} * row_stride;
  for (int32_t i = first; i < heads * dim; i += step) {
    const int32_t head = i / dim, at = i % dim;
    row[head * head_stride + at] = __float2bfloat16(rows[(int64_t{head} * tokens + token) * dim + at]);
  }
  for (int32_t i = heads * head_stride + first; i < row_stride; i += step) row[i] = __float2bfloat16(0.0f);
}

}  // namespace

const char* FinishLatent(const LatentParams& p, cudaStream_t stream) {
  if (p.tokens < 1 || p.num_heads < 1 || p.kv_rank < 1) return "finish latent: sizes must be positive";
  if (p.rope_dim < 2 || p.rope_dim % 2 != 0) return "finish latent: rope_dim must be even and positive";
  if (p.rope_offset < p.kv_rank || p.key_dim < p.rope_offset + p.rope_dim || p.nope_stride < p.nope_dim) {
    return "finish latent: a key or query does not fit its row";
  }
  const int64_t warps = int64_t{p.tokens} * (p.num_heads + 1);
  return Reason(LaunchDependent(FinishLatentKernel, static_cast<uint32_t>((warps + kWarps - 1) / kWarps),
                                kThreads, 0, stream, p));
}

int32_t MostHeadTiles(int32_t tokens, int32_t heads, int32_t tile_slots) {
  return (tokens + tile_slots - 1) / tile_slots * heads;
}

const char* TileHeads(int32_t tokens, int32_t heads, int32_t tile_slots, const SortedSlots& tiles,
                      cudaStream_t stream) {
  if (tokens < 1 || heads < 1 || tile_slots < 1) return "tile heads: sizes must be positive";
  const int64_t slots = int64_t{tokens} * heads;
  return Reason(LaunchDependent(TileHeadsKernel, static_cast<uint32_t>((slots + kThreads - 1) / kThreads),
                                kThreads, 0, stream, tokens, heads, tile_slots,
                                MostHeadTiles(tokens, heads, tile_slots) / heads, tiles));
}

const char* GatherHeads(const float* rows, int32_t tokens, int32_t heads, int32_t dim, void* out,
                        int32_t head_stride, int32_t row_stride, cudaStream_t stream) {
  if (tokens < 1 || heads < 1 || dim < 1) return "gather heads: sizes must be positive";
  if (head_stride < dim || row_stride < heads * head_stride)
    return "gather heads: a head does not fit its row";
  const uint32_t parts = std::min(64, (heads * dim + 4 * kThreads - 1) / (4 * kThreads));
  return Reason(LaunchDependent(GatherHeadsKernel, dim3(tokens, parts), kThreads, 0, stream, rows, tokens,
                                heads, dim, static_cast<__nv_bfloat16*>(out), head_stride, row_stride));
}

}  // namespace tessera::cuda
