#ifndef TESSERA_KERNELS_CUDA_OPS_OPS_H_
#define TESSERA_KERNELS_CUDA_OPS_OPS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::cuda {

// The row-wise operations between the matrix products. All pointers are device pointers, tensors dense; each row's
// result depends on that row alone. Each launches on `stream` and returns null or what is wrong.

// out[t] = table[ids[t]]; table bf16 [vocab, dim], out float [tokens, dim]. Ids must be in range.
const char* EmbedTokens(const void* table, const int32_t* ids, int32_t tokens, int32_t dim, float* out,
                        cudaStream_t stream);

// out[i] = bf16(x[r] * rsqrt(mean(x[r]^2) + eps) * weight), r = rows[i], or i where rows is null. x float [.., dim], dim
// even.
const char* RmsNorm(const float* x, const int32_t* rows, int32_t tokens, int32_t dim, const float* weight, float eps,
                    void* out, cudaStream_t stream);
// The same with a float result.
const char* RmsNormFloat(const float* x, const int32_t* rows, int32_t tokens, int32_t dim, const float* weight,
                         float eps, float* out, cudaStream_t stream);

struct QkvParams {
  const float* qkv = nullptr;       // [tokens, (query heads + 2 KV heads) * head_dim]: q, k, v
  const float* q_norm = nullptr;    // [head_dim], or null for none
  const float* k_norm = nullptr;
  float eps = 0.0f;
  // [positions, rotary_dim / 2] cosine and sine, or null for no rotation; rotates half against half, or neighbours.
  const float2* rope = nullptr;
  int32_t rotary_dim = 0;
  bool interleaved = false;
  const int32_t* positions = nullptr;  // [tokens]
  const int64_t* slots = nullptr;      // [tokens] cache slot: block * block_size + offset
  int32_t tokens = 0;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // even, at most 512
  int32_t block_size = 0;
  void* q = nullptr;        // out: bf16 [tokens, query heads, head_dim]
  void* k_cache = nullptr;  // out: bf16 [blocks, KV heads, block_size, head_dim]
  void* v_cache = nullptr;
};

// Normalises and rotates q and k, writes q, and k and v into the cache.
const char* FinishQkv(const QkvParams& params, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_OPS_OPS_H_
