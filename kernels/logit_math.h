// What the host's sampler and the device's share, to the bit: the order of logits, and the weights of a softmax with the
// order in which they are summed.
#ifndef TESSERA_KERNELS_LOGIT_MATH_H_
#define TESSERA_KERNELS_LOGIT_MATH_H_

#include <cstdint>

#include "kernels/host_device.h"

namespace tessera {

// Weights are summed in blocks of consecutive tokens: weight i of a block belongs to lane i % kLogitLanes; a lane adds its
// weights in order in double, a block its lanes in order, a row its blocks in order.
inline constexpr int kLogitBlock = 1024;
inline constexpr int kLogitLanes = 8;

// Orders as the floats do, -0 equal to +0. Not for NaN.
TESSERA_HOST_DEVICE int32_t OrderKey(float x) {
  const int32_t bits = __builtin_bit_cast(int32_t, x);
  const int32_t magnitude = bits & 0x7fffffff;
  const int32_t sign = bits >> 31;
  return (magnitude ^ sign) - sign;
}
inline constexpr int32_t kInfinityOrderKey = 0x7f800000;
// Stands for a NaN where keys are compared: above all others.
inline constexpr int32_t kNanOrderKey = 0x7fffffff;

// Sums and products that no compiler may contract.
TESSERA_HOST_DEVICE float AddRounded(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;  // the host is compiled with -ffp-contract=off
#endif
}
TESSERA_HOST_DEVICE float MulRounded(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
TESSERA_HOST_DEVICE float DivRounded(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

// e^x for x <= 0, -infinity included: relative error below 3e-7, and 0 below x = -87. The same bits on every machine,
// which a C library does not promise. Coefficients: Cephes expf.
TESSERA_HOST_DEVICE float ExpOfNonPositive(float x) {
  constexpr float kUnderflow = -87.0f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  const bool underflow = x < kUnderflow;
  x = underflow ? kUnderflow : x;
  const float shifted = AddRounded(MulRounded(x, kLog2E), kRound);
  const float n = AddRounded(shifted, -kRound);
  const float r = AddRounded(AddRounded(x, -MulRounded(n, kLn2High)), -MulRounded(n, kLn2Low));
  float p = 1.9875691500e-4f;
  p = AddRounded(MulRounded(p, r), 1.3981999507e-3f);
  p = AddRounded(MulRounded(p, r), 8.3334519073e-3f);
  p = AddRounded(MulRounded(p, r), 4.1665795894e-2f);
  p = AddRounded(MulRounded(p, r), 1.6666665459e-1f);
  p = AddRounded(MulRounded(p, r), 5.0000001201e-1f);
  const float mantissa = AddRounded(AddRounded(MulRounded(MulRounded(p, r), r), r), 1.0f);
  const uint32_t exponent =
      __builtin_bit_cast(uint32_t, shifted) - __builtin_bit_cast(uint32_t, kRound) + 127u;
  const float result = MulRounded(mantissa, __builtin_bit_cast(float, exponent << 23));
  return underflow ? 0.0f : result;
}

// The weight of a token: e^((logit - largest) / temperature).
TESSERA_HOST_DEVICE float LogitWeight(float logit, float largest, float temperature) {
  return ExpOfNonPositive(DivRounded(AddRounded(logit, -largest), temperature));
}

// One change to one token's logit. A row's edits come by kind, in the order of the kinds; no kind names a token twice.
struct LogitEdit {
  enum Kind : int32_t { kBias, kBar, kRepetition, kPenalty };
  static constexpr int kKinds = 4;
  int32_t token;
  Kind kind;
  float operand;  // the bias, nothing, the repetition penalty, what presence and frequency take off

  TESSERA_HOST_DEVICE float Apply(float logit) const {
    switch (kind) {
      case kBias:
        return AddRounded(logit, operand);
      case kBar:
        return -__builtin_inff();
      case kRepetition:
        return logit > 0.0f ? DivRounded(logit, operand) : MulRounded(logit, operand);
      case kPenalty:
        return AddRounded(logit, -operand);
    }
    return logit;
  }
};

}  // namespace tessera

#endif  // TESSERA_KERNELS_LOGIT_MATH_H_
