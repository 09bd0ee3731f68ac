// Conversions to the 8- and 4-bit float formats (PTX ISA, "cvt"), E2M1 on sm_100 alone. Round to nearest even, saturating.
#ifndef TESSERA_KERNELS_CUDA_PTX_CONVERT_CUH_
#define TESSERA_KERNELS_CUDA_PTX_CONVERT_CUH_

#include <cuda_fp16.h>

#include <cstdint>

namespace tessera::cuda::ptx {

// Eight floats to E2M1, v[0] in the lowest four bits.
__device__ __forceinline__ uint32_t CvtE2m1x8(const float (&v)[8]) {
  uint32_t packed;
  asm("{\n"
      ".reg .b8 byte0, byte1, byte2, byte3;\n"
      "cvt.rn.satfinite.e2m1x2.f32 byte0, %2, %1;\n"
      "cvt.rn.satfinite.e2m1x2.f32 byte1, %4, %3;\n"
      "cvt.rn.satfinite.e2m1x2.f32 byte2, %6, %5;\n"
      "cvt.rn.satfinite.e2m1x2.f32 byte3, %8, %7;\n"
      "mov.b32 %0, {byte0, byte1, byte2, byte3};\n"
      "}\n"
      : "=r"(packed)
      : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]));
  return packed;
}

// A float to E4M3. A NaN stays one.
__device__ __forceinline__ uint8_t CvtE4m3(float v) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %1;" : "=h"(pair) : "f"(v));
  return static_cast<uint8_t>(pair);
}

// Two E4M3 values to half precision, exactly.
__device__ __forceinline__ __half2 CvtF16x2E4m3x2(uint16_t pair) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
  return *reinterpret_cast<__half2*>(&halves);
}

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_CONVERT_CUH_
