#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LAUNCH_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LAUNCH_CUH_

#include <utility>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/grouped_gemm_launch.h"
#include "kernels/cuda/linear/grouped_gemm_sm90.cuh"

namespace tessera::cuda {

template <WeightFormat kFormat, int kTokenTiles, GemmEpilogue kEpilogue>
cudaError_t LaunchOne(const GroupedGemmParams& params, const GemmGeometry& geometry, dim3 grid,
                      cudaStream_t stream) {
  // Many slots: enough work in one tile, and the activations are shared by more warps.
  constexpr bool kWarpOwnsTile = kTokenTiles >= 4;
  auto* kernel = GroupedGemmKernel<kFormat, kTokenTiles, kEpilogue, kWarpOwnsTile>;
  const int32_t parts = kWarpOwnsTile ? 1 : geometry.chunks;
  const int32_t shared = geometry.tiles_per_cta *
                         (parts * PartialSums<kTokenTiles>::kFloats + RowScales::kFloatsPerTile) * 4;
  constexpr int32_t kMostShared = 227 * 1024;
  if (shared > kMostShared) return cudaErrorInvalidValue;
  static const cudaError_t configured =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared);
  if (configured != cudaSuccess) return configured;
  return LaunchDependent(kernel, grid, 32 * kGemmWarps, shared, stream, params, geometry);
}

template <WeightFormat kFormat, GemmEpilogue kEpilogue>
cudaError_t LaunchTile(const GroupedGemmParams& params, const GemmGeometry& geometry, dim3 grid,
                       cudaStream_t stream) {
  switch (params.tile_slots) {
    case 8:
      return LaunchOne<kFormat, 1, kEpilogue>(params, geometry, grid, stream);
    case 16:
      return LaunchOne<kFormat, 2, kEpilogue>(params, geometry, grid, stream);
    case 32:
      return LaunchOne<kFormat, 4, kEpilogue>(params, geometry, grid, stream);
    case 64:
      return LaunchOne<kFormat, 8, kEpilogue>(params, geometry, grid, stream);
  }
  return cudaErrorInvalidValue;
}

template <WeightFormat kFormat>
cudaError_t LaunchGroupedGemm(const GroupedGemmParams& params, const GemmGeometry& geometry, dim3 grid,
                              cudaStream_t stream) {
  switch (params.epilogue) {
    case GemmEpilogue::kStore:
      return LaunchTile<kFormat, GemmEpilogue::kStore>(params, geometry, grid, stream);
    case GemmEpilogue::kAdd:
      return LaunchTile<kFormat, GemmEpilogue::kAdd>(params, geometry, grid, stream);
    case GemmEpilogue::kSwiglu:
      return LaunchTile<kFormat, GemmEpilogue::kSwiglu>(params, geometry, grid, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LAUNCH_CUH_
