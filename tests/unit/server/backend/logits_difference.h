#ifndef TESSERA_TESTS_UNIT_SERVER_BACKEND_LOGITS_DIFFERENCE_H_
#define TESSERA_TESTS_UNIT_SERVER_BACKEND_LOGITS_DIFFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera {

struct Difference {
  double max = 0;
  double median = 0;
  double rms = 0;
};

// Of the first `count` values; NaN counts as infinite.
inline Difference Compare(const std::vector<float>& actual, const std::vector<float>& expected,
                          size_t count) {
  Difference difference;
  std::vector<double> errors(count);
  for (size_t i = 0; i < count; ++i) {
    errors[i] = std::abs(static_cast<double>(actual[i]) - expected[i]);
    if (std::isnan(errors[i])) errors[i] = INFINITY;
    difference.max = std::max(difference.max, errors[i]);
    difference.rms += errors[i] * errors[i];
  }
  std::nth_element(errors.begin(), errors.begin() + count / 2, errors.end());
  difference.median = errors[count / 2];
  difference.rms = std::sqrt(difference.rms / count);
  return difference;
}

inline double LargestMagnitude(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

// What is left between the two computations is float32 accumulation. Where it pushes a value across a BF16 rounding
// boundary (about one value in ten thousand), one input of a matrix product moves by a BF16 step, 2^-8 of it, and what
// sees it by a little less. So at the first positions, before such a key or value can stand in the cache of all, most
// logits agree to a few float32 roundings (the median, at most 16 * 2^-24 of the largest logit), and all of them, at all
// positions, to a few BF16 steps. A rounding point more or less on either side, or another rounding mode, moves the
// median to 2^-10 of the largest logit: a thousand times the bound.
inline constexpr int kEarly = 24;
inline constexpr double kEarlyMedian = 0x1p-20;
inline constexpr double kRms = 0x1p-10;
inline constexpr double kMax = 0x1p-6;

// What of the above does not hold of logits [positions, vocab]; empty if all does.
inline std::string GoldenMismatch(const std::vector<float>& actual, const std::vector<float>& expected,
                                  int32_t vocab) {
  if (actual.size() != expected.size()) {
    return absl::StrCat(actual.size(), " logits, expected ", expected.size());
  }
  const double largest = LargestMagnitude(expected);
  const double early = Compare(actual, expected, kEarly * vocab).median;
  const Difference all = Compare(actual, expected, actual.size());
  if (early < kEarlyMedian * largest && all.rms < kRms * largest && all.max < kMax * largest) return "";
  return absl::StrCat("of the largest logit: median at the first positions ", early / largest,
                      ", root mean square ", all.rms / largest, ", largest ", all.max / largest);
}

// A GPU also rounds attention's weights to BF16 and sums in float32 in another order: a rounding point more, which moves
// every value by about 2^-10 of the largest logit, and now and then an expert of a token whose router was undecided.
inline constexpr double kCudaMedian = 0x1p-9;
inline constexpr double kCudaRms = 0x1p-6;

// The same for log-probabilities that the CUDA backend computed. `largest` is the largest logit's magnitude.
inline std::string CudaGoldenMismatch(const std::vector<float>& actual, const std::vector<float>& expected,
                                      double largest) {
  if (actual.size() != expected.size()) {
    return absl::StrCat(actual.size(), " values, expected ", expected.size());
  }
  const Difference all = Compare(actual, expected, actual.size());
  if (all.median < kCudaMedian * largest && all.rms < kCudaRms * largest) return "";
  return absl::StrCat("of the largest logit: median ", all.median / largest, ", root mean square ",
                      all.rms / largest, ", largest ", all.max / largest);
}

}  // namespace tessera

#endif  // TESSERA_TESTS_UNIT_SERVER_BACKEND_LOGITS_DIFFERENCE_H_
