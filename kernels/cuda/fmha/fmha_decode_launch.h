// Launchers of the FMHA decode kernels, one instantiation a file so that they compile side by side.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_H_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::cuda {

struct FmhaDecodeArgs;

// Launches the kernel for a head dimension with `row_tiles` (1, 2 or 4) tiles of 8 query rows.
cudaError_t LaunchFmhaDecodeSm90D64(const FmhaDecodeArgs& args, int32_t row_tiles, const CUtensorMap& k_map,
                                    const CUtensorMap& v_map, int32_t num_sms, cudaStream_t stream);
cudaError_t LaunchFmhaDecodeSm90D128(const FmhaDecodeArgs& args, int32_t row_tiles, const CUtensorMap& k_map,
                                     const CUtensorMap& v_map, int32_t num_sms, cudaStream_t stream);
cudaError_t LaunchFmhaDecodeSm90D256(const FmhaDecodeArgs& args, int32_t row_tiles, const CUtensorMap& k_map,
                                     const CUtensorMap& v_map, int32_t num_sms, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_H_
