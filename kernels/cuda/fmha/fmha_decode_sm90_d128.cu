#include "kernels/cuda/fmha/fmha_decode_launch.cuh"

namespace tessera::cuda {

cudaError_t LaunchFmhaDecodeSm90D128(const FmhaDecodeArgs& args, int32_t row_tiles, const CUtensorMap& k_map,
                                  const CUtensorMap& v_map, int32_t num_sms, cudaStream_t stream) {
  switch (row_tiles) {
    case 1:
      return LaunchFmhaDecode<FmhaDecodeTraits<128, 1>>(args, k_map, v_map, num_sms, stream);
    case 2:
      return LaunchFmhaDecode<FmhaDecodeTraits<128, 2>>(args, k_map, v_map, num_sms, stream);
    case 4:
      return LaunchFmhaDecode<FmhaDecodeTraits<128, 4>>(args, k_map, v_map, num_sms, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace tessera::cuda
