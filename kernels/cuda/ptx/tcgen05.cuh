// One inline function per tcgen05 instruction, cta_group::1, named after it (PTX ISA, "TensorCore 5th Generation").
//
// Tensor memory (TMEM) has 128 lanes of 512 columns of 32 bits; an address is lane << 16 | column. Warp w of a CTA
// reaches the lanes 32 (w % 4) .. + 31 alone.
//
// Which thread calls: alloc, dealloc, relinquish, ld, st and wait are the whole warp's, converged, with one address; mma,
// cp and commit are one thread's, always the same one. Mma after mma into the same sums and mma after cp keep the order
// of that thread; all else is asynchronous:
//   - results of mma are read after a commit, a wait on its barrier and fence::after_thread_sync;
//   - what was read or stored by ld and st is the next mma's after wait::ld or wait::st, fence::before_thread_sync, an
//     arrival, the issuer's wait and fence::after_thread_sync;
//   - shared memory written by ordinary stores needs FenceProxyAsyncShared before the arrival.
#ifndef TESSERA_KERNELS_CUDA_PTX_TCGEN05_CUH_
#define TESSERA_KERNELS_CUDA_PTX_TCGEN05_CUH_

#include <cstdint>

#include "kernels/cuda/ptx/mbarrier.cuh"

namespace tessera::cuda::ptx {

inline constexpr uint32_t kTmemColumns = 512;

// Lane `lane` of the same column.
__device__ __forceinline__ uint32_t TmemLane(uint32_t address, uint32_t lane) {
  return address + (lane << 16);
}

// Allocates `columns` (a power of two, 32 to 512) and writes the address to shared memory; waits while another CTA of the
// SM holds them.
__device__ __forceinline__ void Tcgen05Alloc(uint32_t* shared_address, uint32_t columns) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                   SharedAddress(shared_address)),
               "r"(columns)
               : "memory");
}

// Every allocation is freed before the CTA ends.
__device__ __forceinline__ void Tcgen05Dealloc(uint32_t address, uint32_t columns) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns));
}

// This CTA allocates no more.
__device__ __forceinline__ void Tcgen05RelinquishAllocPermit() {
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}

__device__ __forceinline__ void Tcgen05FenceBeforeThreadSync() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

__device__ __forceinline__ void Tcgen05FenceAfterThreadSync() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// Arrives at `barrier` when all mma and cp that this thread issued before are done; implies fence::before_thread_sync.
__device__ __forceinline__ void Tcgen05Commit(uint64_t* barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   SharedAddress(barrier))
               : "memory");
}

// D = A B^T, or += where `accumulate`: bf16 operands in shared memory, float sums in TMEM; K 16.
__device__ __forceinline__ void Tcgen05MmaF16(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                                              bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.u32 accumulate, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, accumulate;\n"
      "}\n" ::"r"(d),
      "l"(a), "l"(b), "r"(instruction), "r"(uint32_t{accumulate})
      : "memory");
}

// The same of NVFP4 operands with their block scales in TMEM; K 64.
__device__ __forceinline__ void Tcgen05MmaNvfp4(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                                                uint32_t a_scales, uint32_t b_scales, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.u32 accumulate, %6, 0;\n"
      "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%0], %1, %2, %3, [%4], [%5], "
      "accumulate;\n"
      "}\n" ::"r"(d),
      "l"(a), "l"(b), "r"(instruction), "r"(a_scales), "r"(b_scales), "r"(uint32_t{accumulate})
      : "memory");
}

// Copies 32 rows of 16 bytes from shared memory to four columns of the lanes 0 .. 31, and the same to the other three
// quarters: scale factors.
__device__ __forceinline__ void Tcgen05Cp32x128bWarpx4(uint32_t address, uint64_t source) {
  asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(address), "l"(source) : "memory");
}

// Lane l of the warp gets (lane l of its quarter, column i) in r[i]. `address` is in the first lane of the quarter. The
// values are there after Tcgen05WaitLd of the same registers.
__device__ __forceinline__ void Tcgen05Ld32x32b(uint32_t (&r)[8], uint32_t address) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]),
                 "=r"(r[7])
               : "r"(address));
}

__device__ __forceinline__ void Tcgen05Ld32x32b(uint32_t (&r)[16], uint32_t address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
      "%14, %15}, [%16];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]),
        "=r"(r[8]), "=r"(r[9]), "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]), "=r"(r[14]), "=r"(r[15])
      : "r"(address));
}

// Waits for the loads of this thread. Takes the registers so that no use of them moves ahead of it.
__device__ __forceinline__ void Tcgen05WaitLd(uint32_t (&r)[8]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;"
               : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]), "+r"(r[4]), "+r"(r[5]), "+r"(r[6]),
                 "+r"(r[7])
               :
               : "memory");
}

__device__ __forceinline__ void Tcgen05WaitLd(uint32_t (&r)[16]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;"
               : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]), "+r"(r[4]), "+r"(r[5]), "+r"(r[6]),
                 "+r"(r[7]), "+r"(r[8]), "+r"(r[9]), "+r"(r[10]), "+r"(r[11]), "+r"(r[12]), "+r"(r[13]),
                 "+r"(r[14]), "+r"(r[15])
               :
               : "memory");
}

// The reverse of ld.
__device__ __forceinline__ void Tcgen05St32x32b(uint32_t address, const uint32_t (&r)[8]) {
  asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7])
               : "memory");
}

__device__ __forceinline__ void Tcgen05St32x32b(uint32_t address, const uint32_t (&r)[16]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x16.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
      "%14, %15, %16};" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7]), "r"(r[8]),
      "r"(r[9]), "r"(r[10]), "r"(r[11]), "r"(r[12]), "r"(r[13]), "r"(r[14]), "r"(r[15])
      : "memory");
}

__device__ __forceinline__ void Tcgen05WaitSt() {
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_TCGEN05_CUH_
