#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_LAUNCH_SM90_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_LAUNCH_SM90_CUH_

#include <algorithm>

#include "kernels/cuda/fmha/fmha_prefill_launch.h"
#include "kernels/cuda/fmha/fmha_prefill_sm90.cuh"
#include "kernels/cuda/launch.h"

namespace tessera::cuda {

// Launches a CTA an SM, or an item where there are fewer of those.
template <class Traits>
cudaError_t LaunchFmhaPrefillSm90(const FmhaPrefillArgs& args, const FmhaPrefillMaps& maps, int32_t num_sms,
                                  cudaStream_t stream) {
  auto* kernel = FmhaPrefillKernel<Traits>;
  static const cudaError_t configured =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  if (configured != cudaSuccess) return configured;
  const int64_t most_tiles = int64_t{args.p.num_tokens} * args.group / Traits::kRows + args.p.num_chunks;
  const int32_t num_ctas = static_cast<int32_t>(std::min<int64_t>(num_sms, most_tiles * args.p.num_kv_heads));
  return LaunchDependent(kernel, num_ctas, Traits::kThreads, Traits::kSharedBytes, stream, args, maps.k,
                         maps.v);
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_LAUNCH_SM90_CUH_
