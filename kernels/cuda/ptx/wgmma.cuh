// Warp-group matrix products of Hopper (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
//
// Their sums have the bits of mma.sync's on the same operands, step by step (measured on an H200): kernels may take either.
#ifndef TESSERA_KERNELS_CUDA_PTX_WGMMA_CUH_
#define TESSERA_KERNELS_CUDA_PTX_WGMMA_CUH_

#include <cstdint>

namespace tessera::cuda::ptx {

// Orders this warp group's accesses to registers (and earlier wgmmas) before the wgmmas that follow.
__device__ __forceinline__ void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes the group of wgmmas since the last call.
__device__ __forceinline__ void WgmmaCommitGroup() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending groups are unfinished; their registers may be touched then.
template <int kPending>
__device__ __forceinline__ void WgmmaWaitGroup() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_WGMMA_CUH_
