#ifndef TESSERA_TESTS_UNIT_SERVER_BACKEND_LOGITS_DIFFERENCE_H_
#define TESSERA_TESTS_UNIT_SERVER_BACKEND_LOGITS_DIFFERENCE_H_

#include <algorithm>
#include <cmath>
#include <vector>

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

}  // namespace tessera

#endif  // TESSERA_TESTS_UNIT_SERVER_BACKEND_LOGITS_DIFFERENCE_H_
