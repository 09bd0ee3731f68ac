#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_CUH_

#include <algorithm>

#include "kernels/cuda/fmha/fmha_decode_common.cuh"
#include "kernels/cuda/fmha/fmha_decode_launch.h"
#include "kernels/cuda/fmha/fmha_decode_split.h"
#include "kernels/cuda/launch.h"

namespace tessera::cuda {

// Sets a kernel's shared memory and finds how many of its CTAs an SM holds.
template <class Kernel>
cudaError_t ConfigureFmhaDecode(Kernel* kernel, int32_t threads, int32_t shared_bytes, int32_t* ctas_per_sm) {
  cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
  if (status != cudaSuccess) return status;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(ctas_per_sm, kernel, threads, shared_bytes);
}

// Launches as many CTAs of `kKernel` as the device holds. `maps` follow the arguments.
template <class Traits, auto* kKernel, class... Maps>
cudaError_t LaunchFmhaDecode(const FmhaDecodeArgs& args, int32_t num_sms, cudaStream_t stream,
                             const Maps&... maps) {
  static int32_t ctas_per_sm = 0;
  static const cudaError_t configured =
      ConfigureFmhaDecode(kKernel, Traits::kThreads, Traits::kSharedBytes, &ctas_per_sm);
  if (configured != cudaSuccess) return configured;
  const int64_t most_items = int64_t{args.p.num_sequences} * args.p.num_kv_heads * kFmhaMaxSplits;
  const int32_t num_ctas =
      static_cast<int32_t>(std::min<int64_t>(int64_t{num_sms} * ctas_per_sm, most_items));
  return LaunchDependent(kKernel, num_ctas, Traits::kThreads, Traits::kSharedBytes, stream, args, maps...);
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_CUH_
