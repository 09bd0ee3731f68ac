// Between the checks and the kernels of nvfp4_gemm.h.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_LAUNCH_H_
#define TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/linear/nvfp4_gemm.h"
#include "kernels/host_device.h"

namespace tessera::cuda {

// Tiles of a launch, at most.
inline int32_t NumTiles(const SlotTiles& tiles) {
  return tiles.num_tiles ? tiles.max_tiles : (tiles.num_slots + tiles.tile_slots - 1) / tiles.tile_slots;
}

struct SlotTile {
  int32_t matrix, first, end;  // no slots where the tile does not exist
};

TESSERA_HOST_DEVICE SlotTile FindTile(const SlotTiles& tiles, int32_t tile) {
  SlotTile t = {0, tile * tiles.tile_slots, tiles.num_slots};
  if (tiles.num_tiles != nullptr) {
    if (tile >= *tiles.num_tiles) return {0, 0, 0};
    t = {tiles.tile_expert[tile], tiles.tile_slot_range[tile].x, tiles.tile_slot_range[tile].y};
  }
  if (t.end > t.first + tiles.tile_slots) t.end = t.first + tiles.tile_slots;
  return t;
}

cudaError_t LaunchQuantizeNvfp4(const void* x, const int32_t* rows, int32_t x_k, const SlotTiles& tiles,
                                const Nvfp4Activations& out, cudaStream_t stream);

cudaError_t LaunchNvfp4GemmSm100(const Nvfp4GemmParams& params, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_NVFP4_GEMM_LAUNCH_H_
