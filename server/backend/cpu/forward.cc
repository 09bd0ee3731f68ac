#include "server/backend/cpu/forward.h"

#include <algorithm>

#include "kernels/cpu/fmha/attention.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/moe/moe.h"
#include "kernels/cpu/moe/router.h"
#include "kernels/cpu/ops/ops.h"

namespace tessera::cpu {
namespace {

const float* PointerOrNull(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

RopeKind RopeKindOf(RopeStyle style) {
  return style == RopeStyle::kInterleaved ? RopeKind::kInterleaved : RopeKind::kNeox;
}

}  // namespace

Workspace Forward::Scratch(size_t bytes) { return Workspace{scratch_.Reserve(bytes), bytes}; }

absl::Status Forward::Run(const StepInput& step, absl::Span<const KvCache> caches) {
  const ModelSpec& spec = model_.spec;
  const int64_t tokens = step.num_tokens;
  if (absl::Status status = Embed(step); !status.ok()) return status;
  rope_.resize(model_.ropes.size());
  for (size_t i = 0; i < rope_.size(); ++i) {
    const RopeSpec& rope = model_.ropes[i];
    const int64_t half = rope.rotary_dim / 2;
    absl::Status status =
        RopeTable(step.positions.data(), tokens, rope.inv_freq.data(), half, rope.magnitude,
                  rope_[i].cos.Reserve(tokens * half), rope_[i].sin.Reserve(tokens * half), pool_);
    if (!status.ok()) return status;
  }
  Bf16* normed = normed_.Reserve(tokens * spec.hidden_size);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const CpuLayer& layer = model_.layers[i];
    absl::Status status =
        RmsNorm(hidden_.data(), spec.hidden_size, tokens, spec.hidden_size, layer.input_norm.data(),
                spec.rms_norm_eps, normed, spec.hidden_size, pool_);
    if (status.ok()) status = Attend(step, spec.layers[i], layer, caches[i]);
    if (status.ok()) {
      status = RmsNorm(hidden_.data(), spec.hidden_size, tokens, spec.hidden_size,
                       layer.post_attention_norm.data(), spec.rms_norm_eps, normed, spec.hidden_size, pool_);
    }
    if (status.ok()) {
      status = spec.layers[i].mlp.kind == MlpKind::kMoe ? MoeMlp(tokens, spec.layers[i], layer)
                                                        : DenseMlp(tokens, spec.layers[i], layer);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Forward::Embed(const StepInput& step) {
  const int64_t hidden_size = model_.spec.hidden_size;
  float* hidden = hidden_.Reserve(step.num_tokens * hidden_size);
  if (model_.embeddings != nullptr) {
    return EmbeddingLookup(model_.embeddings, model_.spec.vocab_size, hidden_size, step.tokens.data(),
                           step.num_tokens, hidden, hidden_size, pool_);
  }
  // Tied: the output matrix's rows are the table, BF16 kept exactly, so no second copy is held.
  pool_.ParallelFor(step.num_tokens,
                    [&](int64_t t) { UnpackRow(model_.lm_head, step.tokens[t], hidden + t * hidden_size); });
  return absl::OkStatus();
}

absl::Status Forward::Attend(const StepInput& step, const LayerSpec& spec, const CpuLayer& layer,
                             const KvCache& cache) {
  const AttentionSpec& attention = spec.attention;
  const int64_t tokens = step.num_tokens;
  const int64_t hidden_size = model_.spec.hidden_size;
  const float eps = model_.spec.rms_norm_eps;
  const int64_t q_heads = attention.num_query_heads;
  const int64_t kv_heads = attention.num_kv_heads;
  const int64_t head_dim = attention.head_dim;
  const int64_t q_stride = q_heads * head_dim;
  const int64_t kv_stride = kv_heads * head_dim;
  float* q = q_.Reserve(tokens * q_stride);
  float* k = k_.Reserve(tokens * kv_stride);
  float* v = v_.Reserve(tokens * kv_stride);

  const LinearOutput projections[] = {{layer.q, q, q_stride, PointerOrNull(layer.q_bias)},
                                      {layer.k, k, kv_stride, PointerOrNull(layer.k_bias)},
                                      {layer.v, v, kv_stride, PointerOrNull(layer.v_bias)}};
  absl::Status status = LinearGroup({normed_.data(), hidden_size, tokens}, projections,
                                    Scratch(LinearWorkspaceBytes(tokens, hidden_size)), pool_);
  if (!status.ok()) return status;
  if (attention.qk_norm) {
    status = HeadRmsNorm(q, q_stride, tokens, q_heads, head_dim, layer.q_norm.data(), eps, pool_);
    status.Update(HeadRmsNorm(k, kv_stride, tokens, kv_heads, head_dim, layer.k_norm.data(), eps, pool_));
  }
  const RopeSpec& rope = attention.rope;
  if (rope.style != RopeStyle::kNone) {
    const RopeTables& tables = rope_[layer.rope];
    for (const auto& [x, stride, heads] :
         {std::tuple(q, q_stride, q_heads), std::tuple(k, kv_stride, kv_heads)}) {
      status.Update(Rope(RopeKindOf(rope.style), x, stride, tokens, heads, head_dim, rope.rotary_dim,
                         tables.cos.data(), tables.sin.data(), pool_));
    }
  }
  status.Update(WriteKv(cache, k, kv_stride, v, kv_stride, step.slots.data(), tokens, pool_));
  if (!status.ok()) return status;

  AttentionArgs args;
  args.cache = cache;
  args.q_heads = q_heads;
  args.q = q;
  args.q_stride = q_stride;
  args.num_sequences = step.num_sequences;
  args.q_start = step.q_start.data();
  args.kv_len = step.kv_len.data();
  args.block_table = step.block_table.data();
  args.block_table_stride = step.block_table_stride;
  args.softmax_scale = attention.softmax_scale;
  args.window = attention.sliding_window;
  args.out = attended_.Reserve(tokens * q_stride);
  args.out_stride = q_stride;
  status = Attention(args,
                     Scratch(AttentionWorkspaceBytes(tokens, step.num_sequences, step.max_kv_len, q_heads,
                                                     head_dim, pool_.num_threads())),
                     pool_);
  if (!status.ok()) return status;
  return Linear({attended_.data(), q_stride, tokens},
                {layer.o, hidden_.data(), hidden_size, PointerOrNull(layer.o_bias), /*accumulate=*/true},
                Scratch(LinearWorkspaceBytes(tokens, q_stride)), pool_);
}

absl::Status Forward::DenseMlp(int64_t tokens, const LayerSpec& spec, const CpuLayer& layer) {
  const int64_t hidden_size = model_.spec.hidden_size;
  const int64_t intermediate = spec.mlp.intermediate_size;
  const MoeExpert& mlp = layer.experts[0];
  float* gate = gate_.Reserve(tokens * intermediate);
  float* up = up_.Reserve(tokens * intermediate);
  Bf16* activated = activated_.Reserve(tokens * intermediate);
  const LinearOutput projections[] = {{mlp.gate, gate, intermediate}, {mlp.up, up, intermediate}};
  absl::Status status = LinearGroup({normed_.data(), hidden_size, tokens}, projections,
                                    Scratch(LinearWorkspaceBytes(tokens, hidden_size)), pool_);
  if (!status.ok()) return status;
  status = GatedActivation(Glu{}, gate, intermediate, up, intermediate, tokens, intermediate, activated,
                           intermediate, pool_);
  if (!status.ok()) return status;
  return Linear({activated, intermediate, tokens},
                {mlp.down, hidden_.data(), hidden_size, nullptr, /*accumulate=*/true},
                Scratch(LinearWorkspaceBytes(tokens, intermediate)), pool_);
}

absl::Status Forward::MoeMlp(int64_t tokens, const LayerSpec& spec, const CpuLayer& layer) {
  const int64_t hidden_size = model_.spec.hidden_size;
  const MlpSpec& mlp = spec.mlp;
  float* logits = router_.Reserve(tokens * mlp.num_experts);
  absl::Status status = Linear({normed_.data(), hidden_size, tokens}, {layer.router, logits, mlp.num_experts},
                               Scratch(LinearWorkspaceBytes(tokens, hidden_size)), pool_);
  if (!status.ok()) return status;

  RouterConfig config;
  config.num_experts = mlp.num_experts;
  config.top_k = mlp.num_experts_per_token;
  config.score =
      mlp.router.score == ::tessera::RouterScore::kSigmoid ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  config.renormalize = mlp.router.renormalize;
  config.scale = mlp.router.scale;
  int32_t* ids = expert_ids_.Reserve(tokens * config.top_k);
  float* weights = expert_weights_.Reserve(tokens * config.top_k);
  status = Router(config, logits, mlp.num_experts, tokens, ids, weights, pool_);
  if (!status.ok()) return status;

  MoeArgs args;
  args.experts = layer.experts;
  args.top_k = config.top_k;
  args.x = normed_.data();
  args.x_stride = hidden_size;
  args.tokens = tokens;
  args.ids = ids;
  args.weights = weights;
  args.out = hidden_.data();
  args.out_stride = hidden_size;
  args.accumulate = true;
  return MoeForward(
      args,
      Scratch(MoeWorkspaceBytes(tokens, config.top_k, mlp.num_experts, hidden_size, mlp.intermediate_size)),
      pool_);
}

absl::Status Forward::Logits(absl::Span<const int32_t> tokens, float* logits) {
  const int64_t hidden_size = model_.spec.hidden_size;
  const int64_t count = tokens.size();
  Bf16* normed = normed_.Reserve(count * hidden_size);
  absl::Status status;
  for (int64_t i = 0; i < count; ++i) {
    status.Update(RmsNorm(hidden_.data() + tokens[i] * hidden_size, hidden_size, 1, hidden_size,
                          model_.final_norm.data(), model_.spec.rms_norm_eps, normed + i * hidden_size,
                          hidden_size, pool_));
  }
  if (!status.ok()) return status;
  return Linear({normed, hidden_size, count}, {model_.lm_head, logits, model_.spec.vocab_size},
                Scratch(LinearWorkspaceBytes(count, hidden_size)), pool_);
}

absl::Status Forward::FinalNorm(int64_t first, int64_t count, float* out) const {
  const int64_t hidden_size = model_.spec.hidden_size;
  return RmsNorm(hidden_.data() + first * hidden_size, hidden_size, count, hidden_size,
                 model_.final_norm.data(), model_.spec.rms_norm_eps, out, hidden_size, pool_);
}

}  // namespace tessera::cpu
