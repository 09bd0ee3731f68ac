// Asynchronous copies of a thread's own into shared memory (PTX ISA, "Non-bulk copy").
#ifndef TESSERA_KERNELS_CUDA_PTX_CP_ASYNC_CUH_
#define TESSERA_KERNELS_CUDA_PTX_CP_ASYNC_CUH_

#include <cstdint>

#include "kernels/cuda/ptx/mbarrier.cuh"

namespace tessera::cuda::ptx {

// 16 bytes from global to shared memory, both 16-byte aligned; only the first `bytes` are read, the rest become zero.
__device__ __forceinline__ void CpAsync16(void* target, const void* source, int32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(SharedAddress(target)), "l"(source), "r"(bytes)
               : "memory");
}

// Closes the group of this thread's copies since the last call.
__device__ __forceinline__ void CpAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups are unfinished.
template <int kPending>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

// Arrives at `barrier` when all copies that this thread began before are done: one of the arrivals that the barrier counts.
__device__ __forceinline__ void CpAsyncMbarrierArriveNoinc(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_CP_ASYNC_CUH_
