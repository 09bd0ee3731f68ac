#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/grouped_gemm_large_sm90.cuh"
#include "kernels/cuda/linear/grouped_gemm_launch.h"

namespace tessera::cuda {
namespace {

template <WeightFormat kFormat, GemmEpilogue kEpilogue>
cudaError_t LaunchOne(const GroupedGemmParams& params, const GemmGeometry& geometry, int32_t slot_tiles,
                      const CUtensorMap& x_map, cudaStream_t stream) {
  using Gemm = LargeGemm<kFormat>;
  auto* kernel = GroupedGemmLargeKernel<kFormat, kEpilogue>;
  static const cudaError_t configured =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Gemm::kSharedBytes);
  if (configured != cudaSuccess) return configured;
  const int64_t most = int64_t{slot_tiles} * ((geometry.row_tiles + Gemm::kRowTiles - 1) / Gemm::kRowTiles);
  const auto ctas = static_cast<uint32_t>(std::min<int64_t>(most, std::max(1, ThisDevice().sms)));
  return LaunchDependent(kernel, ctas, Gemm::kThreads, Gemm::kSharedBytes, stream, params, geometry, x_map);
}

template <WeightFormat kFormat>
cudaError_t LaunchFormat(const GroupedGemmParams& params, const GemmGeometry& geometry, int32_t slot_tiles,
                         const CUtensorMap& x_map, cudaStream_t stream) {
  switch (params.epilogue) {
    case GemmEpilogue::kStore:
      return LaunchOne<kFormat, GemmEpilogue::kStore>(params, geometry, slot_tiles, x_map, stream);
    case GemmEpilogue::kAdd:
      return LaunchOne<kFormat, GemmEpilogue::kAdd>(params, geometry, slot_tiles, x_map, stream);
    case GemmEpilogue::kSwiglu:
      return LaunchOne<kFormat, GemmEpilogue::kSwiglu>(params, geometry, slot_tiles, x_map, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t LaunchGroupedGemmLargeSm90(const GroupedGemmParams& params, const GemmGeometry& geometry,
                                       int32_t slot_tiles, const CUtensorMap& x_map, cudaStream_t stream) {
  return params.weights.format == WeightFormat::kNvfp4
             ? LaunchFormat<WeightFormat::kNvfp4>(params, geometry, slot_tiles, x_map, stream)
             : LaunchFormat<WeightFormat::kBf16>(params, geometry, slot_tiles, x_map, stream);
}

}  // namespace tessera::cuda
