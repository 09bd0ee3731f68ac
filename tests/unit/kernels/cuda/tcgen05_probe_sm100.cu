#include <cstdint>

#include "kernels/cuda/ptx/instruction_descriptor.h"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/smem_descriptor.h"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tcgen05.cuh"
#include "tests/unit/kernels/cuda/tcgen05_probe.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kMostK = 128;
constexpr int32_t kOperandBytes = kProbeRows * kMostK * 2;

__device__ constexpr bool IsMnMajor(ProbeLayout layout) {
  return layout == ProbeLayout::kMnMajor || layout == ProbeLayout::kMnMajorSwizzle128;
}

// Byte of element (row, k) of an operand, before any swizzle, with its descriptor's two offsets in mind.
__device__ int32_t Place(ProbeLayout layout, int32_t row, int32_t k) {
  switch (layout) {
    case ProbeLayout::kKMajor:  // 16-byte columns of K one after the other, each of all rows
      return k / 8 * (kProbeRows * 16) + row * 16 + k % 8 * 2;
    case ProbeLayout::kKMajorSwizzle128:  // 64 of K a line, then the next 64
      return k / 64 * (kProbeRows * 128) + row * 128 + k % 64 * 2;
    case ProbeLayout::kMnMajor:  // 8 rows a unit, all of K, then the next 8 rows
      return row / 8 * (kMostK * 16) + k * 16 + row % 8 * 2;
    case ProbeLayout::kMnMajorSwizzle128:  // 64 rows a line, all of K, then the next 64 rows
      return row / 64 * (kMostK * 128) + k * 128 + row % 64 * 2;
  }
  return 0;
}

__device__ uint64_t Describe(ProbeLayout layout, uint32_t address, int32_t k) {
  switch (layout) {
    case ProbeLayout::kKMajor:
      return ptx::MakeSmemDescriptor(address + k / 8 * (kProbeRows * 16), kProbeRows * 16, 128,
                                     ptx::SmemSwizzle::kNone);
    case ProbeLayout::kKMajorSwizzle128:
      return ptx::MakeSmemDescriptor(address + k / 64 * (kProbeRows * 128) + k % 64 * 2, 0, 1024,
                                     ptx::SmemSwizzle::k128);
    case ProbeLayout::kMnMajor:
      return ptx::MakeSmemDescriptor(address + k * 16, 128, kMostK * 16, ptx::SmemSwizzle::kNone);
    case ProbeLayout::kMnMajorSwizzle128:
      return ptx::MakeSmemDescriptor(address + k * 128, kMostK * 128, 1024, ptx::SmemSwizzle::k128);
  }
  return 0;
}

__device__ void Fill(uint8_t* operand, const uint16_t* source, int32_t k, ProbeLayout layout) {
  const bool swizzle = layout == ProbeLayout::kKMajorSwizzle128 || layout == ProbeLayout::kMnMajorSwizzle128;
  for (int32_t i = threadIdx.x; i < kProbeRows * k; i += blockDim.x) {
    int32_t at = Place(layout, i / k, i % k);
    if (swizzle) at ^= at >> 3 & 0x70;
    *reinterpret_cast<uint16_t*>(operand + at) = source[i];
  }
}

__device__ uint32_t Allocate(uint32_t* address, int32_t warp) {
  if (warp == 0) {
    ptx::Tcgen05Alloc(address, kProbeRows);
    ptx::Tcgen05RelinquishAllocPermit();
  }
  ptx::Tcgen05FenceBeforeThreadSync();
  __syncthreads();
  ptx::Tcgen05FenceAfterThreadSync();
  return *address;
}

__device__ void Free(uint32_t tmem, int32_t warp) {
  ptx::Tcgen05FenceBeforeThreadSync();
  __syncthreads();
  ptx::Tcgen05FenceAfterThreadSync();
  if (warp == 0) ptx::Tcgen05Dealloc(tmem, kProbeRows);
}

__global__ void __launch_bounds__(128)
    ProductKernel(const uint16_t* a, const uint16_t* b, float* d, int32_t k, ProbeLayout a_layout,
                  ProbeLayout b_layout, int32_t offset) {
  extern __shared__ uint8_t base[];
  __shared__ uint64_t done;
  __shared__ uint32_t address;
  uint8_t* a_operand = base + (1024 - ptx::SharedAddress(base) % 1024) % 1024 + offset;
  uint8_t* b_operand = a_operand + kOperandBytes;
  const int32_t warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    ptx::MbarrierInit(&done, 1);
    ptx::FenceBarrierInit();
  }
  __syncwarp();
  Fill(a_operand, a, k, a_layout);
  Fill(b_operand, b, k, b_layout);
  ptx::FenceProxyAsyncShared();
  const uint32_t tmem = Allocate(&address, warp);
  if (warp == 0 && ptx::ElectSync()) {
    const uint32_t instruction = ptx::MakeBf16InstructionDescriptor(
        kProbeRows, kProbeRows, IsMnMajor(a_layout) ? ptx::Major::kMn : ptx::Major::kK,
        IsMnMajor(b_layout) ? ptx::Major::kMn : ptx::Major::kK);
    for (int32_t step = 0; step < k; step += 16) {
      ptx::Tcgen05MmaF16(tmem, Describe(a_layout, ptx::SharedAddress(a_operand), step),
                         Describe(b_layout, ptx::SharedAddress(b_operand), step), instruction, step > 0);
    }
    ptx::Tcgen05Commit(&done);
  }
  __syncwarp();
  ptx::MbarrierWait(&done, 0);
  ptx::Tcgen05FenceAfterThreadSync();
  for (int32_t column = 0; column < kProbeRows; column += 16) {
    uint32_t values[16];
    ptx::Tcgen05Ld32x32b(values, ptx::TmemLane(tmem, warp * 32) + column);
    ptx::Tcgen05WaitLd(values);
    for (int32_t i = 0; i < 16; ++i) d[threadIdx.x * kProbeRows + column + i] = __uint_as_float(values[i]);
  }
  Free(tmem, warp);
}

// Lane l gives (l / 4, 2 (l % 4) + {0, 1}) and the same of row + 8: 16 lanes of 8 columns.
__device__ void Store16x256b(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("tcgen05.st.sync.aligned.16x256b.x1.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

__global__ void __launch_bounds__(128) StoresKernel(uint32_t* out) {
  __shared__ uint32_t address;
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t tmem = ptx::TmemLane(Allocate(&address, warp), warp * 32);
  uint32_t values[8];
  for (int32_t store = 0; store < 3; ++store) {
    for (int32_t i = 0; i < 8; ++i) values[i] = threadIdx.x * 32 + store * 8 + i;
    ptx::Tcgen05St32x32b(tmem + store * 8, values);
  }
  for (int32_t half = 0; half < 2; ++half) {
    uint32_t parts[4];
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t row = warp * 32 + half * 16 + lane / 4 + i / 2 * 8;
      parts[i] = row * 32 + 24 + lane % 4 * 2 + i % 2;
    }
    Store16x256b(ptx::TmemLane(tmem, half * 16) + 24, parts);
  }
  ptx::Tcgen05WaitSt();
  for (int32_t column = 0; column < 32; column += 8) {
    ptx::Tcgen05Ld32x32b(values, tmem + column);
    ptx::Tcgen05WaitLd(values);
    for (int32_t i = 0; i < 8; ++i) out[threadIdx.x * 32 + column + i] = values[i];
  }
  Free(address, warp);
}

__global__ void SharedMemoryKernel(int32_t* out) { *out = 1; }

}  // namespace

cudaError_t ProbeProduct(const void* a, const void* b, float* d, int32_t k, ProbeLayout a_layout,
                         ProbeLayout b_layout, int32_t offset) {
  const int32_t bytes = 1024 + offset + 2 * kOperandBytes;
  const cudaError_t status =
      cudaFuncSetAttribute(ProductKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  ProductKernel<<<1, 128, bytes>>>(static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b), d, k,
                                   a_layout, b_layout, offset);
  return cudaGetLastError();
}

cudaError_t ProbeStores(uint32_t* out) {
  StoresKernel<<<1, 128>>>(out);
  return cudaGetLastError();
}

cudaError_t ProbeSharedMemory(int32_t* out, int32_t bytes) {
  const cudaError_t status =
      cudaFuncSetAttribute(SharedMemoryKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  SharedMemoryKernel<<<1, 1, bytes>>>(out);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
