// The paged KV cache of one layer, BF16.
//
// A slot is block * block_size + offset. Blocks are contiguous in K and in V, so that copying a block is two
// memcpy's of block_elements() each.
//   V: [num_blocks, kv_heads, block_size, head_dim]
//   K: [num_blocks, kv_heads, block_size / 16, head_dim / 2, 16, 2]: in a run of 16 tokens, the pair of
//      elements (2d, 2d+1) of all 16 stands together, so that a BF16 pair dot product with a broadcast query
//      pair gives 16 tokens' scores side by side, without horizontal sums.
#ifndef TESSERA_KERNELS_CPU_FMHA_KV_CACHE_H_
#define TESSERA_KERNELS_CPU_FMHA_KV_CACHE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/nvfp4/bf16.h"

namespace tessera::cpu {

inline constexpr int64_t kKvTokenRun = 16;

// A view of one layer; the memory (elements() of K and of V, aligned to 64 bytes) belongs to the caller.
struct KvCache {
  Bf16* k = nullptr;
  Bf16* v = nullptr;
  int64_t num_blocks = 0;
  int64_t kv_heads = 0;
  int64_t block_size = 16;  // a power of two, at least 16
  int64_t head_dim = 0;     // even, at most kMaxHeadDim; multiples of 16 are fast

  int64_t block_elements() const { return kv_heads * block_size * head_dim; }
  int64_t elements() const { return num_blocks * block_elements(); }
};

inline constexpr int64_t kMaxHeadDim = 512;

// OK, or what is wrong with the shape, the pointers or their alignment.
absl::Status CheckKvCache(const KvCache& cache);

// Rounds keys and values of tokens to BF16 into their slots. k, v: [tokens, kv_heads, head_dim], tokens
// stride apart. slots[t] < 0 skips the token; a slot past the cache is an error and nothing is written.
absl::Status WriteKv(const KvCache& cache, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                     const int64_t* slots, int64_t tokens, ThreadPool& pool);

// Reads one token's key and value of one KV head back as floats: for tests and debugging.
void ReadKv(const KvCache& cache, int64_t slot, int64_t kv_head, float* k, float* v);

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_FMHA_KV_CACHE_H_
