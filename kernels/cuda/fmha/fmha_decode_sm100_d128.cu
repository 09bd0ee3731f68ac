#include "kernels/cuda/fmha/fmha_decode_launch_sm100.cuh"

namespace tessera::cuda {

cudaError_t LaunchFmhaDecodeSm100D128(const FmhaDecodeArgs& args, int32_t rows, const FmhaTensorMaps& maps,
                                      int32_t num_sms, cudaStream_t stream) {
  return LaunchFmhaDecodeSm100<128, 128, 8, 16, 32>(args, rows, maps, num_sms, stream);
}

}  // namespace tessera::cuda
