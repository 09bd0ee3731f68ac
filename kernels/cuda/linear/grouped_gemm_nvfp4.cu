#include "kernels/cuda/linear/grouped_gemm_launch.cuh"

namespace tessera::cuda {

cudaError_t LaunchGroupedGemmNvfp4(const GroupedGemmParams& params, const GemmGeometry& geometry, dim3 grid,
                                   cudaStream_t stream) {
  return LaunchGroupedGemm<WeightFormat::kNvfp4>(params, geometry, grid, stream);
}

}  // namespace tessera::cuda
