#ifndef TESSERA_SERVER_SAMPLING_LOGITS_H_
#define TESSERA_SERVER_SAMPLING_LOGITS_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/logit_math.h"
#include "server/sampling/logprobs.h"

// Passes over one row of logits. Wherever tokens are ordered, the higher logit comes first and the lower index wins a
// tie, so every result is exact and the same everywhere. Vocabularies have 150 thousand entries: each function is one
// pass of loops that compilers vectorise without relaxed floating-point rules (ordering is done on integers).
namespace tessera {

// Marks an error as caused by logits that are no distribution (NaN, +infinity, or nothing finite).
absl::Status InvalidLogitsError(absl::string_view message);
bool IsInvalidLogits(const absl::Status& status);

// OK if a row whose largest logit has this OrderKey, kNanOrderKey if any is NaN, is a distribution.
absl::Status CheckLargestKey(int32_t key);

// Index and value of the largest logit. An invalid-logits error if any is NaN or +infinity, or none is finite.
struct LargestLogit {
  int32_t index = 0;
  float value = 0.0f;
};
absl::StatusOr<LargestLogit> FindLargest(absl::Span<const float> logits);

// Sum over e^((x - largest) / temperature), in a fixed order.
double SumOfExponentials(absl::Span<const float> logits, float largest, float temperature);

// The last token that is kept when tokens are walked best first.
struct Cutoff {
  int32_t key = std::numeric_limits<int32_t>::min();  // its OrderKey
  int32_t index = std::numeric_limits<int32_t>::max();
};

// The smallest set of best tokens whose weights e^((x - largest) / temperature) sum to `top_p` times the total or more.
// Cost: a few passes, however large the set is.
Cutoff FindTopPCutoff(absl::Span<const float> logits, float largest, float temperature, float top_p);

// Draws an index with probability proportional to its weight, weights below `min_weight` and tokens behind `cutoff` left
// out: the first index at which the running sum exceeds `uniform` times the total.
int32_t DrawFromAll(absl::Span<const float> logits, float largest, float temperature, float min_weight,
                    Cutoff cutoff, double uniform);

// The `k` best indices, best first; all if there are fewer.
void SelectTop(absl::Span<const float> logits, int32_t k, std::vector<int32_t>* indices);

// 1 + the number of tokens that come before this one.
int32_t RankOf(absl::Span<const float> logits, int32_t index);

// Log-probability of a logit; `log_sum` is the logarithm of SumOfExponentials at temperature 1.
inline float LogprobOf(float logit, float largest, double log_sum) {
  return static_cast<float>(static_cast<double>(logit) - static_cast<double>(largest) - log_sum);
}

// Log-probabilities of the token at `index` and of the `num_top` best. Token fields hold indices. `largest` as
// FindLargest gives it.
PositionLogprobs ComputeLogprobs(absl::Span<const float> logits, float largest, int32_t index, int num_top);

}  // namespace tessera

#endif  // TESSERA_SERVER_SAMPLING_LOGITS_H_
