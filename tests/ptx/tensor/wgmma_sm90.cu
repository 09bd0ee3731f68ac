// A small GEMM with wgmma as kernels write it, for the emulator: two stages of shared memory, one group in flight, A from
// shared memory or from registers. d[64][64] = a[64][k] * b[64][k]^T, bf16 into float, k a multiple of 64.
#include <cstdint>

#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/sync.cuh"

namespace {

using namespace tessera::cuda::ptx;

constexpr uint32_t kLine = 128, kTile = 64 * kLine;  // bytes

// Hopper's descriptor: K-major, 128-byte swizzle.
__device__ uint64_t Describe(uint32_t address) {
  return (uint64_t{address & 0x3FFFF} >> 4) | (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
}

#define TESSERA_SUMS(d)                                                                                     \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),           \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),            \
      "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),            \
      "+f"(d[30]), "+f"(d[31])
#define TESSERA_LIST                                                                                      \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, "                                                                                            \
  "%24, %25, %26, %27, %28, %29, %30, %31}, "

__device__ void Wgmma(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " TESSERA_LIST "%32, %33, 1, 1, 1, 0, 0;"
               : TESSERA_SUMS(d)
               : "l"(a), "l"(b));
}

__device__ void Wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " TESSERA_LIST
               "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
               : TESSERA_SUMS(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

__device__ void CopyTile(uint8_t* tile, const uint16_t* source, uint32_t k) {
  for (uint32_t i = threadIdx.x; i < 64 * 8; i += blockDim.x) {
    const uint32_t row = i / 8, chunk = i % 8;
    *reinterpret_cast<uint4*>(tile + row * kLine + (chunk ^ (row % 8)) * 16) =
        *reinterpret_cast<const uint4*>(source + row * k + chunk * 8);
  }
}

template <bool kAFromRegisters>
__device__ void Gemm(const uint16_t* a, const uint16_t* b, float* d, uint32_t k) {
  __shared__ __align__(1024) uint8_t tiles[4][kTile];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sums[32] = {};
  for (uint32_t step = 0; step < k / 64; ++step) {
    uint8_t* a_tile = tiles[step % 2];
    uint8_t* b_tile = tiles[2 + step % 2];
    CopyTile(a_tile, a + step * 64, k);
    CopyTile(b_tile, b + step * 64, k);
    FenceProxyAsyncShared();
    __syncthreads();
    const uint64_t b_descriptor = Describe(SharedAddress(b_tile));
    if constexpr (kAFromRegisters) {
      uint32_t fragments[4][4];
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = warp * 16 + lane % 16, chunk = 2 * i + lane / 16;
        LdmatrixX4(fragments[i], SharedAddress(a_tile + row * kLine + (chunk ^ (row % 8)) * 16));
      }
      WgmmaFence();
      for (uint32_t i = 0; i < 4; ++i) Wgmma(sums, fragments[i], b_descriptor + 2 * i);
      WgmmaCommit();
      WgmmaWait<0>();
    } else {
      const uint64_t a_descriptor = Describe(SharedAddress(a_tile));
      WgmmaFence();
      for (uint32_t i = 0; i < 4; ++i) Wgmma(sums, a_descriptor + 2 * i, b_descriptor + 2 * i);
      WgmmaCommit();
      WgmmaWait<1>();  // the other stage is free once the group before this one is done
    }
    __syncthreads();
  }
  WgmmaWait<0>();
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t row = warp * 16 + lane / 4 + 8 * (i / 2 % 2),
                   column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    d[row * 64 + column] = sums[i];
  }
}

}  // namespace

extern "C" __global__ void gemm(const uint16_t* a, const uint16_t* b, float* d, uint32_t k) {
  Gemm<false>(a, b, d, k);
}
extern "C" __global__ void gemm_registers(const uint16_t* a, const uint16_t* b, float* d, uint32_t k) {
  Gemm<true>(a, b, d, k);
}
