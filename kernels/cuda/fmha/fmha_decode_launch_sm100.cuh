#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_SM100_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_SM100_CUH_

#include "kernels/cuda/fmha/fmha_decode_launch.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm100.cuh"

namespace tessera::cuda {

// Launches the instantiation among `kRows` for `rows` query rows an item.
template <int kKeyDim, int kValueDim, int... kRows>
cudaError_t LaunchFmhaDecodeSm100(const FmhaDecodeArgs& args, int32_t rows, const FmhaTensorMaps& maps,
                                  int32_t num_sms, cudaStream_t stream) {
  cudaError_t status = cudaErrorInvalidValue;
  const auto launch = [&]<class Traits>(Traits) {
    status = LaunchFmhaDecode<Traits, FmhaDecodeSm100Kernel<Traits>>(args, num_sms, stream, maps);
  };
  if (args.p.kv_format == FmhaKvFormat::kE4m3) {
    ((rows == kRows ? launch(FmhaDecodeSm100Traits<kKeyDim, kValueDim, kRows, FmhaKvFormat::kE4m3>())
                    : void()),
     ...);
  } else {
    ((rows == kRows ? launch(FmhaDecodeSm100Traits<kKeyDim, kValueDim, kRows, FmhaKvFormat::kBf16>())
                    : void()),
     ...);
  }
  return status;
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_SM100_CUH_
