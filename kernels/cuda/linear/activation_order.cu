#include "kernels/cuda/linear/activation_order.h"

#include <algorithm>

#include "kernels/cuda/launch.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kGroupsAWarp = 8;  // in flight

// A warp a group of 64: a lane moves two elements.
__global__ void __launch_bounds__(kThreads) OrderByStepsKernel(uint32_t* x, int64_t groups) {
  GridDependencyWait();
  GridDependencyLaunch();
  const int32_t lane = threadIdx.x % 32;
  const int64_t first = (int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32) * kGroupsAWarp;
  uint32_t pairs[kGroupsAWarp];
#pragma unroll
  for (int32_t i = 0; i < kGroupsAWarp; ++i) {
    if (first + i < groups) pairs[i] = x[(first + i) * 32 + lane];
  }
  __syncwarp();
#pragma unroll
  for (int32_t i = 0; i < kGroupsAWarp; ++i) {
    if (first + i < groups) x[(first + i) * 32 + StepPosition(lane * 2) / 2] = pairs[i];
  }
}

// A warp a row.
__global__ void __launch_bounds__(kThreads)
    GatherRowsKernel(const uint4* x, const int32_t* input_rows, int64_t rows, int32_t pieces, uint4* out) {
  GridDependencyWait();
  GridDependencyLaunch();
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const uint4* source = x + int64_t{input_rows[row]} * pieces;
  uint4* target = out + row * pieces;
#pragma unroll 4
  for (int32_t i = threadIdx.x % 32; i < pieces; i += 32) target[i] = source[i];
}

}  // namespace

const char* GatherRows(const void* x, const int32_t* input_rows, int64_t rows, int32_t k, void* out,
                       cudaStream_t stream) {
  if (x == nullptr || input_rows == nullptr || out == nullptr)
    return "gather rows: a required pointer is null";
  if (rows < 1 || k < 64 || k % 64 != 0)
    return "gather rows: rows must be positive, k a positive multiple of 64";
  const int64_t ctas = (rows + kThreads / 32 - 1) / (kThreads / 32);
  if (ctas > 0x7FFFFFFF) return "gather rows: too many rows";
  const cudaError_t status =
      LaunchDependent(GatherRowsKernel, static_cast<uint32_t>(ctas), kThreads, 0, stream,
                      static_cast<const uint4*>(x), input_rows, rows, k / 8, static_cast<uint4*>(out));
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

const char* OrderBySteps(void* x, int64_t rows, int32_t k, cudaStream_t stream) {
  if (x == nullptr) return "order by steps: x is null";
  if (rows < 1 || k < 64 || k % 64 != 0)
    return "order by steps: rows must be positive, k a positive multiple of 64";
  constexpr int64_t kGroupsACta = kThreads / 32 * kGroupsAWarp;
  const int64_t groups = rows * (k / 64), ctas = (groups + kGroupsACta - 1) / kGroupsACta;
  if (ctas > 0x7FFFFFFF) return "order by steps: too many rows";
  const cudaError_t status = LaunchDependent(OrderByStepsKernel, static_cast<uint32_t>(ctas), kThreads, 0,
                                             stream, static_cast<uint32_t*>(x), groups);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace tessera::cuda
