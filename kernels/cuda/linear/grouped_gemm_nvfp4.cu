#include "kernels/cuda/linear/grouped_gemm_launch.cuh"

namespace tessera::cuda {

cudaError_t LaunchGroupedGemmNvfp4(const GroupedGemmParams& params, const GemmGeometry& geometry,
                                   int32_t slot_tiles, cudaStream_t stream) {
  return LaunchGroupedGemm<WeightFormat::kNvfp4>(params, geometry, slot_tiles, stream);
}

}  // namespace tessera::cuda
