// Synchronisation of threads and proxies (PTX ISA, "Parallel Synchronization and Communication Instructions").
#ifndef TESSERA_KERNELS_CUDA_PTX_SYNC_CUH_
#define TESSERA_KERNELS_CUDA_PTX_SYNC_CUH_

#include <cstdint>

namespace tessera::cuda::ptx {

// True in one lane of the warp, always the same one. The whole warp calls it.
__device__ __forceinline__ bool ElectSync() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred leads;\n"
      "elect.sync _|leads, 0xFFFFFFFF;\n"
      "selp.u32 %0, 1, 0, leads;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// Makes this thread's ordinary writes to shared memory visible to the async proxy (TMA, tcgen05).
__device__ __forceinline__ void FenceProxyAsyncShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Gives registers of the warp group back, or takes more, until each of its threads has kCount. All of its warps call it.
template <int kCount>
__device__ __forceinline__ void SetmaxnregDec() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256, "a multiple of 8 from 24 to 256");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void SetmaxnregInc() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256, "a multiple of 8 from 24 to 256");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kCount));
}

// Arrives at barrier `id` among `threads` threads of the CTA, of which the others wait, without waiting itself.
__device__ __forceinline__ void NamedBarrierArrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Barrier `id` among `threads` threads of the CTA; true in all of them if `any` is true in one.
__device__ __forceinline__ bool NamedBarrierRedOr(uint32_t id, uint32_t threads, bool any) {
  uint32_t result;
  asm volatile(
      "{\n"
      ".reg .pred in, out;\n"
      "setp.ne.u32 in, %3, 0;\n"
      "barrier.cta.red.or.pred out, %1, %2, in;\n"
      "selp.u32 %0, 1, 0, out;\n"
      "}\n"
      : "=r"(result)
      : "r"(id), "r"(threads), "r"(uint32_t{any})
      : "memory");
  return result != 0;
}

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_SYNC_CUH_
