#include "server/model/mxfp4_cast.h"

#include <algorithm>
#include <cmath>

#include "kernels/nvfp4/nvfp4.h"
#include "server/model/linear_rows.h"

namespace tessera {
namespace {

constexpr int kBlock = 32;
constexpr int kLargestExponent = 8;  // of a power of two in E4M3
constexpr int kSmallestExponent = -9;

bool AllZero(const uint8_t* codes) {
  return std::all_of(codes, codes + kBlock / 2, [](uint8_t byte) { return (byte & 0x77) == 0; });
}

}  // namespace

void Mxfp4Exponents::Merge(const Mxfp4Exponents& other) {
  least = std::min(least, other.least);
  most = std::max(most, other.most);
}

std::optional<float> Mxfp4Exponents::TensorScale() const {
  if (most - least > kLargestExponent - kSmallestExponent) return std::nullopt;
  const float scale = std::ldexp(1.0f, most - kLargestExponent);
  if (!std::isnormal(scale)) return std::nullopt;
  return scale;
}

std::optional<Mxfp4Exponents> FindMxfp4Exponents(const LinearWeights& weights) {
  std::optional<Mxfp4Exponents> found;
  RowReader reader;
  for (int64_t r = 0; r < weights.out; ++r) {
    const LinearRows rows = reader.Read(weights, r, 1);
    for (int64_t b = 0; b < weights.in / kBlock; ++b) {
      if (AllZero(rows.data + b * (kBlock / 2))) continue;
      const int exponent = static_cast<int>(rows.scales[b]) - 127;
      if (found) {
        found->Merge({exponent, exponent});
      } else {
        found = Mxfp4Exponents{exponent, exponent};
      }
    }
  }
  return found;
}

void CastMxfp4Scales(const uint8_t* codes, const uint8_t* scales, int64_t columns, float tensor_scale,
                     uint8_t* out) {
  for (int64_t b = 0; b < columns / kBlock; ++b) {
    const float scale =
        AllZero(codes + b * (kBlock / 2)) ? 1.0f : nvfp4::E8M0ToFloat(scales[b]) / tensor_scale;
    out[2 * b] = out[2 * b + 1] = nvfp4::FloatToE4M3(scale);
  }
}

}  // namespace tessera
