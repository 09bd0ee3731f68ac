// Launchers of the FMHA decode kernels, one instantiation a file so that they compile side by side.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_H_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::cuda {

struct FmhaDecodeArgs;

// How TMA sees the queries and the caches.
struct FmhaTensorMaps {
  CUtensorMap q;  // [token][query head][dim], boxes of one KV head's heads, q_len tokens, 64 dimensions
  CUtensorMap
      k;  // [block, KV head, slot][dim], boxes of min(block_size, kFmhaTileKeys) slots (with key_slots: 1), 64 dimensions
  CUtensorMap v;
};

// Launches the kernel for a head dimension with `rows` query rows an item: 8, 16, 32 or 64, as far as the architecture
// takes them.
using FmhaDecodeLauncher = cudaError_t(const FmhaDecodeArgs& args, int32_t rows, const FmhaTensorMaps& maps,
                                       int32_t num_sms, cudaStream_t stream);
FmhaDecodeLauncher LaunchFmhaDecodeSm90D64, LaunchFmhaDecodeSm90D128, LaunchFmhaDecodeSm90D256,
    LaunchFmhaDecodeSm90D512, LaunchFmhaDecodeSm90Mla, LaunchFmhaDecodeSm90E4m3D64,
    LaunchFmhaDecodeSm90E4m3D128, LaunchFmhaDecodeSm90E4m3D256, LaunchFmhaDecodeSm90E4m3D512,
    LaunchFmhaDecodeSm90E4m3Mla;
FmhaDecodeLauncher LaunchFmhaDecodeSm100D64, LaunchFmhaDecodeSm100D128, LaunchFmhaDecodeSm100D256,
    LaunchFmhaDecodeSm100D512, LaunchFmhaDecodeSm100Mla;

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_LAUNCH_H_
