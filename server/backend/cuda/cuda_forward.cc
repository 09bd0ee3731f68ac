#include "server/backend/cuda/cuda_forward.h"

#include <algorithm>

#include "kernels/cuda/fmha/fmha_decode.h"
#include "kernels/cuda/linear/grouped_gemm.h"
#include "kernels/cuda/moe/routing.h"
#include "kernels/cuda/ops/ops.h"
#include "server/backend/cuda/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kAttentionTokens = 512;  // of one attention launch

}  // namespace

CudaForward::CudaForward(const CudaModel& model, cudaStream_t stream)
    : model_(model), stream_(stream), graphs_(stream, kMostGraphs) {
  for (const LayerSpec& layer : model.spec.layers) {
    const AttentionSpec& a = layer.attention;
    run_length_ = std::min(run_length_, FmhaDecodeRunLength(a.num_query_heads, a.num_kv_heads, a.head_dim));
  }
}

absl::Status CudaForward::ReserveFor(int32_t tokens) {
  if (tokens <= reserved_tokens_) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "waiting before growing buffers"));
  const ModelSpec& spec = model_.spec;
  const size_t n = std::max(tokens, std::min(2 * reserved_tokens_, 1 << 20));
  size_t qkv = 0, q = 0, workspace = 0, experts = 1, pairs = 0, inner = 0;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& a = layer.attention;
    const size_t heads = a.num_query_heads + 2 * a.num_kv_heads;
    qkv = std::max(qkv, heads * a.head_dim);
    q = std::max<size_t>(q, size_t(a.num_query_heads) * a.head_dim);
    const int32_t most = std::min<int32_t>(n, kAttentionTokens);
    for (const int32_t run : {1, run_length_}) {
      workspace = std::max(workspace, FmhaDecodeWorkspaceBytes((most + run - 1) / run, run, a.num_query_heads,
                                                               a.num_kv_heads, a.head_dim));
    }
    const size_t top_k = layer.mlp.kind == MlpKind::kMoe ? layer.mlp.num_experts_per_token : 1;
    experts = std::max<size_t>(experts, layer.mlp.num_experts);
    pairs = std::max(pairs, top_k);
    inner = std::max(inner, top_k * layer.mlp.intermediate_size);
  }
  const char* what = "the buffers of a step";
  reserved_tokens_ = 0;  // until all of them are there: a failed one leaves the others as they are
  graphs_.Clear();
  TESSERA_RETURN_IF_ERROR(hidden_.Reserve(n * spec.hidden_size * 4, what));
  TESSERA_RETURN_IF_ERROR(normed_.Reserve(n * spec.hidden_size * 2, what));
  TESSERA_RETURN_IF_ERROR(qkv_.Reserve(n * qkv * 4, what));
  TESSERA_RETURN_IF_ERROR(q_.Reserve(n * q * 2, what));
  TESSERA_RETURN_IF_ERROR(attended_.Reserve(n * q * 2, what));
  TESSERA_RETURN_IF_ERROR(router_.Reserve(n * experts * 4, what));
  TESSERA_RETURN_IF_ERROR(experts_.Reserve(n * pairs * 4, what));
  TESSERA_RETURN_IF_ERROR(expert_weights_.Reserve(n * pairs * 4, what));
  TESSERA_RETURN_IF_ERROR(slot_token_.Reserve(n * pairs * 4, what));
  TESSERA_RETURN_IF_ERROR(token_slot_.Reserve(n * pairs * 4, what));
  TESSERA_RETURN_IF_ERROR(tile_expert_.Reserve((n * pairs + experts) * 4, what));
  TESSERA_RETURN_IF_ERROR(tile_range_.Reserve((n * pairs + experts) * 8, what));
  TESSERA_RETURN_IF_ERROR(num_tiles_.Reserve(4, what));
  TESSERA_RETURN_IF_ERROR(activated_.Reserve(n * inner * 2, what));
  TESSERA_RETURN_IF_ERROR(expert_out_.Reserve(n * pairs * spec.hidden_size * 4, what));
  if (workspace > attention_workspace_.bytes()) {
    TESSERA_RETURN_IF_ERROR(attention_workspace_.Reserve(workspace, what));
    TESSERA_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(attention_workspace_.get(), 0, workspace, stream_),
                                       "clearing a workspace"));
  }
  reserved_tokens_ = n;
  return absl::OkStatus();
}

absl::Status CudaForward::ReserveLogits(int32_t count) {
  TESSERA_RETURN_IF_ERROR(logits_.Reserve(size_t(count) * model_.spec.vocab_size * 4, "logits"));
  return head_input_.Reserve(size_t(count) * model_.spec.hidden_size * 2, "the output matrix's input");
}

absl::Status CudaForward::Reserve(int32_t tokens, int32_t logits) {
  TESSERA_RETURN_IF_ERROR(ReserveFor(tokens));
  return ReserveLogits(logits);
}

absl::Status CudaForward::Linear(const PackedWeights& weights, const void* x, int32_t tokens,
                                 int32_t features, bool add, float* out) {
  GroupedGemmParams p;
  p.weights = weights;
  p.x = x;
  p.out = out;
  p.out_features = features;
  p.epilogue = add ? GemmEpilogue::kAdd : GemmEpilogue::kStore;
  p.num_slots = tokens;
  p.tile_slots = ChooseTileSlots(tokens, weights);
  return KernelStatus(GroupedGemm(p, stream_));
}

absl::Status CudaForward::Run(const CudaStep& step, const CudaKvCache& cache, const void* inputs) {
  TESSERA_RETURN_IF_ERROR(ReserveFor(step.num_tokens));
  if (!UsesGraph(step.num_tokens)) return Launch(step, cache);
  if (inputs != graph_inputs_) {
    graphs_.Clear();
    graph_inputs_ = inputs;
  }
  return graphs_.Run({step.num_tokens, step.block_table_stride}, [&] { return Launch(step, cache); });
}

absl::Status CudaForward::Launch(const CudaStep& step, const CudaKvCache& cache) {
  const ModelSpec& spec = model_.spec;
  const int32_t tokens = step.num_tokens, dim = spec.hidden_size;
  float* hidden = hidden_.get<float>();
  TESSERA_RETURN_IF_ERROR(
      KernelStatus(EmbedTokens(model_.embeddings, step.ids, tokens, dim, hidden, stream_)));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const CudaLayer& layer = model_.layers[i];
    TESSERA_RETURN_IF_ERROR(KernelStatus(
        RmsNorm(hidden, nullptr, tokens, dim, layer.input_norm, spec.rms_norm_eps, normed_.get(), stream_)));
    TESSERA_RETURN_IF_ERROR(Attend(step, spec.layers[i], layer, cache, cache.layers[i]));
    TESSERA_RETURN_IF_ERROR(KernelStatus(RmsNorm(hidden, nullptr, tokens, dim, layer.post_attention_norm,
                                                 spec.rms_norm_eps, normed_.get(), stream_)));
    TESSERA_RETURN_IF_ERROR(Mlp(tokens, spec.layers[i], layer));
  }
  return absl::OkStatus();
}

absl::Status CudaForward::Attend(const CudaStep& step, const LayerSpec& spec, const CudaLayer& layer,
                                 const CudaKvCache& cache, const std::pair<void*, void*>& kv) {
  const AttentionSpec& attention = spec.attention;
  const int32_t tokens = step.num_tokens;
  const int32_t q_size = attention.num_query_heads * attention.head_dim;
  const int32_t kv_size = attention.num_kv_heads * attention.head_dim;
  TESSERA_RETURN_IF_ERROR(
      Linear(layer.qkv, normed_.get(), tokens, q_size + 2 * kv_size, /*add=*/false, qkv_.get<float>()));
  QkvParams qkv;
  qkv.qkv = qkv_.get<float>();
  qkv.q_norm = layer.q_norm;
  qkv.k_norm = layer.k_norm;
  qkv.eps = model_.spec.rms_norm_eps;
  qkv.rope = layer.rope;
  qkv.rotary_dim = attention.rope.rotary_dim;
  qkv.interleaved = attention.rope.style == RopeStyle::kInterleaved;
  qkv.positions = step.positions;
  qkv.slots = step.slots;
  qkv.tokens = tokens;
  qkv.num_query_heads = attention.num_query_heads;
  qkv.num_kv_heads = attention.num_kv_heads;
  qkv.head_dim = attention.head_dim;
  qkv.block_size = cache.block_size;
  qkv.q = q_.get();
  qkv.k_cache = kv.first;
  qkv.v_cache = kv.second;
  TESSERA_RETURN_IF_ERROR(KernelStatus(FinishQkv(qkv, stream_)));

  TESSERA_RETURN_IF_ERROR(AttendRuns(step.runs, step, attention, cache, kv));
  TESSERA_RETURN_IF_ERROR(AttendRuns(step.singles, step, attention, cache, kv));
  return Linear(layer.o, attended_.get(), tokens, model_.spec.hidden_size, /*add=*/true,
                hidden_.get<float>());
}

// One kernel for prompts and for decoding: a token's result does not depend on how its prompt was cut.
absl::Status CudaForward::AttendRuns(const CudaAttentionRuns& runs, const CudaStep& step,
                                     const AttentionSpec& attention, const CudaKvCache& cache,
                                     const std::pair<void*, void*>& kv) {
  const int64_t q_size = int64_t{attention.num_query_heads} * attention.head_dim;
  const int32_t most = kAttentionTokens / runs.length;
  for (int32_t first = 0; first < runs.count; first += most) {
    const int64_t token = runs.first_tokens ? 0 : int64_t{first} * runs.length;
    FmhaDecodeParams p;
    p.q = q_.get<uint16_t>() + token * q_size;
    p.out = attended_.get<uint16_t>() + token * q_size;
    p.k_cache = kv.first;
    p.v_cache = kv.second;
    p.block_table = step.block_table;
    p.table_rows = runs.table_rows + first;
    p.first_tokens = runs.first_tokens ? runs.first_tokens + first : nullptr;
    p.lengths = runs.lengths + first;
    p.num_sequences = std::min(most, runs.count - first);
    p.q_len = runs.length;
    p.num_query_heads = attention.num_query_heads;
    p.num_kv_heads = attention.num_kv_heads;
    p.head_dim = attention.head_dim;
    p.num_blocks = cache.num_blocks;
    p.block_size = cache.block_size;
    p.block_table_stride = step.block_table_stride;
    p.sliding_window = attention.sliding_window;
    p.softmax_scale = attention.softmax_scale;
    p.workspace = attention_workspace_.get();
    TESSERA_RETURN_IF_ERROR(KernelStatus(FmhaDecode(p, stream_)));
  }
  return absl::OkStatus();
}

absl::Status CudaForward::Mlp(int32_t tokens, const LayerSpec& spec, const CudaLayer& layer) {
  if (spec.mlp.kind == MlpKind::kMoe) return Moe(tokens, spec.mlp, layer);
  GroupedGemmParams p;
  p.weights = layer.gate_up;
  p.x = normed_.get();
  p.out = activated_.get();
  p.out_features = spec.mlp.intermediate_size;
  p.epilogue = GemmEpilogue::kSwiglu;
  p.num_slots = tokens;
  p.tile_slots = ChooseTileSlots(tokens, layer.gate_up);
  TESSERA_RETURN_IF_ERROR(KernelStatus(GroupedGemm(p, stream_)));
  return Linear(layer.down, activated_.get(), tokens, model_.spec.hidden_size, /*add=*/true,
                hidden_.get<float>());
}

absl::Status CudaForward::Moe(int32_t tokens, const MlpSpec& spec, const CudaLayer& layer) {
  const int32_t top_k = spec.num_experts_per_token, experts = spec.num_experts;
  TESSERA_RETURN_IF_ERROR(
      Linear(layer.router, normed_.get(), tokens, experts, /*add=*/false, router_.get<float>()));
  RouteParams route;
  route.logits = router_.get<float>();
  route.tokens = tokens;
  route.num_experts = experts;
  route.top_k = top_k;
  route.score = spec.router.score == RouterScore::kSigmoid ? RoutingScore::kSigmoid : RoutingScore::kSoftmax;
  route.renormalize = spec.router.renormalize;
  route.scale = spec.router.scale;
  route.experts = experts_.get<int32_t>();
  route.weights = expert_weights_.get<float>();
  TESSERA_RETURN_IF_ERROR(KernelStatus(RouteTokens(route, stream_)));

  const int32_t slots = tokens * top_k;
  const int32_t tile_slots = ChooseTileSlots(slots, layer.gate_up);
  const SortedSlots sorted = {slot_token_.get<int32_t>(), token_slot_.get<int32_t>(),
                              tile_expert_.get<int32_t>(), tile_range_.get<int2>(),
                              num_tiles_.get<int32_t>()};
  TESSERA_RETURN_IF_ERROR(
      KernelStatus(SortByExpert(route.experts, tokens, top_k, experts, tile_slots, sorted, stream_)));

  GroupedGemmParams p;
  p.weights = layer.gate_up;
  p.x = normed_.get();
  p.input_rows = sorted.slot_token;
  p.out = activated_.get();
  p.out_features = spec.intermediate_size;
  p.epilogue = GemmEpilogue::kSwiglu;
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
  TESSERA_RETURN_IF_ERROR(KernelStatus(GroupedGemm(p, stream_)));
  return KernelStatus(CombineExperts(expert_out_.get<float>(), sorted.token_slot, route.weights, tokens,
                                     top_k, model_.spec.hidden_size, hidden_.get<float>(), stream_));
}

absl::Status CudaForward::Logits(const int32_t* tokens, int32_t count, float** logits) {
  const ModelSpec& spec = model_.spec;
  TESSERA_RETURN_IF_ERROR(ReserveLogits(count));
  TESSERA_RETURN_IF_ERROR(
      KernelStatus(RmsNorm(hidden_.get<float>(), tokens, count, spec.hidden_size, model_.final_norm,
                           spec.rms_norm_eps, head_input_.get(), stream_)));
  *logits = logits_.get<float>();
  return Linear(model_.lm_head, head_input_.get(), count, spec.vocab_size, /*add=*/false, *logits);
}

absl::Status CudaForward::Hidden(int32_t first, int32_t count, float** hidden) {
  const ModelSpec& spec = model_.spec;
  TESSERA_RETURN_IF_ERROR(pooled_.Reserve(size_t(count) * spec.hidden_size * 4, "hidden states"));
  *hidden = pooled_.get<float>();
  return KernelStatus(RmsNormFloat(hidden_.get<float>() + int64_t{first} * spec.hidden_size, nullptr, count,
                                   spec.hidden_size, model_.final_norm, spec.rms_norm_eps, *hidden, stream_));
}

}  // namespace tessera::cuda
