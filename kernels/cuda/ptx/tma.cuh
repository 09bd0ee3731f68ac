// The bulk tensor copy engine (PTX ISA, "cp.async.bulk.tensor").
#ifndef TESSERA_KERNELS_CUDA_PTX_TMA_CUH_
#define TESSERA_KERNELS_CUDA_PTX_TMA_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/ptx/mbarrier.cuh"

namespace tessera::cuda::ptx {

// L2 eviction policy for data that is read once, as createpolicy.fractional.L2::evict_first encodes it.
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;
// The default policy, as L2::evict_normal.
inline constexpr uint64_t kEvictNormal = 0x1000000000000000ull;
// And for data that is read again soon, as L2::evict_last.
inline constexpr uint64_t kEvictLast = 0x14F0000000000000ull;

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the box at (column, row) of a two-dimensional tensor to shared memory; its bytes complete on `barrier`.
__device__ __forceinline__ void CpAsyncBulkTensor2d(void* shared, const CUtensorMap* map, int32_t column,
                                                    int32_t row, uint64_t* barrier, uint64_t cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(column), "r"(row), "r"(SharedAddress(barrier)), "l"(cache_policy)
      : "memory");
}

// The same of the box at (x, y, z) of a three-dimensional tensor.
__device__ __forceinline__ void CpAsyncBulkTensor3d(void* shared, const CUtensorMap* map, int32_t x,
                                                    int32_t y, int32_t z, uint64_t* barrier,
                                                    uint64_t cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(SharedAddress(barrier)), "l"(cache_policy)
      : "memory");
}

// Four rows of a two-dimensional tensor whose boxes have one row, from `column` on, one after the other; sm_100.
__device__ __forceinline__ void CpAsyncBulkTensorGather4(void* shared, const CUtensorMap* map, int32_t column,
                                                         const int4& rows, uint64_t* barrier,
                                                         uint64_t cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(column), "r"(rows.x), "r"(rows.y), "r"(rows.z), "r"(rows.w), "r"(SharedAddress(barrier)),
      "l"(cache_policy)
      : "memory");
}

// Copies `bytes` contiguous bytes (a multiple of 16, both ends 16-byte aligned) to shared memory; they complete on
// `barrier`.
__device__ __forceinline__ void CpAsyncBulk(void* shared, const void* global, uint32_t bytes,
                                            uint64_t* barrier, uint64_t cache_policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier)), "l"(cache_policy)
      : "memory");
}

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_TMA_CUH_
