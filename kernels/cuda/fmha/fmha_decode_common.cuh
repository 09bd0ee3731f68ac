// What the FMHA decode kernels of all architectures share: the arguments of a launch.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_COMMON_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_COMMON_CUH_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode.h"

namespace tessera::cuda {

inline constexpr int32_t kFmhaMaxSequences = 512;

struct FmhaDecodeArgs {
  FmhaDecodeParams p;
  // Query rows of one KV head: q_len * query heads / KV heads. Where they are too many for one item, the launch divides
  // them: p.num_kv_heads is then a multiple of the cache's, and kv_head_repeat says how many share one head's keys.
  int32_t group_rows;
  int32_t kv_head_repeat;
  float scale_log2;  // softmax scale times log2(e)
  // Workspace. The counters are zero between launches.
  int32_t* next_item;  // items taken beyond each CTA's first
  int32_t* done_ctas;
  int32_t* finished_ctas;  // see CombineAll
  int32_t* arrivals;       // [num_sequences * kv_heads]
  float2* split_stats;     // [split][kv_head][row]: maximum (log2 domain), sum
  float* split_out;        // [split][kv_head][row][value dim]: not normalised
};

// Index in q and out of a sequence's first query token.
__device__ __forceinline__ int64_t FirstToken(const FmhaDecodeArgs& args, int32_t sequence) {
  return args.p.first_tokens ? args.p.first_tokens[sequence] : int64_t{sequence} * args.p.q_len;
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_COMMON_CUH_
