// A block of 16 values to NVFP4, as nvfp4::QuantizeRow does it.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_NVFP4_QUANTIZE_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_NVFP4_QUANTIZE_CUH_

#include <cstdint>

#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/nvfp4/nvfp4.h"

namespace tessera::cuda {

// The larger magnitude, as bits; a NaN is larger than all.
__device__ __forceinline__ uint32_t MaxMagnitude(uint32_t bits, float value) {
  return max(bits, __float_as_uint(fabsf(value)));
}

// The tensor scale for values up to `amax`.
__device__ __forceinline__ float ScaleFromAmax(float amax) {
  if (amax == 0.0f) return 1.0f;
  const float scale = amax / (nvfp4::kE2M1Max * nvfp4::kE4M3Max);
  return scale < 0x1p-126f ? 0x1p-126f : scale;
}

struct Nvfp4Block {
  uint2 codes;
  uint8_t scale;
};

__device__ __forceinline__ Nvfp4Block QuantizeBlock(const float (&values)[16], float tensor_scale) {
  uint32_t magnitude = 0;
#pragma unroll
  for (float value : values) magnitude = MaxMagnitude(magnitude, value);
  float scale = 1.0f, divisor = 1.0f;
  Nvfp4Block block;
  if (magnitude != 0) {
    scale = __uint_as_float(magnitude) / (nvfp4::kE2M1Max * tensor_scale);
    if (scale < nvfp4::kE4M3MinSubnormal) scale = nvfp4::kE4M3MinSubnormal;
    if (magnitude >= 0x7F800000u)
      scale = NAN;  // no code is infinite: the block must not pass for a finite one
  }
  block.scale = ptx::CvtE4m3(scale);
  if (magnitude != 0) divisor = nvfp4::E4M3ToFloat(block.scale) * tensor_scale;
  float low[8], high[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    low[i] = divisor == 0.0f ? 0.0f : values[i] / divisor;
    high[i] = divisor == 0.0f ? 0.0f : values[8 + i] / divisor;
  }
  block.codes = make_uint2(ptx::CvtE2m1x8(low), ptx::CvtE2m1x8(high));
  return block;
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_NVFP4_QUANTIZE_CUH_
