#include "kernels/cuda/linear/grouped_gemm.h"

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/grouped_gemm_launch.h"
#include "kernels/cuda/linear/grouped_gemm_sm90.cuh"
#include "kernels/cuda/tensor_map.h"

namespace tessera::cuda {
namespace {

// Activations in the order of the steps are multiplied by wgmma, which is Hopper's alone.
bool HasWgmma() { return ThisDevice().major == 9; }

const char* CheckShapes(const GroupedGemmParams& p) {
  const PackedWeights& w = p.weights;
  if (!w.data || !p.x || !p.out) return "grouped gemm: a required pointer is null";
  if (w.k < kGroupK || w.k % kGroupK != 0) return "grouped gemm: k must be a positive multiple of 64";
  if (w.n < kRowTile || w.n % kRowTile != 0)
    return "grouped gemm: the packed n must be a positive multiple of 16";
  if (p.tile_slots < 8 || p.tile_slots > 128 || (p.tile_slots & (p.tile_slots - 1)) != 0) {
    return "grouped gemm: tile_slots must be 8, 16, 32, 64 or 128";
  }
  if (p.x_order == ActivationOrder::kSteps && !HasWgmma())
    return "grouped gemm: activations in the order of the steps need sm_90";
  if (p.x_order == ActivationOrder::kSteps && p.input_rows != nullptr)
    return "grouped gemm: activations in the order of the steps are gathered before (GatherRows)";
  if (p.x_order == ActivationOrder::kPlain && p.tile_slots == 128)
    return "grouped gemm: tile_slots 128 needs activations in the order of the steps";
  if (p.out_order == ActivationOrder::kSteps &&
      (p.epilogue != GemmEpilogue::kSwiglu || p.x_order != ActivationOrder::kSteps ||
       p.out_features % kGroupK != 0)) {
    return "grouped gemm: results in the order of the steps are of SwiGLU, from activations in that order, a "
           "multiple of 64 features";
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

// Row tiles of a CTA: with few slots `units` units a warp. One of the CTA's threads fetches a feature's bias.
int32_t TilesPerCta(const GemmGeometry& g, int32_t tile_slots, int32_t units = 1) {
  constexpr int32_t kMost = 32 * kGemmWarps / kRowTile;
  return tile_slots >= 32 ? kGemmWarps : std::clamp(units * kGemmWarps / g.chunks, 1, kMost);
}

// Units of a warp: it loads the next while it multiplies one. But the CTAs, of about `slot_tiles` slot tiles, must be so many
// that the device, which holds three an SM, is filled evenly.
int32_t UnitsPerWarp(const GemmGeometry& g, int32_t tile_slots, int64_t slot_tiles) {
  constexpr int32_t kMostUnits = 8, kEnoughCtas = 9;  // an SM
  int32_t units = kMostUnits;
  const auto ctas = [&] {
    const int32_t tiles = TilesPerCta(g, tile_slots, units);
    return (g.row_tiles + tiles - 1) / tiles * slot_tiles;
  };
  while (units > 1 && ctas() < int64_t{ThisDevice().sms} * kEnoughCtas) units /= 2;
  return units;
}

}  // namespace

bool StepOrderPays(int64_t tokens) {
  constexpr int64_t kFewest = 128;
  return tokens >= kFewest && HasWgmma();
}

int32_t ChooseTileSlots(int64_t slots, const PackedWeights& weights, ActivationOrder order) {
  const int64_t sms = std::max(1, ThisDevice().sms);
  const int64_t each = (slots + weights.num_matrices - 1) / weights.num_matrices;
  const int64_t matrices = std::min<int64_t>(slots, weights.num_matrices);
  const GemmGeometry g = MakeGeometry(weights);
  const auto ctas = [&](int32_t tile_slots) {
    const int32_t rows = order == ActivationOrder::kSteps ? kGemmWarps : TilesPerCta(g, tile_slots);
    return (g.row_tiles + rows - 1) / rows * ((each + tile_slots - 1) / tile_slots * matrices);
  };
  if (order == ActivationOrder::kSteps) {
    // An SM takes its share of the tiles one by one; a group of k takes a tile about so many cycles.
    const auto time = [&](int32_t tile_slots) {
      const int64_t cycles = std::min<int64_t>(each, tile_slots) > 64   ? 560
                             : std::min<int64_t>(each, tile_slots) > 32 ? 320
                                                                        : 250;
      return (ctas(tile_slots) + sms - 1) / sms * cycles;
    };
    int32_t best = 128;
    for (const int32_t tile_slots : {64, 32}) {
      if (time(tile_slots) < time(best)) best = tile_slots;
    }
    return best;
  }
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
  const int64_t slot_tiles = params.num_tiles ? std::min(params.num_slots, w.num_matrices) : tiles;
  g.tiles_per_cta = TilesPerCta(g, params.tile_slots, UnitsPerWarp(g, params.tile_slots, slot_tiles));
  cudaError_t status;
  if (params.x_order == ActivationOrder::kSteps) {
    TmaTensor x;
    x.data = params.x;
    x.sizes[0] = x.row = w.k;
    x.sizes[1] = params.num_slots;
    x.box[0] = 32;
    CUtensorMap x_map;
    if (const char* error = EncodeTensorMap(x, &x_map)) return error;
    status = LaunchGroupedGemmLargeSm90(params, g, tiles, x_map, stream);
  } else {
    const auto launch = w.format == WeightFormat::kNvfp4 ? LaunchGroupedGemmNvfp4 : LaunchGroupedGemmBf16;
    const dim3 grid((g.row_tiles + g.tiles_per_cta - 1) / g.tiles_per_cta, tiles);
    status = launch(params, g, grid, stream);
  }
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace tessera::cuda
