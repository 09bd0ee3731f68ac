// Clusters of CTAs (PTX ISA, "barrier.cluster", "mapa", "mbarrier").
#ifndef TESSERA_KERNELS_CUDA_PTX_CLUSTER_CUH_
#define TESSERA_KERNELS_CUDA_PTX_CLUSTER_CUH_

#include <cstdint>

#include "kernels/cuda/ptx/mbarrier.cuh"

namespace tessera::cuda::ptx {

__device__ __forceinline__ uint32_t ClusterCtaRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for all threads of the cluster; what they wrote before is visible after.
__device__ __forceinline__ void ClusterSync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
}

// Arrives at the barrier that stands where `barrier` does, but in CTA `rank` of the cluster.
__device__ __forceinline__ void MbarrierArriveCluster(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(rank)
      : "memory");
}

// MbarrierWait for a barrier at which other CTAs arrive.
__device__ __forceinline__ void MbarrierWaitCluster(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_CLUSTER_CUH_
