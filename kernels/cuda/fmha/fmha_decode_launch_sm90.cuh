#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_SM90_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_SM90_CUH_

#include "kernels/cuda/fmha/fmha_decode_launch.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm90.cuh"

namespace tessera::cuda {

// Launches the instantiation among `kRows` for `rows` query rows an item.
template <int kKeyDim, int kValueDim, FmhaKvFormat kFormat, int... kRows>
cudaError_t LaunchFmhaDecodeSm90(const FmhaDecodeArgs& args, int32_t rows, const FmhaTensorMaps& maps,
                                 int32_t num_sms, cudaStream_t stream) {
  cudaError_t status = cudaErrorInvalidValue;
  const auto launch = [&]<class Traits>(Traits) {
    status = LaunchFmhaDecode<Traits, FmhaDecodeKernel<Traits>>(args, num_sms, stream, maps);
  };
  ((rows == kRows ? launch(FmhaDecodeTraits<kKeyDim, kValueDim, kRows, kFormat>()) : void()), ...);
  return status;
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_SM90_CUH_
