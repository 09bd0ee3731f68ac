#include "server/sampling/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/cord.h"

namespace tessera {
namespace {

constexpr char kInvalidLogitsPayload[] = "tessera/invalid-logits";
constexpr int32_t kInfinityBits = 0x7f800000;
constexpr int kBlock = 1024;  // entries whose exponentials are kept on the stack
constexpr int kLanes = 8;     // partial sums, so that additions do not wait for each other

// Weights of one block; returns their sum.
double BlockWeights(absl::Span<const float> logits, float largest, float temperature, float min_weight,
                    float* weights) {
  const int count = static_cast<int>(logits.size());
  for (int i = 0; i < count; ++i) {
    const float weight = ExpOfNonPositive((logits[i] - largest) / temperature);
    weights[i] = weight < min_weight ? 0.0f : weight;
  }
  double lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += weights[i + lane];
  }
  for (; i < count; ++i) lanes[i % kLanes] += weights[i];
  double sum = 0.0;
  for (double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

absl::Status InvalidLogitsError(absl::string_view message) {
  absl::Status status = absl::InternalError(message);
  status.SetPayload(kInvalidLogitsPayload, absl::Cord("1"));
  return status;
}

bool IsInvalidLogits(const absl::Status& status) { return status.GetPayload(kInvalidLogitsPayload).has_value(); }

absl::StatusOr<LargestLogit> FindLargest(absl::Span<const float> logits) {
  int32_t best_key = std::numeric_limits<int32_t>::min();
  size_t best_block = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t end = std::min(logits.size(), begin + kBlock);
    int32_t key = std::numeric_limits<int32_t>::min();
    int32_t magnitude = 0;
    for (size_t i = begin; i < end; ++i) {
      const int32_t bits = std::bit_cast<int32_t>(logits[i]);
      magnitude = std::max(magnitude, bits & 0x7fffffff);
      key = std::max(key, OrderKey(logits[i]));
    }
    if (magnitude > kInfinityBits) return InvalidLogitsError("the model's logits hold NaN");
    if (key > best_key) {
      best_key = key;
      best_block = begin;
    }
  }
  if (best_key == kInfinityBits) return InvalidLogitsError("the model's logits hold +infinity");
  if (best_key <= -kInfinityBits) return InvalidLogitsError("no token has a finite logit");
  size_t index = best_block;
  while (OrderKey(logits[index]) != best_key) ++index;
  return LargestLogit{static_cast<int32_t>(index), logits[index]};
}

double SumOfExponentials(absl::Span<const float> logits, float largest, float temperature) {
  float weights[kBlock];
  double sum = 0.0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    sum += BlockWeights(logits.subspan(begin, kBlock), largest, temperature, 0.0f, weights);
  }
  return sum;
}

int32_t DrawFromAll(absl::Span<const float> logits, float largest, float temperature, float min_weight,
                    double uniform) {
  thread_local std::vector<double> block_sums;
  float weights[kBlock];
  block_sums.clear();
  double total = 0.0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    block_sums.push_back(BlockWeights(logits.subspan(begin, kBlock), largest, temperature, min_weight, weights));
    total += block_sums.back();
  }
  const double target = uniform * total;
  double before = 0.0;
  size_t block = 0;
  while (block + 1 < block_sums.size() && before + block_sums[block] <= target) before += block_sums[block++];
  // Rounding can put the target behind the last token that has any weight: step back to it.
  while (block > 0 && block_sums[block] == 0.0) before -= block_sums[--block];
  const absl::Span<const float> chosen = logits.subspan(block * kBlock, kBlock);
  BlockWeights(chosen, largest, temperature, min_weight, weights);
  int32_t last = 0;
  double sum = before;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (weights[i] == 0.0f) continue;
    last = static_cast<int32_t>(i);
    sum += weights[i];
    if (sum > target) break;
  }
  return static_cast<int32_t>(block * kBlock) + last;
}

void SelectTop(absl::Span<const float> logits, int32_t k, std::vector<int32_t>* indices) {
  const int32_t size = static_cast<int32_t>(logits.size());
  const auto before = [&](int32_t a, int32_t b) {
    const int32_t key_a = OrderKey(logits[a]), key_b = OrderKey(logits[b]);
    return key_a != key_b ? key_a > key_b : a < b;
  };
  indices->clear();
  k = std::min(k, size);
  if (k <= 0) return;
  if (k > size / 4) {
    indices->resize(size);
    std::iota(indices->begin(), indices->end(), 0);
    if (k < size) std::nth_element(indices->begin(), indices->begin() + k, indices->end(), before);
  } else {
    // Gather what beats the k-th best so far. Indices rise, so what merely equals it comes behind it: the comparison
    // is strict and ties are exact.
    constexpr int32_t kStride = 16;
    const size_t capacity = std::max<size_t>(2 * static_cast<size_t>(k), 64);
    int32_t threshold = std::numeric_limits<int32_t>::min();
    for (int32_t begin = 0; begin < size; begin += kStride) {
      const int32_t end = std::min(size, begin + kStride);
      int32_t key = std::numeric_limits<int32_t>::min();
      for (int32_t i = begin; i < end; ++i) key = std::max(key, OrderKey(logits[i]));
      if (key <= threshold) continue;
      for (int32_t i = begin; i < end; ++i) {
        if (OrderKey(logits[i]) > threshold) indices->push_back(i);
      }
      if (indices->size() >= capacity) {
        std::nth_element(indices->begin(), indices->begin() + (k - 1), indices->end(), before);
        indices->resize(k);
        threshold = OrderKey(logits[indices->back()]);
      }
    }
    if (indices->size() > static_cast<size_t>(k)) {
      std::nth_element(indices->begin(), indices->begin() + k, indices->end(), before);
    }
  }
  indices->resize(k);
  std::sort(indices->begin(), indices->end(), before);
}

int32_t RankOf(absl::Span<const float> logits, int32_t index) {
  const int32_t key = OrderKey(logits[index]);
  int32_t before = 0;
  for (int32_t i = 0; i < index; ++i) before += OrderKey(logits[i]) >= key;
  for (size_t i = index + 1; i < logits.size(); ++i) before += OrderKey(logits[i]) > key;
  return before + 1;
}

PositionLogprobs ComputeLogprobs(absl::Span<const float> logits, float largest, int32_t index, int num_top) {
  const double log_sum = std::log(SumOfExponentials(logits, largest, 1.0f));
  const auto logprob = [&](int32_t i) {
    return static_cast<float>(static_cast<double>(logits[i]) - static_cast<double>(largest) - log_sum);
  };
  PositionLogprobs result;
  result.token = {index, logprob(index), RankOf(logits, index)};
  if (num_top > 0) {
    thread_local std::vector<int32_t> best;
    SelectTop(logits, num_top, &best);
    result.top.reserve(best.size());
    int32_t rank = 0;
    for (int32_t i : best) result.top.push_back({i, logprob(i), ++rank});
  }
  return result;
}

}  // namespace tessera
