// The paged KV cache of one layer, BF16.
//
// A slot is block * block_size + offset. Blocks are contiguous in K and in V, so that copying a block is two
// memcpy's.
//   V: [num_blocks, kv_heads, block_size, value_dim]
//   K: [num_blocks, kv_heads, block_size / 16, (head_dim - shared_dim) / 2, 16, 2]: in a run of 16 tokens, the pair of
//      elements (2d, 2d+1) of all 16 stands together, so that a BF16 pair dot product with a broadcast query
//      pair gives 16 tokens' scores side by side, without horizontal sums.
// Latent attention (MLA, absorbed) is one KV head whose values are the leading elements of its keys. They are
// stored once, in V (shared_dim = value_dim); K has the rest of the keys.
#ifndef TESSERA_KERNELS_CPU_FMHA_KV_CACHE_H_
#define TESSERA_KERNELS_CPU_FMHA_KV_CACHE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/nvfp4/bf16.h"

namespace tessera::cpu {

inline constexpr int64_t kKvTokenRun = 16;

// A view of one layer; the memory (k_elements() and v_elements(), aligned to 64 bytes) belongs to the caller.
struct KvCache {
  Bf16* k = nullptr;
  Bf16* v = nullptr;
  int64_t num_blocks = 0;
  int64_t kv_heads = 0;
  int64_t block_size = 16;  // a power of two, at least 16
  int64_t head_dim = 0;     // of keys; even, at most kMaxHeadDim; multiples of 16 are fast
  int64_t value_dim = 0;    // of values; even, at most head_dim
  int64_t shared_dim =
      0;  // leading elements of a key that are the value: 0, or value_dim if less than head_dim

  int64_t k_dim() const { return head_dim - shared_dim; }  // elements of a key in K
  int64_t k_block_elements() const { return kv_heads * block_size * k_dim(); }
  int64_t v_block_elements() const { return kv_heads * block_size * value_dim; }
  int64_t k_elements() const { return num_blocks * k_block_elements(); }
  int64_t v_elements() const { return num_blocks * v_block_elements(); }
};

inline constexpr int64_t kMaxHeadDim = 576;  // DeepSeek-V3's latent and rope together

// OK, or what is wrong with the shape, the pointers or their alignment.
absl::Status CheckKvCache(const KvCache& cache);

// Rounds keys and values of tokens to BF16 into their slots. k: [tokens, kv_heads, head_dim], v: [tokens,
// kv_heads, value_dim], tokens stride apart; they may overlap, and of k the first shared_dim elements are not
// looked at. slots[t] < 0 skips the token; a slot past the
// cache is an error and nothing is written.
absl::Status WriteKv(const KvCache& cache, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                     const int64_t* slots, int64_t tokens, ThreadPool& pool);

// Reads one token's key and value of one KV head back as floats: for tests and debugging.
void ReadKv(const KvCache& cache, int64_t slot, int64_t kv_head, float* k, float* v);

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_FMHA_KV_CACHE_H_
