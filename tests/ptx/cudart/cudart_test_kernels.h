// Kernels for cudart_test.cc, each behind a host function that launches it as nvcc's host code does.
#ifndef TESSERA_TESTS_PTX_CUDART_CUDART_TEST_KERNELS_H_
#define TESSERA_TESTS_PTX_CUDART_CUDART_TEST_KERNELS_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::ptx {

// Parameters of awkward sizes, to be found again at their offsets.
struct Mixed {
  char a;
  double b;
  short c[3];
  alignas(32) int d;
};

// out[0 .. n) = base + symbol[i % 4] + offset
cudaError_t LaunchAddSymbols(int* out, int n, int base, cudaStream_t stream);
cudaError_t SetSymbols(const int (&values)[4], int offset);
cudaError_t ReadOffset(int* offset);
const void* OffsetSymbol();

// *out = in[index], by one thread
cudaError_t LaunchReadAt(const int* in, int64_t index, int* out, cudaStream_t stream);
// *out += 1
cudaError_t LaunchIncrement(int* out, cudaStream_t stream);
// out: a, b, c[0], c[1], c[2], d, x, y
cudaError_t LaunchMixed(char x, const Mixed& mixed, short y, double* out);
// out[i] = in[31 - i] through 4 * 32 of `shared_bytes` of dynamic shared memory
cudaError_t LaunchThroughShared(const int* in, int* out, int shared_bytes);
cudaError_t AllowShared(int bytes);
cudaError_t SharedOccupancy(int threads, int shared_bytes, int* ctas);
// out[cta] = rank in the cluster + 100 * CTAs in the cluster, launched with cudaLaunchKernelExC
cudaError_t LaunchClusters(int ctas, int cluster, int* out);
// out[0 .. 64 x 8) = the box at (column, row) of a bf16 tensor, as it lies in shared memory
cudaError_t LaunchTensorBox(const CUtensorMap& map, int column, int row, uint16_t* out);
// out = in, 1024 bytes, through shared memory: cp.async.bulk both ways. `wait`: for the store, before the CTA ends.
cudaError_t LaunchBulkCopy(const uint8_t* in, uint8_t* out, bool wait);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_CUDART_CUDART_TEST_KERNELS_H_
