#ifndef TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LAUNCH_H_
#define TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LAUNCH_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/linear/grouped_gemm.h"

namespace tessera::cuda {

struct GemmGeometry;

// Plain activations, one instantiation file a weight format.
cudaError_t LaunchGroupedGemmNvfp4(const GroupedGemmParams& params, const GemmGeometry& geometry, dim3 grid,
                                   cudaStream_t stream);
cudaError_t LaunchGroupedGemmBf16(const GroupedGemmParams& params, const GemmGeometry& geometry, dim3 grid,
                                  cudaStream_t stream);

// Activations in the order of the steps, described by `x_map` in boxes of 32 rows; both formats. `slot_tiles` is the most
// there can be.
cudaError_t LaunchGroupedGemmLargeSm90(const GroupedGemmParams& params, const GemmGeometry& geometry,
                                       int32_t slot_tiles, const CUtensorMap& x_map, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_GROUPED_GEMM_LAUNCH_H_
