#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_H_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tessera::cuda {

// How keys and values are stored.
enum class FmhaKvFormat : int32_t {
  kBf16,
  kE4m3,  // one byte each, times k_scale or v_scale
};

// Attention of a few new tokens a sequence over its paged keys and values ("flash decoding").
//
// The result of a sequence depends on that sequence alone, bit for bit: its sums have one order (fmha_numerics.cuh), and
// none is atomic.
//
// All pointers are device pointers, all strides dense.
struct FmhaDecodeParams {
  // bf16 [num_sequences, q_len, num_query_heads, head_dim]: the last q_len tokens of each sequence. Query
  // token t sees the keys 0 .. length - q_len + t.
  const void* q = nullptr;
  void* out = nullptr;  // bf16, like q, with the values' dimension
  // kv_format [num_blocks, num_kv_heads, block_size, head_dim]. Slots at and past a sequence's length may hold
  // anything, NaN included.
  const void* k_cache = nullptr;
  const void* v_cache = nullptr;
  const int32_t* block_table = nullptr;  // [num_sequences, block_table_stride] block indices
  // Sparse attention: [num_sequences, key_slots_stride] the keys that a sequence's one token sees, each a slot of the
  // cache (block index * block_size + offset), -1 for none. `lengths` then counts entries (from 1), block_table may be
  // null, q_len must be 1 and sliding_window 0. Or null.
  const int32_t* key_slots = nullptr;
  // [num_sequences] which row of the block table (or of key_slots) a sequence uses, or null: its own index. Lets the tokens of a prompt
  // chunk be "sequences" that share a row.
  const int32_t* table_rows = nullptr;
  // [num_sequences] index in q and out of each sequence's first query token, or null: sequence * q_len. Lets runs of
  // prompt tokens and single tokens be attended to in two calls over the same q.
  const int32_t* first_tokens = nullptr;
  // [num_sequences] keys of each sequence, the new tokens' included; at least q_len.
  const int32_t* lengths = nullptr;
  // [num_query_heads] extra logits in the softmax's denominator, or null.
  const float* sinks = nullptr;

  int32_t num_sequences = 0;  // 1 to 512
  int32_t q_len = 1;          // at most 32; 16 for 256 value dimensions
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // 64, 128, 256 or 512, or 576 for MLA
  // 0: head_dim. MLA: 512 with head_dim 576 and v_cache null; the values are the first 512 elements of the keys.
  int32_t v_head_dim = 0;
  int32_t num_blocks = 0;  // of the cache
  int32_t block_size = 0;  // 16, 32, 64, 128 or 256
  int32_t block_table_stride = 0;
  int32_t key_slots_stride = 0;
  int32_t sliding_window = 0;  // 0: all keys; else the last this many, a token's own included
  float softmax_scale = 0.0f;
  FmhaKvFormat kv_format = FmhaKvFormat::kBf16;
  float k_scale = 1.0f, v_scale = 1.0f;  // of kE4m3 alone

  // FmhaDecodeWorkspaceBytes; zeroed once before its first use, left zeroed where needed.
  void* workspace = nullptr;
};

// Bytes of workspace for calls of at most this size; `v_head_dim` is the dimension of the values.
size_t FmhaDecodeWorkspaceBytes(int32_t num_sequences, int32_t q_len, int32_t num_query_heads,
                                int32_t num_kv_heads, int32_t v_head_dim);

// Checks the shapes and launches on `stream` the kernel of the current device, sm_90 or sm_100. Two such kernels must not run
// at the same time (on two streams): the CTAs of one wait for one another, and must all find room. Returns a message that names
// the field at fault, or null. The launch can be captured in a graph; `lengths` may change between replays.
const char* FmhaDecode(const FmhaDecodeParams& params, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_H_
