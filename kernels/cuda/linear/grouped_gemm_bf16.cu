#include "kernels/cuda/linear/grouped_gemm_launch.cuh"

namespace tessera::cuda {

cudaError_t LaunchGroupedGemmBf16(const GroupedGemmParams& params, const GemmGeometry& geometry,
                                  int32_t slot_tiles, cudaStream_t stream) {
  return LaunchGroupedGemm<WeightFormat::kBf16>(params, geometry, slot_tiles, stream);
}

}  // namespace tessera::cuda
