#include "kernels/cuda/fmha/fmha_decode_launch_sm100.cuh"

namespace tessera::cuda {

cudaError_t LaunchFmhaDecodeSm100D512(const FmhaDecodeArgs& args, int32_t rows, const FmhaTensorMaps& maps,
                                      int32_t num_sms, cudaStream_t stream) {
  return LaunchFmhaDecodeSm100<512, 512, 16, 64>(args, rows, maps, num_sms, stream);
}

}  // namespace tessera::cuda
