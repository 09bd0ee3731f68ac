// The tcgen05 instructions of tcgen05.cuh for a pair of CTAs, the two of a cluster: cta_group::2.
//
// alloc, dealloc and relinquish are a warp's of each CTA; mma, cp and commit one thread's of the even CTA, for both: their
// descriptors and addresses hold its own places and stand for the same ones of the other, so that the two lay out their
// memory alike. Each CTA holds half of the rows of A and D, half of the rows of B, the scale factors of its rows of A and
// all of B's.
#ifndef TESSERA_KERNELS_CUDA_PTX_TCGEN05_PAIR_CUH_
#define TESSERA_KERNELS_CUDA_PTX_TCGEN05_PAIR_CUH_

#include <cstdint>

#include "kernels/cuda/ptx/mbarrier.cuh"

namespace tessera::cuda::ptx {

__device__ __forceinline__ void Tcgen05AllocPair(uint32_t* shared_address, uint32_t columns) {
  asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                   SharedAddress(shared_address)),
               "r"(columns)
               : "memory");
}

__device__ __forceinline__ void Tcgen05DeallocPair(uint32_t address, uint32_t columns) {
  asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns));
}

__device__ __forceinline__ void Tcgen05RelinquishAllocPermitPair() {
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
}

// Arrives at the barrier in both CTAs.
__device__ __forceinline__ void Tcgen05CommitPair(uint64_t* barrier) {
  constexpr uint16_t kBoth = 3;
  asm volatile(
      "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::
          "r"(SharedAddress(barrier)),
      "h"(kBoth)
      : "memory");
}

// M is 256.
__device__ __forceinline__ void Tcgen05MmaNvfp4Pair(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                                                    uint32_t a_scales, uint32_t b_scales, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.u32 accumulate, %6, 0;\n"
      "tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.scale_vec::4X [%0], %1, %2, %3, [%4], [%5], "
      "accumulate;\n"
      "}\n" ::"r"(d),
      "l"(a), "l"(b), "r"(instruction), "r"(a_scales), "r"(b_scales), "r"(uint32_t{accumulate})
      : "memory");
}

__device__ __forceinline__ void Tcgen05Cp32x128bWarpx4Pair(uint32_t address, uint64_t source) {
  asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" ::"r"(address), "l"(source) : "memory");
}

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_TCGEN05_PAIR_CUH_
