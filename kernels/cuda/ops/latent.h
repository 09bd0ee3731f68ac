#ifndef TESSERA_KERNELS_CUDA_OPS_LATENT_H_
#define TESSERA_KERNELS_CUDA_OPS_LATENT_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/moe/routing.h"

namespace tessera::cuda {

// Latent attention (MLA) in the absorbed form, around its matrix products: all query heads attend to one KV head whose
// key is the token's normed latent and, behind it, the rotated part that all heads share; its value is the latent.
struct LatentParams {
  const float* kv =
      nullptr;  // [tokens, kv_stride]: kv_rank elements of the latent, rope_dim of the shared part
  int64_t kv_stride = 0;
  const float* kv_norm = nullptr;  // [kv_rank]
  float eps = 0.0f;
  const float* heads = nullptr;  // [tokens, heads_stride]: queries, heads of nope_dim + rope_dim elements
  int64_t heads_stride = 0;
  const float2* rope = nullptr;  // [positions, rope_dim / 2] cosine and sine, or null for no rotation
  bool interleaved = false;
  const int32_t* positions = nullptr;  // [tokens]
  const int64_t* slots = nullptr;      // [tokens] cache slot: block * block_size + offset
  int32_t tokens = 0;
  int32_t num_heads = 0;
  int32_t kv_rank = 0;
  int32_t rope_dim = 0;  // even
  int32_t nope_dim = 0;
  // A key: the latent, zeros to rope_offset, the rotated part, zeros to key_dim.
  int32_t rope_offset = 0;
  int32_t key_dim = 0;
  int32_t nope_stride = 0;  // of a head in q_nope, at least nope_dim
  void* k_cache = nullptr;  // out: bf16 [slots, key_dim]
  void* q_nope = nullptr;   // out: bf16 [tokens, heads, nope_stride], zeros past nope_dim
  void* q = nullptr;  // out: bf16 [tokens, heads, key_dim], all but the first kv_rank elements of a head
};

// Writes the keys of the tokens, and of their queries what needs no further product.
const char* FinishLatent(const LatentParams& params, cudaStream_t stream);

// The rows of a product that takes each head's share of a token to a matrix of its own: slot head * tokens + token reads
// row token * heads + head, tiles hold `tile_slots` slots of one head. `tiles`: token_slot is not written. There are
// MostHeadTiles of them.
int32_t MostHeadTiles(int32_t tokens, int32_t heads, int32_t tile_slots);
const char* TileHeads(int32_t tokens, int32_t heads, int32_t tile_slots, const SortedSlots& tiles,
                      cudaStream_t stream);

// out[token * row_stride + head * head_stride + i] = bf16(rows[head * tokens + token][i]), i < dim; what a row of the
// result has past the last head's stride is zeroed.
const char* GatherHeads(const float* rows, int32_t tokens, int32_t heads, int32_t dim, void* out,
                        int32_t head_stride, int32_t row_stride, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_OPS_LATENT_H_
