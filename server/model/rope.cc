#include "server/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Long wavelengths are divided by the factor, short ones kept, those between interpolated.
void ScaleLlama3(const RopeScaling& scaling, std::vector<double>* inv_freq) {
  const double low_wavelength = scaling.original_max_position_embeddings / scaling.low_freq_factor;
  const double high_wavelength = scaling.original_max_position_embeddings / scaling.high_freq_factor;
  for (double& frequency : *inv_freq) {
    const double wavelength = kTwoPi / frequency;
    if (wavelength < high_wavelength) continue;
    if (wavelength > low_wavelength) {
      frequency /= scaling.factor;
      continue;
    }
    const double smooth = (scaling.original_max_position_embeddings / wavelength - scaling.low_freq_factor) /
                          (scaling.high_freq_factor - scaling.low_freq_factor);
    frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency;
  }
}

// Dimensions that turn often within the original context keep their frequency, slow ones are divided by the
// factor, with a linear ramp between the dimensions that make beta_fast and beta_slow turns.
float ScaleYarn(const RopeScaling& scaling, double theta, int32_t dim, std::vector<double>* inv_freq) {
  const auto dimension_of_turns = [&](double turns) {
    return dim * std::log(scaling.original_max_position_embeddings / (turns * kTwoPi)) /
           (2 * std::log(theta));
  };
  double low = dimension_of_turns(scaling.beta_fast);
  double high = dimension_of_turns(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inv_freq->size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    double& frequency = (*inv_freq)[i];
    frequency = frequency / scaling.factor * ramp + frequency * (1 - ramp);
  }
  if (scaling.attention_factor != 0) return static_cast<float>(scaling.attention_factor);
  if (scaling.mscale != 0 && scaling.mscale_all_dim != 0) {
    return static_cast<float>(YarnMagnitude(scaling.factor, scaling.mscale) /
                              YarnMagnitude(scaling.factor, scaling.mscale_all_dim));
  }
  return static_cast<float>(YarnMagnitude(scaling.factor, 1.0));
}

}  // namespace

double YarnMagnitude(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

std::vector<std::string> SupportedRopeTypes() { return {"default", "linear", "llama3", "yarn"}; }

RopeSpec MakeRope(RopeStyle style, int32_t rotary_dim, double theta, const RopeScaling& scaling) {
  RopeSpec rope;
  rope.style = style;
  rope.rotary_dim = rotary_dim;
  rope.inv_freq.resize(rotary_dim / 2);
  for (int32_t i = 0; i < rotary_dim / 2; ++i) {
    rope.inv_freq[i] = std::pow(theta, -2.0 * i / rotary_dim);
  }
  if (scaling.type == "linear") {
    for (double& frequency : rope.inv_freq) frequency /= scaling.factor;
  } else if (scaling.type == "llama3") {
    ScaleLlama3(scaling, &rope.inv_freq);
  } else if (scaling.type == "yarn") {
    rope.magnitude = ScaleYarn(scaling, theta, rotary_dim, &rope.inv_freq);
  }
  return rope;
}

}  // namespace tessera
