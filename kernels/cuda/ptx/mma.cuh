// Warp-level matrix instructions: ldmatrix, movmatrix, mma.sync (PTX ISA, "Warp-level Matrix Instructions").
// Fragment layouts are given where they matter: l is the lane.
#ifndef TESSERA_KERNELS_CUDA_PTX_MMA_CUH_
#define TESSERA_KERNELS_CUDA_PTX_MMA_CUH_

#include <cstdint>

namespace tessera::cuda::ptx {

// Four 8x8 matrices of 16-bit elements; lanes 8i .. 8i+7 give the row addresses of matrix i. Lane l gets the elements
// (l / 4, 2 (l % 4) + {0, 1}) of each.
__device__ __forceinline__ void LdmatrixX4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same, each matrix transposed: lane l gets the elements (2 (l % 4) + {0, 1}, l / 4).
__device__ __forceinline__ void LdmatrixX4Trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Transposes an 8x8 matrix of 16-bit elements held one row in four lanes.
__device__ __forceinline__ uint32_t MovmatrixTrans(uint32_t row) {
  uint32_t column;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
  return column;
}

// d += a * b, a 16x16 row-major, b 16x8 column-major, bf16 into float.
//   a: 0 (l/4, 2(l%4)+{0,1})  1 row + 8  2 column + 8  3 both;  b: 0 (2(l%4)+{0,1}, l/4)  1 row + 8
//   d: 0, 1 (l/4, 2(l%4)+{0,1})  2, 3 row + 8
__device__ __forceinline__ void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats to bf16, `low` in the low half, round to nearest even.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Adds at device scope; what other threads released before is visible after, and the reverse. Returns the old value.
__device__ __forceinline__ int32_t AtomAddAcqRelGpu(int32_t* address, int32_t value) {
  int32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}

// The same, but adds 1, or wraps to 0 where the old value has reached `last`.
__device__ __forceinline__ int32_t AtomIncAcqRelGpu(int32_t* address, int32_t last) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(last)
               : "memory");
  return static_cast<int32_t>(old);
}

// The same without order and without the old value.
__device__ __forceinline__ void RedIncGpu(int32_t* address, int32_t last) {
  asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(address), "r"(last) : "memory");
}

__device__ __forceinline__ int32_t LoadAcquireGpu(const int32_t* address) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// Barrier `id` among `threads` threads of the CTA.
__device__ __forceinline__ void NamedBarrierSync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_MMA_CUH_
