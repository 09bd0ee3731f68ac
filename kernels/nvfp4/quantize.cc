#include "kernels/nvfp4/quantize.h"

#include <cmath>
#include <limits>

namespace tessera::nvfp4 {
namespace {

struct BlockResult {
  uint8_t scale = 0;
  uint8_t codes[kBlockSize] = {};
  double squared_error = 0;
  double max_abs_error = 0;
};

// Quantises one block with a given scale code. The divisor is rounded to float before the division, as
// ModelOpt's tensors are.
BlockResult QuantizeBlock(const float* values, uint8_t scale, float tensor_scale) {
  BlockResult result;
  result.scale = scale;
  const float divisor = E4M3ToFloat(scale) * tensor_scale;
  for (int i = 0; i < kBlockSize; ++i) {
    // The divisor can underflow to zero for a tensor of float subnormals: then nothing is representable.
    const float quotient = divisor > 0 ? values[i] / divisor : 0.0f;
    result.codes[i] = FloatToE2M1(quotient);
    const double error = std::fabs(static_cast<double>(values[i]) -
                                   static_cast<double>(DequantizeUnscaled(result.codes[i], scale)) *
                                       static_cast<double>(tensor_scale));
    result.squared_error += error * error;
    result.max_abs_error = std::fmax(result.max_abs_error, error);
  }
  return result;
}

uint8_t ScaleCode(float amax, float tensor_scale, float largest_code) {
  float scale = amax / (largest_code * tensor_scale);
  if (!(scale >= kE4M3MinSubnormal)) scale = kE4M3MinSubnormal;
  if (scale > kE4M3Max) scale = kE4M3Max;
  return FloatToE4M3(scale);
}

template <typename T, typename Convert>
void DequantizeRowAs(const uint8_t* codes, const uint8_t* scales, int64_t k, float tensor_scale, T* row,
                     Convert convert) {
  for (int64_t i = 0; i < k; i += 2) {
    const float scale = E4M3ToFloat(scales[i / kBlockSize]);
    const uint8_t byte = codes[i / 2];
    row[i] = convert(E2M1ToFloat(byte & 0xf) * scale * tensor_scale);
    row[i + 1] = convert(E2M1ToFloat(byte >> 4) * scale * tensor_scale);
  }
}

}  // namespace

float AbsMax(const float* values, int64_t count) {
  float amax = 0;
  bool nan = false;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(values[i]);
    nan |= magnitude != magnitude;
    amax = magnitude > amax ? magnitude : amax;
  }
  return nan ? std::numeric_limits<float>::quiet_NaN() : amax;
}

float TensorScaleFromAmax(float amax, BlockScaleRule rule) {
  if (amax == 0) return 1.0f;
  const float scale_max = rule == BlockScaleRule::kFourOverSix ? kFourOverSixScaleMax : kE4M3Max;
  const float scale = amax / (kE2M1Max * scale_max);
  // An amax so small that the quotient vanishes: the smallest normal float keeps divisions finite.
  return scale < std::numeric_limits<float>::min() ? std::numeric_limits<float>::min() : scale;
}

void ErrorStats::Merge(const ErrorStats& other) {
  count += other.count;
  sum_squared_error += other.sum_squared_error;
  sum_squared_value += other.sum_squared_value;
  max_abs_error = std::fmax(max_abs_error, other.max_abs_error);
  zero_blocks += other.zero_blocks;
  four_blocks += other.four_blocks;
  non_finite_count += other.non_finite_count;
}

double ErrorStats::SignalToNoiseDb() const {
  if (sum_squared_error == 0) return std::numeric_limits<double>::infinity();
  return 10.0 * std::log10(sum_squared_value / sum_squared_error);
}

ErrorStats QuantizeRow(const float* row, int64_t k, float tensor_scale, BlockScaleRule rule, uint8_t* codes,
                       uint8_t* scales) {
  ErrorStats stats;
  for (int64_t block = 0; block < k / kBlockSize; ++block) {
    const float* values = row + block * kBlockSize;
    float amax = 0;
    for (int i = 0; i < kBlockSize; ++i) {
      if (!std::isfinite(values[i])) ++stats.non_finite_count;
      amax = std::fmax(amax, std::fabs(values[i]));
      stats.sum_squared_value += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    BlockResult best;
    if (amax == 0) {
      best.scale = FloatToE4M3(1.0f);
      for (int i = 0; i < kBlockSize; ++i) best.codes[i] = FloatToE2M1(values[i]);
      ++stats.zero_blocks;
    } else {
      best = QuantizeBlock(values, ScaleCode(amax, tensor_scale, kE2M1Max), tensor_scale);
      if (rule == BlockScaleRule::kFourOverSix) {
        const BlockResult four = QuantizeBlock(values, ScaleCode(amax, tensor_scale, 4.0f), tensor_scale);
        if (four.squared_error < best.squared_error) {
          best = four;
          ++stats.four_blocks;
        }
      }
    }
    scales[block] = best.scale;
    uint8_t* out = codes + block * (kBlockSize / 2);
    for (int j = 0; j < kBlockSize / 2; ++j) {
      out[j] = static_cast<uint8_t>(best.codes[2 * j] | (best.codes[2 * j + 1] << 4));
    }
    stats.count += kBlockSize;
    stats.sum_squared_error += best.squared_error;
    stats.max_abs_error = std::fmax(stats.max_abs_error, best.max_abs_error);
  }
  return stats;
}

void DequantizeRow(const uint8_t* codes, const uint8_t* scales, int64_t k, float tensor_scale, float* row) {
  DequantizeRowAs(codes, scales, k, tensor_scale, row, [](float v) { return v; });
}

void DequantizeRow(const uint8_t* codes, const uint8_t* scales, int64_t k, float tensor_scale, Bf16* row) {
  DequantizeRowAs(codes, scales, k, tensor_scale, row, [](float v) { return ToBf16(v); });
}

}  // namespace tessera::nvfp4
