// wgmma on tiles with the 128-byte swizzle, as TMA lays them out: bf16 products, float sums, m64nNk16.
//
// Of `d`, warp w of the group holds rows 16 w .. 16 w + 15 as fragments of mma.m16n8k16, d[j] columns 8 j .. 8 j + 7; so
// for `a` in registers. Without `accumulate` the sums start from zero. Asynchronous: see wgmma.cuh.
#ifndef TESSERA_KERNELS_CUDA_PTX_WGMMA_TILES_CUH_
#define TESSERA_KERNELS_CUDA_PTX_WGMMA_TILES_CUH_

#include <cstdint>

#include "kernels/cuda/ptx/wgmma.cuh"

namespace tessera::cuda::ptx {

// Descriptor of an operand in lines of 128 bytes, swizzled, 8 lines dense. K-major: a line is 64 of K of one row.
// MN-major: a line is 64 rows of one k, and `chunk_bytes` lead to the next 64 rows. `address` is a multiple of 1024.
__device__ __forceinline__ uint64_t WgmmaSwizzledDescriptor(uint32_t address, uint32_t chunk_bytes = 0) {
  return (uint64_t{address & 0x3FFFF} >> 4) | (uint64_t{chunk_bytes} >> 4 << 16) |
         (uint64_t{1024} >> 4 << 32) | (uint64_t{1} << 62);
}

// The same operand `bytes` further on: 32 for the next 16 of K within the lines of a K-major one.
__device__ __forceinline__ uint64_t WgmmaAdvance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

// Keeps the compiler from moving accesses to registers across this point: to be called after the wait for the products
// that write them.
template <int kColumns>
__device__ __forceinline__ void WgmmaPin(float (&d)[kColumns][4]) {
#pragma unroll
  for (int32_t j = 0; j < kColumns; ++j) {
    asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])::"memory");
  }
}

// clang-format off
#define TESSERA_SUMS1(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define TESSERA_SUMS8(j)                                                                                      \
  TESSERA_SUMS1(j), TESSERA_SUMS1(j + 1), TESSERA_SUMS1(j + 2), TESSERA_SUMS1(j + 3), TESSERA_SUMS1(j + 4), \
      TESSERA_SUMS1(j + 5), TESSERA_SUMS1(j + 6), TESSERA_SUMS1(j + 7)
#define TESSERA_LIST16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TESSERA_LIST32 TESSERA_LIST16 ", " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TESSERA_LIST64 TESSERA_LIST32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TESSERA_LIST128 TESSERA_LIST64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// clang-format on

// a[64 x 16], K-major, and b[16 x 64], K-major, both in shared memory.
__device__ __forceinline__ void WgmmaSharedShared(float (&d)[8][4], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TESSERA_LIST32
      "}, %32, %33, accumulate, 1, 1, 0, 0;\n"
      "}\n"
      : TESSERA_SUMS8(0)
      : "l"(a), "l"(b), "r"(int32_t{accumulate}));
}

// a[64 x 16] in registers, b[16 x N] in shared memory: K-major, or MN-major with kTransposeB.
template <bool kTransposeB>
__device__ __forceinline__ void WgmmaRegistersShared(float (&d)[4][4], const uint32_t (&a)[4], uint64_t b,
                                                     bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" TESSERA_LIST16
      "}, {%16, %17, %18, %19}, %20, accumulate, 1, 1, %22;\n"
      "}\n"
      : TESSERA_SUMS1(0), TESSERA_SUMS1(1), TESSERA_SUMS1(2), TESSERA_SUMS1(3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int32_t{accumulate}),
        "n"(int32_t{kTransposeB}));
}

template <bool kTransposeB>
__device__ __forceinline__ void WgmmaRegistersShared(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b,
                                                     bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TESSERA_LIST32
      "}, {%32, %33, %34, %35}, %36, accumulate, 1, 1, %38;\n"
      "}\n"
      : TESSERA_SUMS8(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int32_t{accumulate}),
        "n"(int32_t{kTransposeB}));
}

template <bool kTransposeB>
__device__ __forceinline__ void WgmmaRegistersShared(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b,
                                                     bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TESSERA_LIST64
      "}, {%64, %65, %66, %67}, %68, accumulate, 1, 1, %70;\n"
      "}\n"
      : TESSERA_SUMS8(0), TESSERA_SUMS8(8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int32_t{accumulate}),
        "n"(int32_t{kTransposeB}));
}

template <bool kTransposeB>
__device__ __forceinline__ void WgmmaRegistersShared(float (&d)[32][4], const uint32_t (&a)[4], uint64_t b,
                                                     bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" TESSERA_LIST128
      "}, {%128, %129, %130, %131}, %132, accumulate, 1, 1, %134;\n"
      "}\n"
      : TESSERA_SUMS8(0), TESSERA_SUMS8(8), TESSERA_SUMS8(16), TESSERA_SUMS8(24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int32_t{accumulate}),
        "n"(int32_t{kTransposeB}));
}

#undef TESSERA_SUMS1
#undef TESSERA_SUMS8
#undef TESSERA_LIST16
#undef TESSERA_LIST32
#undef TESSERA_LIST64
#undef TESSERA_LIST128

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_WGMMA_TILES_CUH_
