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

// Descriptor of a K-major operand without swizzle, made of core matrices: 8 rows of 16 bytes. `k_bytes` from one core
// matrix to the next along K, `row_bytes` to the next 8 rows; all multiples of 16.
__device__ __forceinline__ uint64_t WgmmaDescriptor(uint32_t address, uint32_t k_bytes, uint32_t row_bytes) {
  return (uint64_t{address & 0x3FFFF} >> 4) | (uint64_t{k_bytes} >> 4 << 16) |
         (uint64_t{row_bytes} >> 4 << 32);
}

// Descriptor of a K-major operand in rows of 128 bytes, 8 rows after 8, with the 128-byte swizzle: 16-byte piece c of row r
// stands at piece c ^ (r % 8). The operand starts at a multiple of 1024 bytes; a step of 16 bf16 along K adds 32 to
// `address`.
__device__ __forceinline__ uint64_t WgmmaDescriptorSwizzle128(uint32_t address) {
  return (uint64_t{address & 0x3FFFF} >> 4) | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

// d[64 x 128] (+)= a[64 x 16] b[16 x 128], bf16 products, float sums. Warp w of the group holds rows 16 w .. 16 w + 15, as
// fragments of mma.m16n8k16: `d[j]` columns 8 j .. 8 j + 7, `a` the A fragment. `b` is a matrix descriptor, K-major.
// Without `accumulate` the sums start from zero. Asynchronous: neither d nor a may be touched until it is waited for.
__device__ __forceinline__ void WgmmaM64N128K16(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b,
                                                bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
      "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
      "%62, %63},\n"
      "{%64, %65, %66, %67}, %68, accumulate, 1, 1, 0;\n"
      "}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
        "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
        "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
        "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]),
        "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),
        "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int32_t{accumulate}));
}

// The same of fewer columns.
__device__ __forceinline__ void WgmmaM64N32K16(float (&d)[4][4], const uint32_t (&a)[4], uint64_t b,
                                               bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15},\n"
      "{%16, %17, %18, %19}, %20, accumulate, 1, 1, 0;\n"
      "}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int32_t{accumulate}));
}

__device__ __forceinline__ void WgmmaM64N64K16(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b,
                                               bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%32, %33, %34, %35}, %36, accumulate, 1, 1, 0;\n"
      "}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int32_t{accumulate}));
}

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_WGMMA_CUH_
