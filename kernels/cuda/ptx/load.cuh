// Loads that stay where they are written (PTX ISA, "ld"): for those that are to be under way at the same time, before
// something that the compiler would move them behind.
#ifndef TESSERA_KERNELS_CUDA_PTX_LOAD_CUH_
#define TESSERA_KERNELS_CUDA_PTX_LOAD_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace tessera::cuda::ptx {

__device__ __forceinline__ int32_t LoadNow(const int32_t* address) {
  int32_t value;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ int64_t LoadNow(const int64_t* address) {
  int64_t value;
  asm volatile("ld.global.s64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ int2 LoadNow(const int2* address) {
  int2 value;
  asm volatile("ld.global.v2.s32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ float LoadNow(const float* address) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ float2 LoadNow(const float2* address) {
  float2 value;
  asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(address) : "memory");
  return value;
}

// Of memory that is not written while the kernel runs.
__device__ __forceinline__ uint4 LoadReadOnlyNow(const uint4* address) {
  uint4 value;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_LOAD_CUH_
