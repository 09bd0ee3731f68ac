#include "kernels/cuda/linear/grouped_gemm_launch.cuh"

namespace tessera::cuda {

cudaError_t LaunchGroupedGemmBf16(const GroupedGemmParams& params, const GemmGeometry& geometry, dim3 grid,
                                  cudaStream_t stream) {
  return LaunchGroupedGemm<WeightFormat::kBf16>(params, geometry, grid, stream);
}

}  // namespace tessera::cuda
