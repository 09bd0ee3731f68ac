#include "kernels/cuda/fmha/fmha_decode_launch_sm90.cuh"

namespace tessera::cuda {

cudaError_t LaunchFmhaDecodeSm90E4m3Mla(const FmhaDecodeArgs& args, int32_t rows, const FmhaTensorMaps& maps,
                                        int32_t num_sms, cudaStream_t stream) {
  return LaunchFmhaDecodeSm90<576, 512, FmhaKvFormat::kE4m3, 16, 32>(args, rows, maps, num_sms, stream);
}

}  // namespace tessera::cuda
