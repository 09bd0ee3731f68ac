#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_H_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tessera::cuda {

// Consecutive new tokens of one sequence, whose keys and values are in the cache already.
struct FmhaPrefillChunk {
  int32_t first_token;  // index of its first token in q and out
  int32_t num_tokens;   // at least 1
  int32_t length;       // keys of the sequence, the chunk's included; at least num_tokens
  int32_t table_row;    // row of the block table
};

// Causal attention of prompt chunks over their sequences' paged keys and values, for sm_90.
//
// A token's result depends on the token and the keys that it sees alone, bit for bit: not on how its prompt was cut into
// chunks or what else is in the launch; and it is that of FmhaDecode.
//
// All pointers are device pointers, all strides dense.
struct FmhaPrefillParams {
  const void* q = nullptr;  // bf16 [tokens, num_query_heads, head_dim]
  void* out = nullptr;      // like q; rows of tokens in no chunk are left as they are
  // bf16 [num_blocks, num_kv_heads, block_size, head_dim]. Slots at and past a sequence's length may hold anything, NaN
  // included.
  const void* k_cache = nullptr;
  const void* v_cache = nullptr;
  const int32_t* block_table = nullptr;  // [rows, block_table_stride] block indices
  // [num_chunks], any number. Long sequences first is fastest: the last work items are then short.
  const FmhaPrefillChunk* chunks = nullptr;
  // [num_query_heads] extra logits in the softmax's denominator, or null.
  const float* sinks = nullptr;

  int32_t num_chunks = 0;
  int32_t num_tokens = 0;  // of all chunks together, or more
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;    // 64, 128 or 256
  int32_t num_blocks = 0;  // of the cache
  int32_t block_size = 0;  // 16, 32, 64, 128 or 256
  int32_t block_table_stride = 0;
  int32_t sliding_window = 0;  // 0: all keys; else the last this many, a token's own included
  float softmax_scale = 0.0f;

  // FmhaPrefillWorkspaceBytes; zeroed once before its first use.
  void* workspace = nullptr;
};

// Whether the current device has the kernel for this head dimension.
bool HasFmhaPrefill(int32_t head_dim);

size_t FmhaPrefillWorkspaceBytes(int32_t head_dim);

// Checks the shapes and launches on `stream`. Returns a message that names the field at fault, or null. The launch can be
// captured in a graph; the contents of `chunks` may change between replays.
const char* FmhaPrefill(const FmhaPrefillParams& params, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_H_
