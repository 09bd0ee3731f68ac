// What normalises a row by its root mean square, computed by a CTA.
#ifndef TESSERA_KERNELS_CUDA_OPS_ROW_NORM_CUH_
#define TESSERA_KERNELS_CUDA_OPS_ROW_NORM_CUH_

#include <cstdint>

namespace tessera::cuda {

inline constexpr int32_t kNormThreads = 512;
inline constexpr int32_t kNormWarps = kNormThreads / 32;

// Each of kNormThreads threads brings the sum of the squares of its elements; all of them get the factor for a row of `dim`
// elements. `parts` is shared memory of the call's own.
__device__ __forceinline__ float RmsScale(float squares, int32_t dim, float eps, float (&parts)[kNormWarps]) {
#pragma unroll
  for (int32_t distance = 16; distance > 0; distance /= 2) squares += __shfl_xor_sync(~0u, squares, distance);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = squares;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (const float part : parts) sum += part;
  return rsqrtf(sum / dim + eps);
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_OPS_ROW_NORM_CUH_
