#include "server/backend/cuda/cuda_forward.h"

#include <algorithm>

#include "kernels/cuda/fmha/fmha_decode.h"
#include "kernels/cuda/linear/grouped_gemm.h"
#include "kernels/cuda/moe/combine_norm.h"
#include "kernels/cuda/moe/routing.h"
#include "kernels/cuda/ops/ops.h"
#include "server/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr size_t kMostAttentionWorkspace = size_t{512} << 20;

RoutingScore ScoreOf(RouterScore score) {
  switch (score) {
    case RouterScore::kSoftmax:
      return RoutingScore::kSoftmax;
    case RouterScore::kSigmoid:
      return RoutingScore::kSigmoid;
    case RouterScore::kSoftmaxSelected:
      return RoutingScore::kSoftmaxSelected;
  }
  return RoutingScore::kSoftmax;
}

Glu GluOf(const ActivationSpec& spec) { return {spec.limit, spec.sigmoid_scale, spec.up_offset}; }

size_t DecodeWorkspaceBytes(const AttentionSpec& spec, const AttentionShape& shape, int32_t tokens) {
  return FmhaDecodeWorkspaceBytes(tokens, 1, spec.num_query_heads, shape.kv_heads, shape.value_dim);
}

}  // namespace

CudaForward::CudaForward(const CudaModel& model, cudaStream_t stream)
    : model_(model), stream_(stream), graphs_(stream, kMostGraphs) {
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const AttentionShape& shape = model.layers[i].attention;
    prefills_ &= shape.value_dim == shape.key_dim && HasFmhaPrefill(shape.key_dim);
    while (most_singles_ > 32 && DecodeWorkspaceBytes(model.spec.layers[i].attention, shape, most_singles_) >
                                     kMostAttentionWorkspace) {
      most_singles_ /= 2;
    }
  }
}

absl::Status CudaForward::ReserveFor(int32_t tokens) {
  if (tokens <= reserved_tokens_) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "waiting before growing buffers"));
  const ModelSpec& spec = model_.spec;
  const size_t n = std::max(tokens, std::min(2 * reserved_tokens_, 1 << 20));
  size_t qkv = 0, q = 0, attended = 0, decode = 0, prefill = 0, experts = 1, pairs = 0, inner = 0;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionSpec& attention = spec.layers[i].attention;
    const MlpSpec& mlp = spec.layers[i].mlp;
    const CudaLayer& layer = model_.layers[i];
    qkv = std::max<size_t>(qkv, layer.qkv.n);
    q = std::max<size_t>(q, size_t(attention.num_query_heads) * layer.attention.key_dim);
    attended = std::max<size_t>(attended, size_t(attention.num_query_heads) * layer.attention.value_dim);
    decode = std::max(decode,
                      DecodeWorkspaceBytes(attention, layer.attention, std::min<int32_t>(n, most_singles_)));
    if (prefills_) prefill = std::max(prefill, FmhaPrefillWorkspaceBytes(layer.attention.key_dim));
    const size_t top_k = mlp.kind == MlpKind::kMoe ? mlp.num_experts_per_token : 1;
    experts = std::max<size_t>(experts, mlp.num_experts);
    pairs = std::max(pairs, top_k);
    inner = std::max({inner, top_k * layer.down.k, size_t(layer.shared_down.k)});
  }
  const char* what = "the buffers of a step";
  reserved_tokens_ = 0;  // until all of them are there: a failed one leaves the others as they are
  graphs_.Clear();
  TESSERA_RETURN_IF_ERROR(hidden_.Reserve(n * spec.hidden_size * 4, what));
  TESSERA_RETURN_IF_ERROR(normed_.Reserve(n * model_.lm_head.k * 2, what));
  TESSERA_RETURN_IF_ERROR(qkv_.Reserve(n * qkv * 4, what));
  TESSERA_RETURN_IF_ERROR(q_.Reserve(n * q * 2, what));
  TESSERA_RETURN_IF_ERROR(attended_.Reserve(n * attended * 2, what));
  TESSERA_RETURN_IF_ERROR(router_.Reserve(n * experts * 4, what));
  TESSERA_RETURN_IF_ERROR(experts_.Reserve(n * pairs * 4, what));
  TESSERA_RETURN_IF_ERROR(expert_weights_.Reserve(n * pairs * 4, what));
  TESSERA_RETURN_IF_ERROR(slot_token_.Reserve(n * pairs * 4, what));
  TESSERA_RETURN_IF_ERROR(token_slot_.Reserve(n * pairs * 4, what));
  // A product's CTAs read their tile before they know how many there are.
  TESSERA_RETURN_IF_ERROR(ReserveZeroed((n * pairs + experts) * 4, &tile_expert_));
  TESSERA_RETURN_IF_ERROR(ReserveZeroed((n * pairs + experts) * 8, &tile_range_));
  TESSERA_RETURN_IF_ERROR(num_tiles_.Reserve(4, what));
  TESSERA_RETURN_IF_ERROR(activated_.Reserve(n * inner * 2, what));
  // Results in float, or gathered inputs in BF16.
  const size_t expert_row = std::max<size_t>(spec.hidden_size * 4, model_.lm_head.k * 2);
  TESSERA_RETURN_IF_ERROR(expert_out_.Reserve(n * pairs * expert_row, what));
  TESSERA_RETURN_IF_ERROR(ReserveForLatent(n));
  TESSERA_RETURN_IF_ERROR(ReserveForNvfp4Experts(n));
  TESSERA_RETURN_IF_ERROR(ReserveZeroed(decode, &decode_workspace_));
  TESSERA_RETURN_IF_ERROR(ReserveZeroed(prefill, &prefill_workspace_));
  reserved_tokens_ = n;
  return absl::OkStatus();
}

absl::Status CudaForward::ReserveZeroed(size_t bytes, DeviceMemory* memory) {
  if (bytes <= memory->bytes()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(memory->Reserve(bytes, "a workspace"));
  return CudaStatus(cudaMemsetAsync(memory->get(), 0, bytes, stream_), "clearing a workspace");
}

absl::Status CudaForward::ReserveLogits(int32_t count, int32_t place) {
  TESSERA_RETURN_IF_ERROR(
      logits_[place].Reserve(size_t(count) * model_.spec.vocab_size * 4, "logits", stream_));
  return head_input_.Reserve(size_t(count) * model_.lm_head.k * 2, "the output matrix's input", stream_);
}

absl::Status CudaForward::Reserve(int32_t tokens, int32_t logits) {
  TESSERA_RETURN_IF_ERROR(ReserveFor(tokens));
  TESSERA_RETURN_IF_ERROR(ReserveLogits(logits, 0));
  return ReserveLogits(logits, 1);
}

absl::Status CudaForward::Linear(const PackedWeights& weights, const void* x, int32_t tokens,
                                 int32_t features, bool add, float* out, ActivationOrder order) {
  GroupedGemmParams p;
  p.weights = weights;
  p.x = x;
  p.x_order = order;
  p.out = out;
  p.out_features = features;
  p.epilogue = add ? GemmEpilogue::kAdd : GemmEpilogue::kStore;
  p.num_slots = tokens;
  p.tile_slots = ChooseTileSlots(tokens, weights, order);
  return KernelStatus(GroupedGemm(p, stream_));
}

absl::Status CudaForward::Order(void* x, int32_t rows, int32_t k) {
  if (order_ == ActivationOrder::kPlain) return absl::OkStatus();
  return KernelStatus(OrderBySteps(x, rows, k, stream_));
}

absl::Status CudaForward::Run(const CudaStep& step, const CudaKvCache& cache, const void* inputs) {
  TESSERA_RETURN_IF_ERROR(ReserveFor(step.num_tokens));
  if (!step.uses_graph) return Launch(step, cache);
  if (const std::pair<const void*, const void*> now = {inputs, step.drawn.data}; now != graph_inputs_) {
    graphs_.Clear();
    graph_inputs_ = now;
  }
  return graphs_.Run({step.num_tokens, step.block_table_stride}, [&] { return Launch(step, cache); });
}

absl::Status CudaForward::Launch(const CudaStep& step, const CudaKvCache& cache) {
  const ModelSpec& spec = model_.spec;
  const int32_t tokens = step.num_tokens, dim = spec.hidden_size;
  float* hidden = hidden_.get<float>();
  order_ = StepOrderPays(tokens) ? ActivationOrder::kSteps : ActivationOrder::kPlain;
  TESSERA_RETURN_IF_ERROR(
      KernelStatus(EmbedTokens(model_.embeddings, step.ids, step.drawn, tokens, dim, hidden, stream_)));
  bool normed = false;  // hidden states are, for the layer that comes
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const CudaLayer& layer = model_.layers[i];
    const AttentionSpec& attention = spec.layers[i].attention;
    const MlpSpec& mlp = spec.layers[i].mlp;
    if (!normed) TESSERA_RETURN_IF_ERROR(NormHidden(tokens, layer.input_norm));
    TESSERA_RETURN_IF_ERROR(attention.kind == AttentionKind::kLatent
                                ? AttendLatent(step, attention, layer, cache, cache.layers[i])
                                : AttendGrouped(step, attention, layer, cache, cache.layers[i]));
    TESSERA_RETURN_IF_ERROR(NormHidden(tokens, layer.post_attention_norm));
    // Experts' results are summed and normalised for the next layer at once.
    const float* next_norm = i + 1 < spec.layers.size() ? model_.layers[i + 1].input_norm : nullptr;
    normed = mlp.kind == MlpKind::kMoe && mlp.shared_intermediate_size == 0 && next_norm != nullptr;
    TESSERA_RETURN_IF_ERROR(mlp.kind == MlpKind::kMoe ? Moe(tokens, mlp, layer, normed ? next_norm : nullptr)
                                                      : DenseMlp(tokens, mlp, layer.gate_up, layer.down));
  }
  return absl::OkStatus();
}

absl::Status CudaForward::NormHidden(int32_t tokens, const float* weight) {
  const int32_t dim = model_.spec.hidden_size;
  const RmsNormParams norm = {hidden_.get<float>(),    dim, nullptr, tokens, dim, weight,
                              model_.spec.rms_norm_eps};
  TESSERA_RETURN_IF_ERROR(KernelStatus(RmsNorm(norm, normed_.get(), model_.lm_head.k, stream_)));
  return Order(normed_.get(), tokens, model_.lm_head.k);
}

absl::Status CudaForward::AttendGrouped(const CudaStep& step, const AttentionSpec& spec,
                                        const CudaLayer& layer, const CudaKvCache& cache,
                                        const std::pair<void*, void*>& kv) {
  const int32_t tokens = step.num_tokens;
  QkvParams qkv;
  qkv.qkv = qkv_.get<float>();
  qkv.row_stride = layer.qkv.n;
  qkv.k_offset = layer.k_offset;
  qkv.v_offset = layer.v_offset;
  TESSERA_RETURN_IF_ERROR(
      Linear(layer.qkv, normed_.get(), tokens, qkv.row_stride, /*add=*/false, qkv_.get<float>(), order_));
  const float eps = model_.spec.rms_norm_eps;
  if (spec.qk_norm_all_heads) {
    const std::pair<float*, int32_t> parts[] = {
        {qkv_.get<float>(), spec.num_query_heads * spec.head_dim},
        {qkv_.get<float>() + layer.k_offset, spec.num_kv_heads * spec.head_dim}};
    for (const auto& [x, dim] : parts) {
      const float* weight = x == qkv.qkv ? layer.q_norm : layer.k_norm;
      if (weight == nullptr) continue;
      const RmsNormParams norm = {x, qkv.row_stride, nullptr, tokens, dim, weight, eps};
      TESSERA_RETURN_IF_ERROR(KernelStatus(RmsNormFloat(norm, x, qkv.row_stride, stream_)));
    }
  } else {
    qkv.q_norm = layer.q_norm;
    qkv.k_norm = layer.k_norm;
  }
  qkv.eps = eps;
  qkv.rope = layer.rope;
  qkv.rotary_dim = spec.rope.rotary_dim;
  qkv.interleaved = spec.rope.style == RopeStyle::kInterleaved;
  qkv.positions = step.positions;
  qkv.slots = step.slots;
  qkv.tokens = tokens;
  qkv.num_query_heads = spec.num_query_heads;
  qkv.num_kv_heads = spec.num_kv_heads;
  qkv.head_dim = spec.head_dim;
  qkv.out_dim = layer.attention.key_dim;
  qkv.block_size = cache.block_size;
  qkv.q = q_.get();
  qkv.k_cache = kv.first;
  qkv.v_cache = kv.second;
  TESSERA_RETURN_IF_ERROR(KernelStatus(FinishQkv(qkv, stream_)));

  TESSERA_RETURN_IF_ERROR(AttendCache(step, spec, layer, cache, kv));
  TESSERA_RETURN_IF_ERROR(Order(attended_.get(), tokens, layer.o.k));
  return Linear(layer.o, attended_.get(), tokens, model_.spec.hidden_size, /*add=*/true, hidden_.get<float>(),
                order_);
}

absl::Status CudaForward::AttendCache(const CudaStep& step, const AttentionSpec& spec, const CudaLayer& layer,
                                      const CudaKvCache& cache, const std::pair<void*, void*>& kv) {
  if (step.num_chunks > 0) TESSERA_RETURN_IF_ERROR(AttendChunks(step, spec, layer, cache, kv));
  return AttendSingles(step, spec, layer, cache, kv);
}

absl::Status CudaForward::AttendChunks(const CudaStep& step, const AttentionSpec& spec,
                                       const CudaLayer& layer, const CudaKvCache& cache,
                                       const std::pair<void*, void*>& kv) {
  FmhaPrefillParams p;
  p.q = q_.get();
  p.out = attended_.get();
  p.k_cache = kv.first;
  p.v_cache = kv.second;
  p.block_table = step.block_table;
  p.chunks = step.chunks;
  p.sinks = layer.sinks;
  p.num_chunks = step.num_chunks;
  p.num_tokens = step.num_chunk_tokens;
  p.num_query_heads = spec.num_query_heads;
  p.num_kv_heads = layer.attention.kv_heads;
  p.head_dim = layer.attention.key_dim;
  p.num_blocks = cache.num_blocks;
  p.block_size = cache.block_size;
  p.block_table_stride = step.block_table_stride;
  p.sliding_window = spec.sliding_window;
  p.softmax_scale = spec.softmax_scale;
  p.workspace = prefill_workspace_.get();
  return KernelStatus(FmhaPrefill(p, stream_));
}

absl::Status CudaForward::AttendSingles(const CudaStep& step, const AttentionSpec& spec,
                                        const CudaLayer& layer, const CudaKvCache& cache,
                                        const std::pair<void*, void*>& kv) {
  const AttentionShape& shape = layer.attention;
  const CudaSingles& singles = step.singles;
  for (int32_t first = 0; first < singles.count; first += most_singles_) {
    const int64_t row = (singles.tokens ? 0 : int64_t{first}) * spec.num_query_heads;
    FmhaDecodeParams p;
    p.q = q_.get<uint16_t>() + row * shape.key_dim;
    p.out = attended_.get<uint16_t>() + row * shape.value_dim;
    p.k_cache = kv.first;
    p.v_cache = kv.second;
    p.block_table = step.block_table;
    p.table_rows = singles.table_rows + first;
    p.first_tokens = singles.tokens ? singles.tokens + first : nullptr;
    p.lengths = singles.lengths + first;
    p.num_sequences = std::min(most_singles_, singles.count - first);
    p.sinks = layer.sinks;
    p.num_query_heads = spec.num_query_heads;
    p.num_kv_heads = shape.kv_heads;
    p.head_dim = shape.key_dim;
    p.v_head_dim = shape.value_dim;
    p.num_blocks = cache.num_blocks;
    p.block_size = cache.block_size;
    p.block_table_stride = step.block_table_stride;
    p.sliding_window = spec.sliding_window;
    p.softmax_scale = spec.softmax_scale;
    p.workspace = decode_workspace_.get();
    TESSERA_RETURN_IF_ERROR(KernelStatus(FmhaDecode(p, stream_)));
  }
  return absl::OkStatus();
}

absl::Status CudaForward::DenseMlp(int32_t tokens, const MlpSpec& spec, const PackedWeights& gate_up,
                                   const PackedWeights& down) {
  GroupedGemmParams p;
  p.weights = gate_up;
  p.x = normed_.get();
  p.out = activated_.get();
  p.out_features = down.k;
  p.epilogue = GemmEpilogue::kSwiglu;
  p.glu = GluOf(spec.activation);
  p.num_slots = tokens;
  p.x_order = p.out_order = order_;
  p.tile_slots = ChooseTileSlots(tokens, gate_up, order_);
  TESSERA_RETURN_IF_ERROR(KernelStatus(GroupedGemm(p, stream_)));
  return Linear(down, activated_.get(), tokens, model_.spec.hidden_size, /*add=*/true, hidden_.get<float>(),
                order_);
}

absl::Status CudaForward::Moe(int32_t tokens, const MlpSpec& spec, const CudaLayer& layer,
                              const float* next_norm) {
  const int32_t top_k = spec.num_experts_per_token, experts = spec.num_experts;
  TESSERA_RETURN_IF_ERROR(
      Linear(layer.router, normed_.get(), tokens, experts, /*add=*/false, router_.get<float>(), order_));
  RouteParams route;
  route.logits = router_.get<float>();
  route.tokens = tokens;
  route.num_experts = experts;
  route.top_k = top_k;
  route.score = ScoreOf(spec.router.score);
  route.selection_bias = layer.selection_bias;
  route.num_groups = spec.router.num_groups;
  route.topk_groups = spec.router.topk_groups;
  route.renormalize = spec.router.renormalize;
  route.scale = spec.router.scale;
  route.experts = experts_.get<int32_t>();
  route.weights = expert_weights_.get<float>();
  if (layer.nvfp4_gate_up.data != nullptr) {
    TESSERA_RETURN_IF_ERROR(KernelStatus(RouteTokens(route, stream_)));
    TESSERA_RETURN_IF_ERROR(MultiplyNvfp4Experts(tokens, spec, layer));
    if (next_norm != nullptr) return NormHidden(tokens, next_norm);
    if (spec.shared_intermediate_size == 0) return absl::OkStatus();
    return DenseMlp(tokens, spec, layer.shared_gate_up, layer.shared_down);
  }
  const int32_t slots = tokens * top_k;
  const int32_t tile_slots = ChooseTileSlots(slots, layer.gate_up, order_);
  const SortedSlots sorted = {slot_token_.get<int32_t>(), token_slot_.get<int32_t>(),
                              tile_expert_.get<int32_t>(), tile_range_.get<int2>(),
                              num_tiles_.get<int32_t>()};
  TESSERA_RETURN_IF_ERROR(KernelStatus(RouteAndSort(route, tile_slots, sorted, stream_)));

  GroupedGemmParams p;
  p.weights = layer.gate_up;
  p.x = normed_.get();
  p.input_rows = sorted.slot_token;
  if (order_ == ActivationOrder::kSteps) {
    // There is room where the down matrices' results go later.
    TESSERA_RETURN_IF_ERROR(KernelStatus(
        GatherRows(normed_.get(), sorted.slot_token, slots, layer.gate_up.k, expert_out_.get(), stream_)));
    p.x = expert_out_.get();
    p.input_rows = nullptr;
  }
  p.out = activated_.get();
  p.out_features = layer.down.k;
  p.epilogue = GemmEpilogue::kSwiglu;
  p.glu = GluOf(spec.activation);
  p.x_order = p.out_order = order_;
  p.num_slots = slots;
  p.tile_slots = tile_slots;
  p.tile_expert = sorted.tile_expert;
  p.tile_slot_range = sorted.tile_slot_range;
  p.num_tiles = sorted.num_tiles;
  p.max_tiles = MostTiles(tokens, top_k, experts, tile_slots);
  TESSERA_RETURN_IF_ERROR(KernelStatus(GroupedGemm(p, stream_)));

  p.weights = layer.down;
  p.x = activated_.get();
  p.input_rows = nullptr;
  p.out = expert_out_.get();
  p.out_features = model_.spec.hidden_size;
  p.epilogue = GemmEpilogue::kStore;
  p.out_order = ActivationOrder::kPlain;
  p.tiles_settled = true;
  TESSERA_RETURN_IF_ERROR(KernelStatus(GroupedGemm(p, stream_)));
  if (next_norm != nullptr) {
    CombineNormParams c;
    c.rows = expert_out_.get<float>();
    c.token_slot = sorted.token_slot;
    c.weights = route.weights;
    c.tokens = tokens;
    c.top_k = top_k;
    c.dim = model_.spec.hidden_size;
    c.residual = hidden_.get<float>();
    c.norm_weight = next_norm;
    c.eps = model_.spec.rms_norm_eps;
    c.normed = normed_.get();
    c.normed_stride = model_.lm_head.k;
    TESSERA_RETURN_IF_ERROR(KernelStatus(CombineExpertsAndNorm(c, stream_)));
    return Order(normed_.get(), tokens, model_.lm_head.k);
  }
  TESSERA_RETURN_IF_ERROR(
      KernelStatus(CombineExperts(expert_out_.get<float>(), sorted.token_slot, route.weights, tokens, top_k,
                                  model_.spec.hidden_size, hidden_.get<float>(), stream_)));
  if (spec.shared_intermediate_size == 0) return absl::OkStatus();
  return DenseMlp(tokens, spec, layer.shared_gate_up, layer.shared_down);
}

absl::Status CudaForward::Logits(const int32_t* tokens, int32_t count, int32_t place, float** logits) {
  const ModelSpec& spec = model_.spec;
  TESSERA_RETURN_IF_ERROR(ReserveLogits(count, place));
  const RmsNormParams norm = {hidden_.get<float>(), spec.hidden_size,  tokens,           count,
                              spec.hidden_size,     model_.final_norm, spec.rms_norm_eps};
  TESSERA_RETURN_IF_ERROR(KernelStatus(RmsNorm(norm, head_input_.get(), model_.lm_head.k, stream_)));
  *logits = logits_[place].get<float>();
  return Linear(model_.lm_head, head_input_.get(), count, spec.vocab_size, /*add=*/false, *logits,
                ActivationOrder::kPlain);
}

absl::Status CudaForward::Hidden(int32_t first, int32_t count, float** hidden) {
  const ModelSpec& spec = model_.spec;
  TESSERA_RETURN_IF_ERROR(pooled_.Reserve(size_t(count) * spec.hidden_size * 4, "hidden states", stream_));
  *hidden = pooled_.get<float>();
  const RmsNormParams norm = {hidden_.get<float>() + int64_t{first} * spec.hidden_size,
                              spec.hidden_size,
                              nullptr,
                              count,
                              spec.hidden_size,
                              model_.final_norm,
                              spec.rms_norm_eps};
  return KernelStatus(RmsNormFloat(norm, *hidden, spec.hidden_size, stream_));
}

}  // namespace tessera::cuda
