#include "kernels/cuda/fmha/fmha_prefill_launch_sm90.cuh"

namespace tessera::cuda {

cudaError_t LaunchFmhaPrefillSm90D64(const FmhaPrefillArgs& args, const FmhaPrefillMaps& maps,
                                     int32_t num_sms, cudaStream_t stream) {
  return LaunchFmhaPrefillSm90<FmhaPrefillTraits<64, 3, true, FmhaTotals::kShared>>(args, maps, num_sms,
                                                                                    stream);
}

}  // namespace tessera::cuda
