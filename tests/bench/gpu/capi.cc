// C entry points of the CUDA kernels for the Python benchmarks, which time them beside torch's in one process.
#include <cstring>

#include "kernels/cuda/fmha/fmha_decode.h"

extern "C" {

size_t tessera_fmha_decode_workspace(int32_t sequences, int32_t q_len, int32_t query_heads, int32_t kv_heads,
                                     int32_t head_dim) {
  return tessera::cuda::FmhaDecodeWorkspaceBytes(sequences, q_len, query_heads, kv_heads, head_dim);
}

const char* tessera_fmha_decode(const void* q, void* out, const void* k, const void* v, const int32_t* table,
                                const int32_t* lengths, int32_t sequences, int32_t q_len, int32_t query_heads,
                                int32_t kv_heads, int32_t head_dim, int32_t num_blocks, int32_t block_size,
                                int32_t stride, int32_t window, float scale, void* workspace, cudaStream_t stream) {
  tessera::cuda::FmhaDecodeParams p;
  p.q = q;
  p.out = out;
  p.k_cache = k;
  p.v_cache = v;
  p.block_table = table;
  p.lengths = lengths;
  p.num_sequences = sequences;
  p.q_len = q_len;
  p.num_query_heads = query_heads;
  p.num_kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.num_blocks = num_blocks;
  p.block_size = block_size;
  p.block_table_stride = stride;
  p.sliding_window = window;
  p.softmax_scale = scale;
  p.workspace = workspace;
  return tessera::cuda::FmhaDecode(p, stream);
}
}
