// BF16: the upper half of an IEEE-754 binary32.
//
// Conversion from float rounds to nearest, ties to even; a NaN stays a NaN (quieted, sign and upper payload
// kept), infinities and signed zeros are exact, and a finite value past the largest BF16 rounds to infinity
// as IEEE-754 says. Usable on the host and in CUDA device code.
#ifndef TESSERA_KERNELS_NVFP4_BF16_H_
#define TESSERA_KERNELS_NVFP4_BF16_H_

#include <cstdint>

#include "kernels/host_device.h"

namespace tessera {

// A storage type; arithmetic happens in float.
struct Bf16 {
  uint16_t bits = 0;
  friend constexpr bool operator==(Bf16 a, Bf16 b) = default;
};
static_assert(sizeof(Bf16) == 2);

TESSERA_HOST_DEVICE constexpr float ToFloat(Bf16 value) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16);
}

TESSERA_HOST_DEVICE constexpr Bf16 ToBf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return Bf16{static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  }
  return Bf16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// IEEE-754 binary16 to float, exact, subnormals included.
TESSERA_HOST_DEVICE constexpr float HalfBitsToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity or NaN
    return __builtin_bit_cast(float, sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude < 0x0400u) {  // zero or subnormal: magnitude * 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, value));
  }
  return __builtin_bit_cast(float, sign | ((magnitude << 13) + 0x38000000u));
}

}  // namespace tessera

#endif  // TESSERA_KERNELS_NVFP4_BF16_H_
