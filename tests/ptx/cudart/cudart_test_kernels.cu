#include "tests/ptx/cudart/cudart_test_kernels.h"

#include <algorithm>

namespace tessera::ptx {
namespace {

__constant__ int symbols[4];
__device__ int offset_symbol = 7;

__global__ void AddSymbols(int* out, int n, int base) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = base + symbols[i % 4] + offset_symbol;
}

__global__ void ReadAt(const int* in, int64_t index, int* out) { *out = in[index]; }

__global__ void Increment(int* out) { *out += 1; }

__global__ void ReadMixed(char x, const __grid_constant__ Mixed mixed, short y, double* out) {
  out[0] = mixed.a;
  out[1] = mixed.b;
  for (int i = 0; i < 3; ++i) out[2 + i] = mixed.c[i];
  out[5] = mixed.d;
  out[6] = x;
  out[7] = y;
}

__global__ void ThroughShared(const int* in, int* out) {
  extern __shared__ int values[];
  values[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = values[31 - threadIdx.x];
}

__global__ void Clusters(int* out) {
  uint32_t rank, ctas;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ctas));
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<int>(rank + 100 * ctas);
}

__device__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ void InitBarrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(SharedAddress(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ void ExpectBytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(bytes)
               : "memory");
}

__device__ void WaitBarrier(uint64_t* barrier) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(SharedAddress(barrier))
        : "memory");
  }
}

__global__ void TensorBox(const __grid_constant__ CUtensorMap map, int column, int row, uint16_t* out) {
  __shared__ alignas(1024) uint16_t box[64 * 8];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) {
    InitBarrier(&barrier);
    ExpectBytes(&barrier, sizeof(box));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
        "%3}], [%4];" ::"r"(SharedAddress(box)),
        "l"(&map), "r"(column), "r"(row), "r"(SharedAddress(&barrier))
        : "memory");
  }
  __syncthreads();
  WaitBarrier(&barrier);
  for (int i = threadIdx.x; i < 64 * 8; i += blockDim.x) out[i] = box[i];
}

__global__ void BulkCopy(const uint8_t* in, uint8_t* out, bool wait) {
  __shared__ alignas(128) uint8_t bytes[1024];
  __shared__ uint64_t barrier;
  if (threadIdx.x != 0) return;
  InitBarrier(&barrier);
  ExpectBytes(&barrier, sizeof(bytes));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(
          SharedAddress(bytes)),
      "l"(in), "r"(SharedAddress(&barrier))
      : "memory");
  WaitBarrier(&barrier);
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(out),
               "r"(SharedAddress(bytes))
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  if (wait) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace

cudaError_t LaunchAddSymbols(int* out, int n, int base, cudaStream_t stream) {
  AddSymbols<<<(n + 31) / 32, 32, 0, stream>>>(out, n, base);
  return cudaGetLastError();
}

cudaError_t SetSymbols(const int (&values)[4], int offset) {
  const cudaError_t error = cudaMemcpyToSymbol(symbols, values, sizeof(values));
  return error != cudaSuccess ? error : cudaMemcpyToSymbol(offset_symbol, &offset, sizeof(offset));
}

cudaError_t ReadOffset(int* offset) { return cudaMemcpyFromSymbol(offset, offset_symbol, sizeof(*offset)); }

const void* OffsetSymbol() { return &offset_symbol; }

cudaError_t LaunchReadAt(const int* in, int64_t index, int* out, cudaStream_t stream) {
  ReadAt<<<1, 1, 0, stream>>>(in, index, out);
  return cudaGetLastError();
}

cudaError_t LaunchIncrement(int* out, cudaStream_t stream) {
  Increment<<<1, 1, 0, stream>>>(out);
  return cudaGetLastError();
}

cudaError_t LaunchMixed(char x, const Mixed& mixed, short y, double* out) {
  ReadMixed<<<1, 1>>>(x, mixed, y, out);
  return cudaGetLastError();
}

cudaError_t LaunchThroughShared(const int* in, int* out, int shared_bytes) {
  ThroughShared<<<1, 32, shared_bytes>>>(in, out);
  return cudaGetLastError();
}

cudaError_t AllowShared(int bytes) {
  return cudaFuncSetAttribute(ThroughShared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

cudaError_t SharedOccupancy(int threads, int shared_bytes, int* ctas) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(ctas, ThroughShared, threads, shared_bytes);
}

cudaError_t LaunchClusters(int ctas, int cluster, int* out) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(64);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = cluster;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, Clusters, out);
}

cudaError_t LaunchTensorBox(const CUtensorMap& map, int column, int row, uint16_t* out) {
  TensorBox<<<1, 32>>>(map, column, row, out);
  return cudaGetLastError();
}

cudaError_t LaunchBulkCopy(const uint8_t* in, uint8_t* out, bool wait) {
  BulkCopy<<<1, 32>>>(in, out, wait);
  return cudaGetLastError();
}

}  // namespace tessera::ptx
