#include "kernels/cuda/linear/grouped_gemm_large_sm90.cuh"
#include "kernels/cuda/linear/grouped_gemm_launch.h"

namespace tessera::cuda {
namespace {

template <WeightFormat kFormat, GemmEpilogue kEpilogue>
cudaError_t LaunchOne(const GroupedGemmParams& params, const GemmGeometry& geometry, dim3 grid,
                      cudaStream_t stream) {
  using Tile = LargeTile<kFormat>;
  auto* kernel = GroupedGemmLargeKernel<kFormat, kEpilogue>;
  static const cudaError_t configured =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  if (configured != cudaSuccess) return configured;
  kernel<<<grid, Tile::kThreads, Tile::kSharedBytes, stream>>>(params, geometry);
  return cudaGetLastError();
}

template <WeightFormat kFormat>
cudaError_t LaunchFormat(const GroupedGemmParams& params, const GemmGeometry& geometry, dim3 grid,
                         cudaStream_t stream) {
  switch (params.epilogue) {
    case GemmEpilogue::kStore:
      return LaunchOne<kFormat, GemmEpilogue::kStore>(params, geometry, grid, stream);
    case GemmEpilogue::kAdd:
      return LaunchOne<kFormat, GemmEpilogue::kAdd>(params, geometry, grid, stream);
    case GemmEpilogue::kSwiglu:
      return LaunchOne<kFormat, GemmEpilogue::kSwiglu>(params, geometry, grid, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t LaunchGroupedGemmLargeSm90(const GroupedGemmParams& params, const GemmGeometry& geometry,
                                       dim3 grid, cudaStream_t stream) {
  return params.weights.format == WeightFormat::kNvfp4
             ? LaunchFormat<WeightFormat::kNvfp4>(params, geometry, grid, stream)
             : LaunchFormat<WeightFormat::kBf16>(params, geometry, grid, stream);
}

}  // namespace tessera::cuda
