#ifndef TESSERA_SERVER_SAMPLING_LOGITS_H_
#define TESSERA_SERVER_SAMPLING_LOGITS_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/sampling/logprobs.h"

// Passes over one row of logits. Wherever tokens are ordered, the higher logit comes first and the lower index wins a
// tie, so every result is exact and the same everywhere. Vocabularies have 150 thousand entries: each function is one
// pass of loops that compilers vectorise without relaxed floating-point rules (ordering is done on integers).
namespace tessera {

// Marks an error as caused by logits that are no distribution (NaN, +infinity, or nothing finite).
absl::Status InvalidLogitsError(absl::string_view message);
bool IsInvalidLogits(const absl::Status& status);

// Orders as the floats do, -0 equal to +0. Not for NaN.
inline int32_t OrderKey(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t magnitude = bits & 0x7fffffff;
  const int32_t sign = bits >> 31;
  return (magnitude ^ sign) - sign;
}

// e^x for x <= 0, -infinity included: relative error below 3e-7, and 0 below x = -87. The same bits on every machine,
// which a C library does not promise. Coefficients: Cephes expf.
inline float ExpOfNonPositive(float x) {
  constexpr float kUnderflow = -87.0f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  const bool underflow = x < kUnderflow;
  x = underflow ? kUnderflow : x;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float mantissa = (p * r) * r + r + 1.0f;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound) + 127u;
  const float result = mantissa * std::bit_cast<float>(exponent << 23);
  return underflow ? 0.0f : result;
}

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

// Log-probabilities of the token at `index` and of the `num_top` best. Token fields hold indices. `largest` as
// FindLargest gives it.
PositionLogprobs ComputeLogprobs(absl::Span<const float> logits, float largest, int32_t index, int num_top);

}  // namespace tessera

#endif  // TESSERA_SERVER_SAMPLING_LOGITS_H_
