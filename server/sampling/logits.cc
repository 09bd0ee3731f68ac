#include "server/sampling/logits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/cord.h"

namespace tessera {
namespace {

constexpr char kInvalidLogitsPayload[] = "tessera/invalid-logits";
constexpr int kBlock = kLogitBlock;  // entries whose exponentials are kept on the stack
constexpr int kLanes = kLogitLanes;  // partial sums, so that additions do not wait for each other

// Sum in a fixed order.
double SumOf(const float* weights, int count) {
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

// Weights of the block that starts at `begin`; returns their number.
int BlockWeights(absl::Span<const float> logits, size_t begin, float largest, float temperature,
                 float* weights) {
  const absl::Span<const float> block = logits.subspan(begin, kBlock);
  const int count = static_cast<int>(block.size());
  for (int i = 0; i < count; ++i) weights[i] = LogitWeight(block[i], largest, temperature);
  return count;
}

// The same with what is not kept at zero.
int KeptBlockWeights(absl::Span<const float> logits, size_t begin, float largest, float temperature,
                     float min_weight, Cutoff cutoff, float* weights) {
  const int count = BlockWeights(logits, begin, largest, temperature, weights);
  const int32_t first = static_cast<int32_t>(begin);
  for (int i = 0; i < count; ++i) {
    const int32_t key = OrderKey(logits[begin + i]);
    const bool kept = (key > cutoff.key) | ((key == cutoff.key) & (first + i <= cutoff.index));
    weights[i] = kept & (weights[i] >= min_weight) ? weights[i] : 0.0f;
  }
  return count;
}

}  // namespace

absl::Status InvalidLogitsError(absl::string_view message) {
  absl::Status status = absl::InternalError(message);
  status.SetPayload(kInvalidLogitsPayload, absl::Cord("1"));
  return status;
}

bool IsInvalidLogits(const absl::Status& status) {
  return status.GetPayload(kInvalidLogitsPayload).has_value();
}

absl::Status CheckLargestKey(int32_t key) {
  if (key > kInfinityOrderKey) return InvalidLogitsError("the model's logits hold NaN");
  if (key == kInfinityOrderKey) return InvalidLogitsError("the model's logits hold +infinity");
  if (key <= -kInfinityOrderKey) return InvalidLogitsError("no token has a finite logit");
  return absl::OkStatus();
}

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
    if (magnitude > kInfinityOrderKey) return CheckLargestKey(kNanOrderKey);
    if (key > best_key) {
      best_key = key;
      best_block = begin;
    }
  }
  if (absl::Status status = CheckLargestKey(best_key); !status.ok()) return status;
  size_t index = best_block;
  while (OrderKey(logits[index]) != best_key) ++index;
  return LargestLogit{static_cast<int32_t>(index), logits[index]};
}

double SumOfExponentials(absl::Span<const float> logits, float largest, float temperature) {
  float weights[kBlock];
  double sum = 0.0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    sum += SumOf(weights, BlockWeights(logits, begin, largest, temperature, weights));
  }
  return sum;
}

// Sorting 150 thousand tokens takes longer than a step of a small model. So: sum the weights in bins of equal width in
// the logit, find the bin in which the running sum reaches the target, and sort that bin alone.
Cutoff FindTopPCutoff(absl::Span<const float> logits, float largest, float temperature, float top_p) {
  constexpr int kBins = 2048;
  constexpr float kRange = 88.0f;  // weights are zero beyond
  const auto bin_of = [&](float logit) {
    const float distance = (largest - logit) / temperature * (kBins / kRange);
    return distance < kBins - 1 ? static_cast<int>(distance) : kBins - 1;
  };
  double bins[kBins] = {};
  float weights[kBlock];
  double total = 0.0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const int count = BlockWeights(logits, begin, largest, temperature, weights);
    for (int i = 0; i < count; ++i) bins[bin_of(logits[begin + i])] += weights[i];
  }
  for (double bin : bins) total += bin;
  const double target = top_p * total;
  double sum = 0.0;
  int edge = 0;
  while (edge < kBins - 1 && sum + bins[edge] < target) sum += bins[edge++];

  thread_local std::vector<int32_t> at_edge;
  at_edge.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (bin_of(logits[i]) == edge) at_edge.push_back(static_cast<int32_t>(i));
  }
  std::sort(at_edge.begin(), at_edge.end(), [&](int32_t a, int32_t b) {
    const int32_t key_a = OrderKey(logits[a]), key_b = OrderKey(logits[b]);
    return key_a != key_b ? key_a > key_b : a < b;
  });
  Cutoff cutoff;
  for (int32_t index : at_edge) {
    cutoff = {OrderKey(logits[index]), index};
    sum += LogitWeight(logits[index], largest, temperature);
    if (sum >= target) break;
  }
  return cutoff;
}

int32_t DrawFromAll(absl::Span<const float> logits, float largest, float temperature, float min_weight,
                    Cutoff cutoff, double uniform) {
  thread_local std::vector<double> block_sums;
  float weights[kBlock];
  block_sums.clear();
  double total = 0.0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const int count = KeptBlockWeights(logits, begin, largest, temperature, min_weight, cutoff, weights);
    block_sums.push_back(SumOf(weights, count));
    total += block_sums.back();
  }
  const double target = uniform * total;
  double sum = 0.0;
  size_t block = 0;
  while (block + 1 < block_sums.size() && sum + block_sums[block] <= target) sum += block_sums[block++];
  // Rounding can put the target behind the last token that has any weight: step back to it.
  while (block > 0 && block_sums[block] == 0.0) sum -= block_sums[--block];
  const size_t begin = block * kBlock;
  const int count = KeptBlockWeights(logits, begin, largest, temperature, min_weight, cutoff, weights);
  int last = 0;
  for (int i = 0; i < count; ++i) {
    if (weights[i] == 0.0f) continue;
    last = i;
    sum += weights[i];
    if (sum > target) break;
  }
  return static_cast<int32_t>(begin) + last;
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
  const auto logprob = [&](int32_t i) { return LogprobOf(logits[i], largest, log_sum); };
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
