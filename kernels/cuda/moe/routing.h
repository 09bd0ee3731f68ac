#ifndef TESSERA_KERNELS_CUDA_MOE_ROUTING_H_
#define TESSERA_KERNELS_CUDA_MOE_ROUTING_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::cuda {

enum class RoutingScore {
  kSoftmax,  // softmax over all experts, then the best
  kSigmoid,  // sigmoid of each logit, then the best
};

struct RouteParams {
  const float* logits = nullptr;  // [tokens, num_experts]
  int32_t tokens = 0;
  int32_t num_experts = 0;  // at most 1024
  int32_t top_k = 0;        // at most 32
  RoutingScore score = RoutingScore::kSoftmax;
  bool renormalize = false;  // divide the chosen scores by their sum
  float scale = 1.0f;        // multiplies them at last
  int32_t* experts = nullptr;  // out [tokens, top_k], best first, ties to the lower index
  float* weights = nullptr;    // out [tokens, top_k]
};

// Chooses the experts of each token. A row with NaN gets experts 0.. and NaN weights.
const char* RouteTokens(const RouteParams& params, cudaStream_t stream);

// The (token, choice) pairs in the order of their experts, stable, cut into tiles for GroupedGemm.
struct SortedSlots {
  int32_t* slot_token = nullptr;  // [tokens * top_k]: which token a slot computes
  int32_t* token_slot = nullptr;  // [tokens, top_k]: where a pair went
  int32_t* tile_expert = nullptr;      // [max_tiles]
  int2* tile_slot_range = nullptr;     // [max_tiles]
  int32_t* num_tiles = nullptr;        // [1]
};

// Most tiles there can be: the launch bound of GroupedGemm.
int32_t MostTiles(int32_t tokens, int32_t top_k, int32_t num_experts, int32_t tile_slots);

// Counting sort by expert, in one CTA.
const char* SortByExpert(const int32_t* experts, int32_t tokens, int32_t top_k, int32_t num_experts,
                         int32_t tile_slots, const SortedSlots& out, cudaStream_t stream);

// residual[t] += sum over k of weights[t, k] * rows[token_slot[t, k]], in the order of k. rows float [slots, dim].
const char* CombineExperts(const float* rows, const int32_t* token_slot, const float* weights, int32_t tokens,
                           int32_t top_k, int32_t dim, float* residual, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_MOE_ROUTING_H_
