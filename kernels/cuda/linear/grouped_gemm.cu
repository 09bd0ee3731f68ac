#include "kernels/cuda/linear/grouped_gemm.h"

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/grouped_gemm_launch.h"
#include "kernels/cuda/linear/grouped_gemm_sm90.cuh"

namespace tessera::cuda {
namespace {

const char* CheckShapes(const GroupedGemmParams& p) {
  const PackedWeights& w = p.weights;
  if (!w.data || !p.x || !p.out) return "grouped gemm: a required pointer is null";
  if (w.k < kGroupK || w.k % kGroupK != 0) return "grouped gemm: k must be a positive multiple of 64";
  if (w.n < kRowTile || w.n % kRowTile != 0)
    return "grouped gemm: the packed n must be a positive multiple of 16";
  if (p.tile_slots < 8 || p.tile_slots > 128 || (p.tile_slots & (p.tile_slots - 1)) != 0) {
    return "grouped gemm: tile_slots must be 8, 16, 32, 64 or 128";
  }
  const int32_t features = p.epilogue == GemmEpilogue::kSwiglu ? w.n / 2 : w.n;
  if (p.out_features < 1 || p.out_features > features)
    return "grouped gemm: out_features exceeds the weights' rows";
  if (p.num_slots < 1) return "grouped gemm: num_slots must be positive";
  if (w.num_matrices > 1 && (!p.num_tiles || !p.tile_expert || !p.tile_slot_range || p.max_tiles < 1)) {
    return "grouped gemm: several matrices need tiles";
  }
  return nullptr;
}

// Tiles of 128 slots are multiplied by wgmma, which is Hopper's alone.
bool HasWgmma() { return ThisDevice().major == 9; }

// All but tiles_per_cta.
GemmGeometry MakeGeometry(const PackedWeights& w) {
  GemmGeometry g = {};
  g.groups = w.k / kGroupK;
  g.chunks = (g.groups + kChunkGroups - 1) / kChunkGroups;
  g.row_tiles = w.n / kRowTile;
  g.tile_bytes = PackedTileBytes(w.format, w.k);
  g.matrix_bytes = PackedMatrixBytes(w.format, w.n, w.k);
  return g;
}

// Row tiles of a CTA: with few slots one unit a warp.
int32_t TilesPerCta(const GemmGeometry& g, int32_t tile_slots) {
  return tile_slots >= 32 ? kGemmWarps : std::max(1, kGemmWarps / g.chunks);
}

}  // namespace

int32_t ChooseTileSlots(int64_t slots, const PackedWeights& weights) {
  const int64_t sms = std::max(1, ThisDevice().sms);
  const int64_t each = (slots + weights.num_matrices - 1) / weights.num_matrices;
  const GemmGeometry g = MakeGeometry(weights);
  const auto ctas = [&](int32_t tile_slots) {
    const int64_t tiles =
        (each + tile_slots - 1) / tile_slots * std::min<int64_t>(slots, weights.num_matrices);
    return (g.row_tiles + TilesPerCta(g, tile_slots) - 1) / TilesPerCta(g, tile_slots) * tiles;
  };
  // A tile of 128, even a third full, does more a second than the small ones. One of its CTAs fills an SM.
  if (each > 32 && ctas(128) >= sms && HasWgmma()) return 128;
  int32_t tile = each <= 8 ? 8 : each <= 16 ? 16 : each <= 32 ? 32 : 64;
  while (tile > 8 && ctas(tile) < 2 * sms) tile /= 2;
  return tile;
}

const char* GroupedGemm(const GroupedGemmParams& params, cudaStream_t stream) {
  if (const char* error = CheckShapes(params)) return error;
  const PackedWeights& w = params.weights;
  const int32_t tiles =
      params.num_tiles ? params.max_tiles : (params.num_slots + params.tile_slots - 1) / params.tile_slots;
  GemmGeometry g = MakeGeometry(w);
  g.tiles_per_cta = TilesPerCta(g, params.tile_slots);
  const dim3 grid((g.row_tiles + g.tiles_per_cta - 1) / g.tiles_per_cta, tiles);
  if (params.tile_slots == 128 && !HasWgmma()) return "grouped gemm: tile_slots 128 needs sm_90";
  const auto launch = params.tile_slots == 128           ? LaunchGroupedGemmLargeSm90
                      : w.format == WeightFormat::kNvfp4 ? LaunchGroupedGemmNvfp4
                                                         : LaunchGroupedGemmBf16;
  const cudaError_t status = launch(params, g, grid, stream);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace tessera::cuda
