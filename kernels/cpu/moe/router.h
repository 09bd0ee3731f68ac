// Choosing experts: router logits in, top-k expert ids and weights out.
//
// Everything is float. Ties go to the lowest expert index. A row that holds a NaN gives ids 0..k-1 with NaN
// weights, so that the fault shows in that row's output and nowhere else.
#ifndef TESSERA_KERNELS_CPU_MOE_ROUTER_H_
#define TESSERA_KERNELS_CPU_MOE_ROUTER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera::cpu {

enum class RouterScore : uint8_t {
  kSoftmax,          // softmax over all experts, then top-k (Qwen3-MoE, Mixtral)
  kSigmoid,          // sigmoid of each logit, then top-k (DeepSeek-V3, GLM-4.5)
  kSoftmaxSelected,  // top-k of the logits, then softmax over the k kept (gpt-oss)
};

struct RouterConfig {
  int num_experts = 0;
  int top_k = 0;
  RouterScore score = RouterScore::kSoftmax;
  // Added to scores for the choice only, not to the weights (e_score_correction_bias); [num_experts] or null.
  const float* selection_bias = nullptr;
  // Limits the choice to the topk_groups groups of neighbouring experts with the largest sum of their two
  // best scores. 1 means no grouping.
  int num_groups = 1;
  int topk_groups = 1;
  bool renormalize = false;  // divide the k weights by their sum
  float scale = 1.0f;        // multiplies the weights at last (routed_scaling_factor)
};

inline constexpr int kMaxRouterExperts = 1024;

// logits: [tokens, num_experts], rows logits_stride apart. ids, weights: [tokens, top_k] without gaps, in
// descending order of the choice. Fails with INVALID_ARGUMENT on shapes that do not fit.
absl::Status Router(const RouterConfig& config, const float* logits, int64_t logits_stride, int64_t tokens,
                    int32_t* ids, float* weights, ThreadPool& pool);

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_MOE_ROUTER_H_
