#include "kernels/cuda/fmha/fmha_decode_launch.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm90.cuh"

namespace tessera::cuda {
namespace {

template <int kRowTiles, int kTeams = 1>
cudaError_t LaunchRows(const FmhaDecodeArgs& args, const FmhaTensorMaps& maps, int32_t num_sms,
                       cudaStream_t stream) {
  using Traits = FmhaDecodeTraits<128, kRowTiles, kTeams>;
  return LaunchFmhaDecode<Traits, FmhaDecodeKernel<Traits>>(args, num_sms, stream, maps.k, maps.v);
}

}  // namespace

cudaError_t LaunchFmhaDecodeSm90D128(const FmhaDecodeArgs& args, int32_t rows, const FmhaTensorMaps& maps,
                                     int32_t num_sms, cudaStream_t stream) {
  switch (rows) {
    case 8:
      return LaunchRows<1>(args, maps, num_sms, stream);
    case 16:
      return LaunchRows<2>(args, maps, num_sms, stream);
    case 32:
      return LaunchRows<4>(args, maps, num_sms, stream);
    case 64:
      return LaunchRows<4, 2>(args, maps, num_sms, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace tessera::cuda
