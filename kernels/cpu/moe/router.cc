#include "kernels/cpu/moe/router.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/checks.h"
#include "kernels/cpu/kernel_table.h"

namespace tessera::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kTokensPerChunk = 16;

// Indices of the count largest values in descending order, ties to the lowest index. -infinity itself may be
// chosen once nothing else is left.
void TopK(const float* values, int n, int count, int32_t* ids) {
  bool taken[kMaxRouterExperts] = {};
  for (int j = 0; j < count; ++j) {
    int best = -1;
    for (int i = 0; i < n; ++i) {
      if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
    }
    taken[best] = true;
    ids[j] = best;
  }
}

// Sets the values of experts outside the best groups to -infinity.
void KeepBestGroups(const RouterConfig& config, float* choice) {
  const int group_size = config.num_experts / config.num_groups;
  float group_score[kMaxRouterExperts];
  for (int g = 0; g < config.num_groups; ++g) {
    float first = kMinusInfinity;
    float second = kMinusInfinity;
    for (int i = g * group_size; i < (g + 1) * group_size; ++i) {
      if (choice[i] > first) {
        second = first;
        first = choice[i];
      } else if (choice[i] > second) {
        second = choice[i];
      }
    }
    group_score[g] = group_size == 1 ? first : first + second;
  }
  int32_t best[kMaxRouterExperts];
  TopK(group_score, config.num_groups, config.topk_groups, best);
  bool keep[kMaxRouterExperts] = {};
  for (int j = 0; j < config.topk_groups; ++j) keep[best[j]] = true;
  for (int i = 0; i < config.num_experts; ++i) {
    if (!keep[i / group_size]) choice[i] = kMinusInfinity;
  }
}

float MaxOf(const float* x, int n) {
  float max = x[0];
  for (int i = 1; i < n; ++i) max = std::max(max, x[i]);
  return max;
}

void Softmax(const KernelTable& table, const float* logits, int n, float* out) {
  const float sum = table.exp_sum(logits, MaxOf(logits, n), n, out);
  for (int i = 0; i < n; ++i) out[i] /= sum;
}

// 1 / (1 + exp(-x)).
void Sigmoid(const KernelTable& table, const float* logits, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = -logits[i];
  table.exp_sum(out, 0.0f, n, out);
  for (int i = 0; i < n; ++i) out[i] = 1.0f / (1.0f + out[i]);
}

void RouteToken(const KernelTable& table, const RouterConfig& config, const float* logits, int32_t* ids,
                float* weights) {
  const int n = config.num_experts;
  const int k = config.top_k;
  for (int i = 0; i < n; ++i) {
    if (logits[i] != logits[i]) {
      for (int j = 0; j < k; ++j) {
        ids[j] = j;
        weights[j] = std::numeric_limits<float>::quiet_NaN();
      }
      return;
    }
  }
  float scores[kMaxRouterExperts] = {};
  switch (config.score) {
    case RouterScore::kSoftmax:
      Softmax(table, logits, n, scores);
      break;
    case RouterScore::kSigmoid:
      Sigmoid(table, logits, n, scores);
      break;
    case RouterScore::kSoftmaxSelected:
      for (int i = 0; i < n; ++i) scores[i] = logits[i];
      break;
  }
  float choice[kMaxRouterExperts];
  for (int i = 0; i < n; ++i) {
    choice[i] = config.selection_bias == nullptr ? scores[i] : scores[i] + config.selection_bias[i];
  }
  if (config.num_groups > 1) KeepBestGroups(config, choice);
  TopK(choice, n, k, ids);
  for (int j = 0; j < k; ++j) weights[j] = scores[ids[j]];
  if (config.score == RouterScore::kSoftmaxSelected) {
    float selected[kMaxRouterExperts];
    for (int j = 0; j < k; ++j) selected[j] = weights[j];
    Softmax(table, selected, k, weights);
  }
  float sum = 0;
  for (int j = 0; j < k; ++j) sum += weights[j];
  for (int j = 0; j < k; ++j) {
    if (config.renormalize) weights[j] /= sum + std::numeric_limits<float>::min();
    weights[j] *= config.scale;
  }
}

}  // namespace

absl::Status Router(const RouterConfig& config, const float* logits, int64_t logits_stride, int64_t tokens,
                    int32_t* ids, float* weights, ThreadPool& pool) {
  TESSERA_KERNEL_CHECK(config.num_experts > 0 && config.num_experts <= kMaxRouterExperts,
                       "Router: ", config.num_experts, " experts, must be 1 to ", kMaxRouterExperts);
  TESSERA_KERNEL_CHECK(config.top_k > 0 && config.top_k <= config.num_experts, "Router: top-k ", config.top_k,
                       " of ", config.num_experts, " experts");
  TESSERA_KERNEL_CHECK(config.num_groups > 0 && config.num_experts % config.num_groups == 0 &&
                           config.topk_groups > 0 && config.topk_groups <= config.num_groups,
                       "Router: ", config.topk_groups, " of ", config.num_groups, " groups of ",
                       config.num_experts, " experts");
  TESSERA_KERNEL_CHECK(
      config.num_groups == 1 || config.num_experts / config.num_groups * config.topk_groups >= config.top_k,
      "Router: ", config.topk_groups, " groups hold fewer than ", config.top_k, " experts");
  TESSERA_KERNEL_RETURN_IF_ERROR(
      CheckMatrix("Router", "logits", logits, logits_stride, tokens, config.num_experts));
  TESSERA_KERNEL_CHECK(tokens == 0 || (ids != nullptr && weights != nullptr), "Router: null output");
  const KernelTable& table = Kernels();
  pool.ParallelFor((tokens + kTokensPerChunk - 1) / kTokensPerChunk, [&](int64_t chunk) {
    const int64_t end = std::min(tokens, (chunk + 1) * kTokensPerChunk);
    for (int64_t t = chunk * kTokensPerChunk; t < end; ++t) {
      RouteToken(table, config, logits + t * logits_stride, ids + t * config.top_k,
                 weights + t * config.top_k);
    }
  });
  return absl::OkStatus();
}

}  // namespace tessera::cpu
