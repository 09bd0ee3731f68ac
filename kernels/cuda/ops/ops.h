#ifndef TESSERA_KERNELS_CUDA_OPS_OPS_H_
#define TESSERA_KERNELS_CUDA_OPS_OPS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/host_device.h"

namespace tessera::cuda {

// The row-wise operations between the matrix products. All pointers are device pointers, tensors dense; each row's
// result depends on that row alone. Each launches on `stream` and returns null or what is wrong.

// Tokens that were drawn on the device: the one of draw i at data[i * stride], negative if nothing came of it.
struct DrawnTokens {
  const int32_t* data = nullptr;
  int32_t stride = 1;
};
// The id that stands for the token of a draw.
TESSERA_HOST_DEVICE int32_t IdOfDraw(int32_t draw) { return -1 - draw; }

// out[t] = table[ids[t]]; table bf16 [vocab, dim], out float [tokens, dim]. Ids must be in range, or IdOfDraw of a draw
// (token 0 if nothing came of it).
const char* EmbedTokens(const void* table, const int32_t* ids, DrawnTokens drawn, int32_t tokens, int32_t dim,
                        float* out, cudaStream_t stream);

struct RmsNormParams {
  const float* x = nullptr;
  int64_t x_stride = 0;           // elements from a row to the next; 0: dim
  const int32_t* rows = nullptr;  // row of x that each row of the result comes from; null: its own index
  int32_t tokens = 0;             // rows of the result
  int32_t dim = 0;
  const float* weight = nullptr;  // [dim]
  float eps = 0.0f;
};

// out[i] = bf16(x[r] * rsqrt(mean(x[r]^2) + eps) * weight), r = rows[i]. Rows of the result are `out_dim` elements, at
// least dim; those past dim are zero.
const char* RmsNorm(const RmsNormParams& params, void* out, int32_t out_dim, cudaStream_t stream);
// The same in float, rows `out_stride` elements apart, nothing written past dim; `out` may be x where rows is null.
const char* RmsNormFloat(const RmsNormParams& params, float* out, int64_t out_stride, cudaStream_t stream);

struct QkvParams {
  // A token's heads: q from the row's beginning, k and v from their offsets, each dense.
  const float* qkv = nullptr;  // [tokens, row_stride]
  int32_t row_stride = 0;
  int32_t k_offset = 0;
  int32_t v_offset = 0;
  const float* q_norm = nullptr;  // [head_dim], or null for none
  const float* k_norm = nullptr;
  float eps = 0.0f;
  // [positions, rotary_dim / 2] cosine and sine, or null for no rotation; rotates half against half, or neighbours.
  const float2* rope = nullptr;
  int32_t rotary_dim = 0;
  bool interleaved = false;
  const int32_t* positions = nullptr;  // [tokens]
  const int64_t* slots = nullptr;      // [tokens] cache slot: block * block_size + offset, below 2^31
  int32_t tokens = 0;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // even, at most 512
  int32_t out_dim = 0;   // of a head in q and the cache: at least head_dim; elements past it are zero
  int32_t block_size = 0;
  void* q = nullptr;        // out: bf16 [tokens, query heads, out_dim]
  void* k_cache = nullptr;  // out: bf16 [blocks, KV heads, block_size, out_dim]
  void* v_cache = nullptr;
};

// Normalises each head of q and k and rotates it, writes q, and k and v into the cache.
const char* FinishQkv(const QkvParams& params, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_OPS_OPS_H_
