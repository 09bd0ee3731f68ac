#ifndef TESSERA_KERNELS_CUDA_MOE_ROUTING_H_
#define TESSERA_KERNELS_CUDA_MOE_ROUTING_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::cuda {

inline constexpr int32_t kMostExperts = 1024;
inline constexpr int32_t kMostTopK = 32;
inline constexpr int32_t kMostExpertGroups = 32;

enum class RoutingScore {
  kSoftmax,          // over all experts
  kSigmoid,          // of each logit
  kSoftmaxSelected,  // the logits themselves; over the chosen experts afterwards
};

struct RouteParams {
  const float* logits = nullptr;  // [tokens, num_experts]
  int32_t tokens = 0;
  int32_t num_experts = 0;  // at most kMostExperts
  int32_t top_k = 0;        // at most kMostTopK
  RoutingScore score = RoutingScore::kSoftmax;
  const float* selection_bias = nullptr;  // [num_experts] added to the scores for the choice alone, or null
  // The choice is limited to the topk_groups groups of neighbouring experts whose two best scores have the largest sums;
  // one group: no limit. They hold at least top_k experts.
  int32_t num_groups = 1;  // at most kMostExpertGroups; divides num_experts
  int32_t topk_groups = 1;
  bool renormalize = false;    // divide the chosen scores by their sum
  float scale = 1.0f;          // multiplies them at last
  int32_t* experts = nullptr;  // out [tokens, top_k], best first, ties to the lower index
  float* weights = nullptr;    // out [tokens, top_k]
};

// Chooses the experts of each token. A row whose scores hold NaN gets experts 0.. and NaN weights.
const char* RouteTokens(const RouteParams& params, cudaStream_t stream);

// The (token, choice) pairs in the order of their experts, stable, cut into tiles for GroupedGemm.
struct SortedSlots {
  int32_t* slot_token = nullptr;    // [tokens * top_k]: which token a slot computes
  int32_t* token_slot = nullptr;    // [tokens, top_k]: where a pair went
  int32_t* tile_expert = nullptr;   // [max_tiles]
  int2* tile_slot_range = nullptr;  // [max_tiles]
  int32_t* num_tiles = nullptr;     // [1]
};

// Most tiles there can be: the launch bound of GroupedGemm.
int32_t MostTiles(int32_t tokens, int32_t top_k, int32_t num_experts, int32_t tile_slots);

// Counting sort by expert, in one CTA.
const char* SortByExpert(const int32_t* experts, int32_t tokens, int32_t top_k, int32_t num_experts,
                         int32_t tile_slots, const SortedSlots& out, cudaStream_t stream);

// RouteTokens, then SortByExpert: in one CTA where the tokens are few. The same bits either way.
const char* RouteAndSort(const RouteParams& params, int32_t tile_slots, const SortedSlots& out,
                         cudaStream_t stream);

// residual[t] += sum over k of weights[t, k] * rows[token_slot[t, k]], in the order of k. rows float [slots, dim].
const char* CombineExperts(const float* rows, const int32_t* token_slot, const float* weights, int32_t tokens,
                           int32_t top_k, int32_t dim, float* residual, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_MOE_ROUTING_H_
