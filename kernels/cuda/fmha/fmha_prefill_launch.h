// Launchers of the FMHA prefill kernels, one instantiation a file so that they compile side by side.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_LAUNCH_H_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_LAUNCH_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_prefill.h"

namespace tessera::cuda {

struct FmhaPrefillArgs;

// How TMA sees the caches: [block, KV head, slot][dim], boxes of min(block_size, 64) slots, 64 dimensions.
struct FmhaPrefillMaps {
  CUtensorMap k, v;
};

using FmhaPrefillLauncher = cudaError_t(const FmhaPrefillArgs& args, const FmhaPrefillMaps& maps,
                                        int32_t num_sms, cudaStream_t stream);
FmhaPrefillLauncher LaunchFmhaPrefillSm90D64, LaunchFmhaPrefillSm90D128, LaunchFmhaPrefillSm90D256;

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_LAUNCH_H_
