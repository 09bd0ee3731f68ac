#include "kernels/cuda/fmha/fmha_decode_launch_sm90.cuh"

namespace tessera::cuda {

cudaError_t LaunchFmhaDecodeSm90D256(const FmhaDecodeArgs& args, int32_t rows, const FmhaTensorMaps& maps,
                                     int32_t num_sms, cudaStream_t stream) {
  return LaunchFmhaDecodeSm90<256, 256, FmhaKvFormat::kBf16, 8, 16, 32>(args, rows, maps, num_sms, stream);
}

}  // namespace tessera::cuda
