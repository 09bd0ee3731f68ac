#include "kernels/cuda/linear/nvfp4_gemm_sm100.cuh"

namespace tessera::cuda {
namespace {

template <class Traits, Nvfp4Epilogue kEpilogue>
auto* FindKernel() {
  if constexpr (Traits::kPair) {
    return Nvfp4GemmPairKernel<Traits, kEpilogue>;
  } else {
    return Nvfp4GemmKernel<Traits, kEpilogue>;
  }
}

template <class Traits, Nvfp4Epilogue kEpilogue>
cudaError_t Launch(const Nvfp4GemmParams& params, cudaStream_t stream) {
  auto* kernel = FindKernel<Traits, kEpilogue>();
  static const cudaError_t configured =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  if (configured != cudaSuccess) return configured;
  const dim3 grid(params.weights.n / kNvfp4RowTile, NumTiles(params.tiles));
  kernel<<<grid, Traits::kThreads, Traits::kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

template <int kSlots, bool kPair = false>
cudaError_t LaunchEpilogue(const Nvfp4GemmParams& params, cudaStream_t stream) {
  using Traits = Nvfp4GemmTraits<kSlots, kPair>;
  switch (params.epilogue) {
    case Nvfp4Epilogue::kStore:
      return Launch<Traits, Nvfp4Epilogue::kStore>(params, stream);
    case Nvfp4Epilogue::kAdd:
      return Launch<Traits, Nvfp4Epilogue::kAdd>(params, stream);
    case Nvfp4Epilogue::kSwiglu:
      return Launch<Traits, Nvfp4Epilogue::kSwiglu>(params, stream);
    case Nvfp4Epilogue::kSwigluNvfp4:
      return Launch<Traits, Nvfp4Epilogue::kSwigluNvfp4>(params, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t LaunchNvfp4GemmSm100(const Nvfp4GemmParams& params, cudaStream_t stream) {
  switch (params.tiles.tile_slots) {
    case 16:
      return LaunchEpilogue<16>(params, stream);
    case 32:
      return LaunchEpilogue<32>(params, stream);
    case 64:
      return LaunchEpilogue<64>(params, stream);
    case 128:
      return params.weights.n / kNvfp4RowTile % 2 == 0 ? LaunchEpilogue<128, true>(params, stream)
                                                       : LaunchEpilogue<128>(params, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace tessera::cuda
