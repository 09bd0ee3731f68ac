#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LAUNCH_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LAUNCH_CUH_

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/grouped_gemm_launch.h"
#include "kernels/cuda/linear/grouped_gemm_sm90.cuh"
#include "kernels/cuda/linear/grouped_gemm_stream.cuh"

namespace tessera::cuda {

inline constexpr int32_t kMostSharedOfCta = 227 * 1024, kSharedOfSm = 228 * 1024, kReservedOfCta = 1024;

template <WeightFormat kFormat, int kTokenTiles, GemmEpilogue kEpilogue>
cudaError_t LaunchTiles(const GroupedGemmParams& params, const GemmGeometry& geometry, int32_t slot_tiles,
                        cudaStream_t stream) {
  const dim3 grid((geometry.row_tiles + kGemmWarps - 1) / kGemmWarps, slot_tiles);
  constexpr int32_t kShared = kGemmWarps * PartialSums<kTokenTiles>::kFloats * 4;
  static_assert(kShared <= 48 * 1024);
  return LaunchDependent(GroupedGemmKernel<kFormat, kTokenTiles, kEpilogue>, grid, 32 * kGemmWarps, kShared,
                         stream, params, geometry);
}

template <WeightFormat kFormat, int kTokenTiles, GemmEpilogue kEpilogue>
cudaError_t LaunchStream(const GroupedGemmParams& params, const GemmGeometry& geometry, int32_t slot_tiles,
                         cudaStream_t stream) {
  using Gemm = StreamGemm<kFormat, kTokenTiles>;
  auto* kernel = GroupedGemmStreamKernel<Gemm, kEpilogue>;
  static const cudaError_t configured =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedOfCta);
  if (configured != cudaSuccess) return configured;
  static_assert(Gemm::kRingBytes + Gemm::kBarrierBytes +
                    2 * kMostStreamChunks * PartialSums<kTokenTiles>::kFloats * 4 <=
                kMostSharedOfCta);
  const int32_t shared = Gemm::SharedBytes(geometry.tiles_per_cta * geometry.chunks);
  const int32_t resident = std::min(Gemm::kCtasPerSm, kSharedOfSm / (shared + kReservedOfCta));
  const int64_t items =
      int64_t{slot_tiles} * ((geometry.row_tiles + geometry.tiles_per_cta - 1) / geometry.tiles_per_cta);
  const auto ctas = static_cast<uint32_t>(std::min<int64_t>(items, std::max(1, ThisDevice().sms) * resident));
  return LaunchDependent(kernel, ctas, 32 * kGemmWarps, shared, stream, params, geometry);
}

template <WeightFormat kFormat, GemmEpilogue kEpilogue>
cudaError_t LaunchTile(const GroupedGemmParams& params, const GemmGeometry& geometry, int32_t slot_tiles,
                       cudaStream_t stream) {
  const bool streams = geometry.chunks <= kMostStreamChunks;
  if (params.tile_slots == 8 && streams) {
    return LaunchStream<kFormat, 1, kEpilogue>(params, geometry, slot_tiles, stream);
  }
  if (params.tile_slots == 16 && streams) {
    return LaunchStream<kFormat, 2, kEpilogue>(params, geometry, slot_tiles, stream);
  }
  if (params.tile_slots <= 32) {
    return LaunchTiles<kFormat, 4, kEpilogue>(params, geometry, slot_tiles, stream);
  }
  return LaunchTiles<kFormat, 8, kEpilogue>(params, geometry, slot_tiles, stream);
}

template <WeightFormat kFormat>
cudaError_t LaunchGroupedGemm(const GroupedGemmParams& params, const GemmGeometry& geometry,
                              int32_t slot_tiles, cudaStream_t stream) {
  switch (params.epilogue) {
    case GemmEpilogue::kStore:
      return LaunchTile<kFormat, GemmEpilogue::kStore>(params, geometry, slot_tiles, stream);
    case GemmEpilogue::kAdd:
      return LaunchTile<kFormat, GemmEpilogue::kAdd>(params, geometry, slot_tiles, stream);
    case GemmEpilogue::kSwiglu:
      return LaunchTile<kFormat, GemmEpilogue::kSwiglu>(params, geometry, slot_tiles, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LAUNCH_CUH_
