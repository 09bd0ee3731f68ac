// The NVFP4 number formats: E2M1 elements in blocks of 16, an E4M3FN scale a block, a float scale a tensor.
//
//   weight[i] = E2M1(code[i]) * E4M3(scale[i / 16]) * tensor_scale
//
// E2M1 (OCP Microscaling Formats 1.0, section 5.3.3): sign, two exponent bits, one mantissa bit; codes 0-7
// are 0, 0.5, 1, 1.5, 2, 3, 4, 6, codes 8-15 their negatives (8 is -0). No infinity, no NaN.
// E4M3FN (OCP OFP8 1.0): bias 7, largest 448, smallest subnormal 2^-9, no infinity, 0x7f and 0xff are NaN.
// Every conversion here rounds to nearest, ties to the even code, and saturates.
//
// The product E2M1 * E4M3 has at most six significant bits, so it is exact in BF16 and in float.
// Everything is constexpr and usable on the host and in CUDA device code.
#ifndef TESSERA_KERNELS_NVFP4_NVFP4_H_
#define TESSERA_KERNELS_NVFP4_NVFP4_H_

#include <cstdint>

#include "kernels/nvfp4/bf16.h"

namespace tessera::nvfp4 {

inline constexpr int kBlockSize = 16;
inline constexpr float kE2M1Max = 6.0f;
inline constexpr float kE4M3Max = 448.0f;
inline constexpr float kE4M3MinSubnormal = 0x1p-9f;
inline constexpr uint8_t kE4M3NaN = 0x7f;
// Largest block scale a four-over-six tensor uses before the choice between 6 and 4 (1.5 * 256 <= 448).
inline constexpr float kFourOverSixScaleMax = 256.0f;

// Value of a code; only the low four bits are looked at.
TESSERA_HOST_DEVICE constexpr float E2M1ToFloat(uint8_t code) {
  const uint32_t exponent = (code >> 1) & 3u;
  const uint32_t mantissa = code & 1u;
  const uint32_t sign = static_cast<uint32_t>(code & 8u) << 28;
  const uint32_t magnitude = exponent != 0   ? ((exponent + 126u) << 23) | (mantissa << 22)
                             : mantissa != 0 ? 0x3f000000u
                                             : 0u;
  return __builtin_bit_cast(float, sign | magnitude);
}

// Nearest code. A NaN, which the format cannot hold, saturates to +6 or -6 by its sign as the OCP conversion
// does; callers that care reject NaN before. A negative value that rounds to zero gives -0 (code 8).
TESSERA_HOST_DEVICE constexpr uint8_t FloatToE2M1(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 28) & 8u);
  const float v = __builtin_bit_cast(float, bits & 0x7fffffffu);
  // Midpoints between neighbours; at a midpoint the even code wins, hence <= before an even code.
  if (v <= 0.25f) return sign;
  if (v < 0.75f) return sign | 1;
  if (v <= 1.25f) return sign | 2;
  if (v < 1.75f) return sign | 3;
  if (v <= 2.5f) return sign | 4;
  if (v < 3.5f) return sign | 5;
  if (v <= 5.0f) return sign | 6;
  return sign | 7;
}

// Value of an E4M3FN code; 0x7f and 0xff give NaN.
TESSERA_HOST_DEVICE constexpr float E4M3ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return __builtin_bit_cast(float, sign | 0x7fc00000u);
  if (magnitude < 8u) {
    const float value = static_cast<float>(magnitude) * kE4M3MinSubnormal;
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, value));
  }
  return __builtin_bit_cast(float, sign | ((magnitude << 20) + (120u << 23)));
}

// Nearest E4M3FN code; magnitudes past 448 (infinity too) saturate to 448, NaN stays NaN.
TESSERA_HOST_DEVICE constexpr uint8_t FloatToE4M3(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | kE4M3NaN;
  if (magnitude >= __builtin_bit_cast(uint32_t, kE4M3Max)) return sign | 0x7e;
  if (magnitude < __builtin_bit_cast(uint32_t, 0x1p-6f)) {
    // Subnormal: a multiple of 2^-9. Adding 1.5 * 2^14 leaves exactly those bits in a float, rounded to even.
    const float shifted = __builtin_bit_cast(float, magnitude) + 0x1.8p14f;
    return sign | static_cast<uint8_t>(__builtin_bit_cast(uint32_t, shifted) -
                                       __builtin_bit_cast(uint32_t, 0x1.8p14f));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return sign | static_cast<uint8_t>((rounded - (120u << 23)) >> 20);
}

// Value of an E8M0 scale (OCP Microscaling Formats 1.0, section 5.4.1): 2^(code - 127); 0xff gives NaN.
TESSERA_HOST_DEVICE constexpr float E8M0ToFloat(uint8_t code) {
  const uint32_t bits = code == 0       ? 0x00400000u
                        : code == 0xffu ? 0x7fc00000u
                                        : static_cast<uint32_t>(code) << 23;
  return __builtin_bit_cast(float, bits);
}

// One weight without the tensor scale: exact.
TESSERA_HOST_DEVICE constexpr float DequantizeUnscaled(uint8_t code, uint8_t scale) {
  return E2M1ToFloat(code) * E4M3ToFloat(scale);
}

}  // namespace tessera::nvfp4

#endif  // TESSERA_KERNELS_NVFP4_NVFP4_H_
