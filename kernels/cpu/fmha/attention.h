// Fused attention over a paged KV cache: decode and chunked prefill in one entry.
//
// A batch is a list of sequences, each with a number of query tokens that are the last of its kv_len tokens
// (one for decode, a chunk for prefill, mixed as you like); their keys and values must be in the cache
// already. Causal: the query at position p sees positions max(0, p - window + 1) .. p.
//
// Numerics: queries are rounded to BF16; scores, softmax (own exp, base e, online over tiles of
// kAttentionTile keys) and sums are float, probabilities stay float. Keys are divided in splits of
// kAttentionSplit positions of the sequence; each split's partial result (maximum, sum, weighted values) is
// merged in ascending order, always by the same formula. Tile and split boundaries depend on nothing but the
// position in the sequence, so a query's result is the same bits whether it was computed in a decode step, in
// any prefill chunk, in any batch, with any number of threads. Slots past a sequence's end, and positions
// that no query may see, have no influence on any result whatever they hold.
#ifndef TESSERA_KERNELS_CPU_FMHA_ATTENTION_H_
#define TESSERA_KERNELS_CPU_FMHA_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/fmha/kv_cache.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/workspace.h"
#include "kernels/nvfp4/bf16.h"

namespace tessera::cpu {

inline constexpr int64_t kAttentionTile = 64;
inline constexpr int64_t kAttentionSplit = 512;

struct AttentionArgs {
  KvCache cache;
  int64_t q_heads = 0;       // a multiple of cache.kv_heads
  const float* q = nullptr;  // [tokens, q_heads, head_dim], tokens q_stride apart
  int64_t q_stride = 0;
  int64_t num_sequences = 0;
  const int32_t* q_start = nullptr;  // [num_sequences + 1]: sequence s has tokens q_start[s]..q_start[s+1]-1
  const int32_t* kv_len = nullptr;   // [num_sequences], the query tokens included
  const int32_t* block_table = nullptr;  // [num_sequences, >= ceil(kv_len / block_size)]
  int64_t block_table_stride = 0;
  float softmax_scale = 0;
  int64_t window = 0;            // 0: none
  const float* sinks = nullptr;  // [q_heads] logits that join the softmax's sum and carry no value; or null
  Bf16* out = nullptr;           // [tokens, q_heads, value_dim], tokens out_stride apart; or null
  int64_t out_stride = 0;
  float* out_float = nullptr;  // the same before rounding; one of the two must be given
  int64_t out_float_stride = 0;
};

// For a batch of at most `tokens` query tokens in at most `num_sequences` sequences of at most max_kv_len.
size_t AttentionWorkspaceBytes(int64_t tokens, int64_t num_sequences, int64_t max_kv_len, int64_t q_heads,
                               int64_t value_dim, int num_threads);

// Fails with INVALID_ARGUMENT, before writing, on shapes, block ids, pointers or a workspace that do not fit.
absl::Status Attention(const AttentionArgs& args, Workspace workspace, ThreadPool& pool);

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_FMHA_ATTENTION_H_
