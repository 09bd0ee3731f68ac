#include <algorithm>

#include "kernels/cuda/linear/grouped_gemm.h"
#include "kernels/cuda/ops/latent.h"
#include "kernels/cuda/ops/ops.h"
#include "server/backend/cuda/cuda_forward.h"
#include "server/status_macros.h"

namespace tessera::cuda {

absl::Status CudaForward::ReserveForLatent(int32_t tokens) {
  size_t q_a = 0, q_heads = 0, q_nope = 0, head_rows = 0, values = 0, heads = 0;
  for (size_t i = 0; i < model_.layers.size(); ++i) {
    const AttentionSpec& spec = model_.spec.layers[i].attention;
    const CudaLayer& layer = model_.layers[i];
    if (spec.kind != AttentionKind::kLatent) continue;
    heads = std::max<size_t>(heads, spec.num_query_heads);
    q_a = std::max<size_t>(q_a, layer.q_b.k);
    q_heads = std::max<size_t>(q_heads, layer.q_b.n);
    q_nope = std::max(q_nope, heads * layer.key_up.k);
    head_rows = std::max(head_rows, heads * std::max(spec.latent.kv_rank, spec.latent.value_dim));
    values = std::max<size_t>(values, layer.o.k);
  }
  if (heads == 0) return absl::OkStatus();
  const size_t n = tokens;
  const char* what = "the buffers of latent attention";
  TESSERA_RETURN_IF_ERROR(q_a_.Reserve(n * q_a * 2, what));
  TESSERA_RETURN_IF_ERROR(q_heads_.Reserve(n * q_heads * 4, what));
  TESSERA_RETURN_IF_ERROR(q_nope_.Reserve(n * q_nope * 2, what));
  TESSERA_RETURN_IF_ERROR(head_rows_.Reserve(n * head_rows * 4, what));
  TESSERA_RETURN_IF_ERROR(values_.Reserve(n * values * 2, what));
  TESSERA_RETURN_IF_ERROR(head_input_row_.Reserve(n * heads * 4, what));
  TESSERA_RETURN_IF_ERROR(ReserveZeroed(n * heads * 4, &head_tile_));
  TESSERA_RETURN_IF_ERROR(ReserveZeroed(n * heads * 8, &head_tile_range_));
  return num_head_tiles_.Reserve(4, what);
}

absl::Status CudaForward::HeadLinear(const PackedWeights& weights, const void* x, int32_t tokens,
                                     int32_t features, int32_t tile_slots, float* out) {
  GroupedGemmParams p;
  p.weights = weights;
  p.x = x;
  p.input_rows = head_input_row_.get<int32_t>();
  p.out = out;
  p.out_features = features;
  p.num_slots = tokens * weights.num_matrices;
  p.tile_slots = tile_slots;
  p.tile_expert = head_tile_.get<int32_t>();
  p.tile_slot_range = head_tile_range_.get<int2>();
  p.num_tiles = num_head_tiles_.get<int32_t>();
  p.max_tiles = MostHeadTiles(tokens, weights.num_matrices, tile_slots);
  return KernelStatus(GroupedGemm(p, stream_));
}

// The absorbed form: with K = key_up^T c and V = value_up c for the cached latents c, q K = (key_up q) c, and the
// weighted sum of V is value_up of the weighted sum of c. So all heads attend to the latents themselves.
absl::Status CudaForward::AttendLatent(const CudaStep& step, const AttentionSpec& spec,
                                       const CudaLayer& layer, const CudaKvCache& cache,
                                       const std::pair<void*, void*>& kv) {
  const LatentSpec& latent = spec.latent;
  const AttentionShape& shape = layer.attention;
  const int32_t tokens = step.num_tokens, heads = spec.num_query_heads;
  float* projected = qkv_.get<float>();
  TESSERA_RETURN_IF_ERROR(
      Linear(layer.qkv, normed_.get(), tokens, layer.qkv.n, /*add=*/false, projected, order_));
  LatentParams p;
  p.heads = projected;
  p.heads_stride = layer.qkv.n;
  if (latent.query_rank > 0) {
    const RmsNormParams norm = {projected,         layer.qkv.n,    nullptr,        tokens,
                                latent.query_rank, layer.q_a_norm, latent.norm_eps};
    TESSERA_RETURN_IF_ERROR(KernelStatus(RmsNorm(norm, q_a_.get(), layer.q_b.k, stream_)));
    TESSERA_RETURN_IF_ERROR(Order(q_a_.get(), tokens, layer.q_b.k));
    TESSERA_RETURN_IF_ERROR(
        Linear(layer.q_b, q_a_.get(), tokens, layer.q_b.n, /*add=*/false, q_heads_.get<float>(), order_));
    p.heads = q_heads_.get<float>();
    p.heads_stride = layer.q_b.n;
  }
  p.kv = projected + layer.k_offset;
  p.kv_stride = layer.qkv.n;
  p.kv_norm = layer.kv_a_norm;
  p.eps = latent.norm_eps;
  p.rope = layer.rope;
  p.interleaved = spec.rope.style == RopeStyle::kInterleaved;
  p.positions = step.positions;
  p.slots = step.slots;
  p.tokens = tokens;
  p.num_heads = heads;
  p.kv_rank = latent.kv_rank;
  p.rope_dim = latent.rope_dim;
  p.nope_dim = latent.nope_dim;
  p.rope_offset = shape.rope_offset;
  p.key_dim = shape.key_dim;
  p.nope_stride = layer.key_up.k;
  p.k_cache = kv.first;
  p.q_nope = q_nope_.get();
  p.q = q_.get();
  TESSERA_RETURN_IF_ERROR(KernelStatus(FinishLatent(p, stream_)));

  const int32_t tile_slots = ChooseTileSlots(int64_t{tokens} * heads, layer.key_up);
  const SortedSlots tiles = {head_input_row_.get<int32_t>(), nullptr, head_tile_.get<int32_t>(),
                             head_tile_range_.get<int2>(), num_head_tiles_.get<int32_t>()};
  TESSERA_RETURN_IF_ERROR(KernelStatus(TileHeads(tokens, heads, tile_slots, tiles, stream_)));
  float* rows = head_rows_.get<float>();
  TESSERA_RETURN_IF_ERROR(HeadLinear(layer.key_up, q_nope_.get(), tokens, latent.kv_rank, tile_slots, rows));
  TESSERA_RETURN_IF_ERROR(KernelStatus(GatherHeads(rows, tokens, heads, latent.kv_rank, q_.get(),
                                                   shape.key_dim, heads * shape.key_dim, stream_)));
  TESSERA_RETURN_IF_ERROR(AttendCache(step, spec, layer, cache, kv));
  TESSERA_RETURN_IF_ERROR(
      HeadLinear(layer.value_up, attended_.get(), tokens, latent.value_dim, tile_slots, rows));
  TESSERA_RETURN_IF_ERROR(KernelStatus(GatherHeads(rows, tokens, heads, latent.value_dim, values_.get(),
                                                   latent.value_dim, layer.o.k, stream_)));
  TESSERA_RETURN_IF_ERROR(Order(values_.get(), tokens, layer.o.k));
  return Linear(layer.o, values_.get(), tokens, model_.spec.hidden_size, /*add=*/true, hidden_.get<float>(),
                order_);
}

}  // namespace tessera::cuda
