#include "kernels/cuda/linear/nvfp4_gemm.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/nvfp4_gemm_launch.h"
#include "kernels/cuda/linear/nvfp4_tiles.h"

namespace tessera::cuda {
namespace {

const char* CheckDevice() { return ThisDevice().major == 10 ? nullptr : "nvfp4: the device is not sm_100"; }

const char* CheckTiles(const SlotTiles& t) {
  if (t.num_slots < 1) return "nvfp4: num_slots must be positive";
  if (t.tile_slots != 16 && t.tile_slots != 32 && t.tile_slots != 64 && t.tile_slots != 128) {
    return "nvfp4: tile_slots must be 16, 32, 64 or 128";
  }
  const bool sorted = t.num_tiles != nullptr;
  if (sorted != (t.tile_expert != nullptr) || sorted != (t.tile_slot_range != nullptr)) {
    return "nvfp4: num_tiles, tile_expert and tile_slot_range go together";
  }
  if (sorted && t.max_tiles < 1) return "nvfp4: max_tiles must be positive";
  if (NumTiles(t) > 65535) return "nvfp4: more than 65535 tiles";
  return nullptr;
}

const char* CheckActivations(const Nvfp4Activations& a) {
  if (!a.data) return "nvfp4: the activations are null";
  if (a.k < kNvfp4StepK || a.k % kNvfp4StepK != 0) return "nvfp4: k must be a positive multiple of 64";
  if (!a.matrix_scales && !a.row_scales) return "nvfp4: the activations need scales";
  return nullptr;
}

const char* CheckGemm(const Nvfp4GemmParams& p) {
  const Nvfp4Weights& w = p.weights;
  if (!w.data || !w.sum_scales) return "nvfp4 gemm: a required pointer is null";
  if (w.n < kNvfp4RowTile || w.n % kNvfp4RowTile != 0)
    return "nvfp4 gemm: the packed n must be a positive multiple of 128";
  if (w.k != p.x.k) return "nvfp4 gemm: weights and activations differ in k";
  if (w.num_matrices > 1 && !p.tiles.num_tiles) return "nvfp4 gemm: several matrices need tiles";
  const bool swiglu = p.epilogue == Nvfp4Epilogue::kSwiglu || p.epilogue == Nvfp4Epilogue::kSwigluNvfp4;
  const int32_t features = swiglu ? w.n / 2 : w.n;
  if (p.epilogue == Nvfp4Epilogue::kSwigluNvfp4) {
    if (const char* error = CheckActivations(p.next)) return error;
    if (!p.next.matrix_scales) return "nvfp4 gemm: results are quantised with a given scale only";
    if (p.next.k > features) return "nvfp4 gemm: the next k exceeds the weights' rows";
    return nullptr;
  }
  if (!p.out) return "nvfp4 gemm: a required pointer is null";
  if (p.out_features < 1 || p.out_features > features)
    return "nvfp4 gemm: out_features exceeds the weights' rows";
  return nullptr;
}

const char* Name(cudaError_t status) { return status == cudaSuccess ? nullptr : cudaGetErrorString(status); }

}  // namespace

size_t Nvfp4ActivationBytes(const SlotTiles& tiles, int32_t k) {
  return size_t(NumTiles(tiles)) * Nvfp4Chunks(k) * Nvfp4ChunkBytes(tiles.tile_slots);
}

const char* QuantizeNvfp4(const void* x, const int32_t* rows, int32_t x_k, const SlotTiles& tiles,
                          const Nvfp4Activations& out, cudaStream_t stream) {
  if (const char* error = CheckTiles(tiles)) return error;
  if (const char* error = CheckActivations(out)) return error;
  if (!x) return "quantize nvfp4: a required pointer is null";
  if (x_k < 16 || x_k % 16 != 0 || x_k > out.k)
    return "quantize nvfp4: x_k must be a positive multiple of 16, at most k";
  if (const char* error = CheckDevice()) return error;
  return Name(LaunchQuantizeNvfp4(x, rows, x_k, tiles, out, stream));
}

const char* Nvfp4Gemm(const Nvfp4GemmParams& params, cudaStream_t stream) {
  if (const char* error = CheckTiles(params.tiles)) return error;
  if (const char* error = CheckActivations(params.x)) return error;
  if (const char* error = CheckGemm(params)) return error;
  if (const char* error = CheckDevice()) return error;
  return Name(LaunchNvfp4GemmSm100(params, stream));
}

}  // namespace tessera::cuda
