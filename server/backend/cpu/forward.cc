#include "server/backend/cpu/forward.h"

#include <algorithm>

#include "kernels/cpu/fmha/attention.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/moe/moe.h"
#include "kernels/cpu/moe/router.h"
#include "kernels/cpu/ops/ops.h"

namespace tessera::cpu {
namespace {

// Tasks a thread should find at least, so that a late or slow one does not hold up the rest.
constexpr int64_t kTasksPerThread = 4;

const float* PointerOrNull(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

RopeKind RopeKindOf(RopeStyle style) {
  return style == RopeStyle::kInterleaved ? RopeKind::kInterleaved : RopeKind::kNeox;
}

Glu GluOf(const ActivationSpec& spec) { return {spec.limit, spec.sigmoid_scale, spec.up_offset}; }

RouterScore RouterScoreOf(::tessera::RouterScore score) {
  switch (score) {
    case ::tessera::RouterScore::kSoftmax:
      return RouterScore::kSoftmax;
    case ::tessera::RouterScore::kSigmoid:
      return RouterScore::kSigmoid;
    case ::tessera::RouterScore::kSoftmaxSelected:
      return RouterScore::kSoftmaxSelected;
  }
  return RouterScore::kSoftmax;
}

RouterConfig RouterConfigOf(const MlpSpec& spec, const CpuLayer& layer) {
  RouterConfig config;
  config.num_experts = spec.num_experts;
  config.top_k = spec.num_experts_per_token;
  config.score = RouterScoreOf(spec.router.score);
  config.selection_bias = PointerOrNull(layer.selection_bias);
  config.num_groups = spec.router.num_groups;
  config.topk_groups = spec.router.topk_groups;
  config.renormalize = spec.router.renormalize;
  config.scale = spec.router.scale;
  return config;
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
    if (rope.style == RopeStyle::kNone) continue;
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
    const AttentionSpec& attention = spec.layers[i].attention;
    if (status.ok()) {
      status = attention.kind == AttentionKind::kLatent ? AttendLatent(step, attention, layer, caches[i])
                                                        : AttendGrouped(step, attention, layer, caches[i]);
    }
    const int64_t result_size = int64_t{attention.num_query_heads} * attention.value_dim();
    if (status.ok()) {
      status = Linear(
          {attended_.data(), result_size, tokens},
          {layer.o, hidden_.data(), spec.hidden_size, PointerOrNull(layer.o_bias), /*accumulate=*/true},
          Scratch(LinearWorkspaceBytes(tokens, result_size)), pool_);
    }
    if (status.ok()) {
      status = RmsNorm(hidden_.data(), spec.hidden_size, tokens, spec.hidden_size,
                       layer.post_attention_norm.data(), spec.rms_norm_eps, normed, spec.hidden_size, pool_);
    }
    const MlpSpec& mlp = spec.layers[i].mlp;
    if (status.ok()) {
      status = mlp.kind == MlpKind::kMoe ? MoeMlp(tokens, mlp, layer)
                                         : DenseMlp(tokens, mlp, layer.experts[0], mlp.intermediate_size);
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

absl::Status Forward::Rotate(const RopeSpec& rope, int table, float* x, int64_t stride, int64_t tokens,
                             int64_t heads, int64_t spacing) {
  if (rope.style == RopeStyle::kNone) return absl::OkStatus();
  const RopeTables& tables = rope_[table];
  return Rope(RopeKindOf(rope.style), x, stride, tokens, heads, spacing, rope.rotary_dim, tables.cos.data(),
              tables.sin.data(), pool_);
}

absl::Status Forward::AttendCache(const StepInput& step, const AttentionSpec& spec, const CpuLayer& layer,
                                  const KvCache& cache, const float* q, Bf16* out) {
  AttentionArgs args;
  args.cache = cache;
  args.q_heads = spec.num_query_heads;
  args.q = q;
  args.q_stride = args.q_heads * cache.head_dim;
  args.num_sequences = step.num_sequences;
  args.q_start = step.q_start.data();
  args.kv_len = step.kv_len.data();
  args.block_table = step.block_table.data();
  args.block_table_stride = step.block_table_stride;
  args.softmax_scale = spec.softmax_scale;
  args.window = spec.sliding_window;
  args.sinks = PointerOrNull(layer.sinks);
  args.out = out;
  args.out_stride = args.q_heads * cache.value_dim;
  return Attention(args,
                   Scratch(AttentionWorkspaceBytes(step.num_tokens, step.num_sequences, step.max_kv_len,
                                                   args.q_heads, cache.value_dim, pool_.num_threads())),
                   pool_);
}

absl::Status Forward::AttendGrouped(const StepInput& step, const AttentionSpec& spec, const CpuLayer& layer,
                                    const KvCache& cache) {
  const int64_t tokens = step.num_tokens;
  const int64_t hidden_size = model_.spec.hidden_size;
  const float eps = model_.spec.rms_norm_eps;
  const int64_t q_heads = spec.num_query_heads;
  const int64_t kv_heads = spec.num_kv_heads;
  const int64_t head_dim = spec.head_dim;
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
  if (spec.qk_norm && spec.qk_norm_all_heads) {
    status = RmsNorm(q, q_stride, tokens, q_stride, layer.q_norm.data(), eps, q, q_stride, pool_);
    status.Update(RmsNorm(k, kv_stride, tokens, kv_stride, layer.k_norm.data(), eps, k, kv_stride, pool_));
  } else if (spec.qk_norm) {
    status = HeadRmsNorm(q, q_stride, tokens, q_heads, head_dim, layer.q_norm.data(), eps, pool_);
    status.Update(HeadRmsNorm(k, kv_stride, tokens, kv_heads, head_dim, layer.k_norm.data(), eps, pool_));
  }
  status.Update(Rotate(spec.rope, layer.rope, q, q_stride, tokens, q_heads, head_dim));
  status.Update(Rotate(spec.rope, layer.rope, k, kv_stride, tokens, kv_heads, head_dim));
  status.Update(WriteKv(cache, k, kv_stride, v, kv_stride, step.slots.data(), tokens, pool_));
  if (!status.ok()) return status;
  return AttendCache(step, spec, layer, cache, q, attended_.Reserve(tokens * q_stride));
}

// The absorbed form: with K = key_up^T c and V = value_up c for the cached latents c, q K = (key_up q) c, and the
// weighted sum of V is value_up of the weighted sum of c. So all heads attend to the latents themselves, as to one
// KV head whose keys carry the rotated part behind the latent.
absl::Status Forward::AttendLatent(const StepInput& step, const AttentionSpec& spec, const CpuLayer& layer,
                                   const KvCache& cache) {
  const LatentSpec& latent = spec.latent;
  const int64_t tokens = step.num_tokens;
  const int64_t hidden_size = model_.spec.hidden_size;
  const int64_t heads = spec.num_query_heads;
  const int64_t head_dim = spec.head_dim;
  const int64_t q_stride = heads * head_dim;
  const int64_t kv_size = latent.kv_rank + latent.rope_dim;
  float* q = q_.Reserve(tokens * q_stride);
  float* kv = latent_.Reserve(tokens * kv_size);

  const bool low_rank = latent.query_rank > 0;
  const LinearOutput first_q =
      low_rank ? LinearOutput{layer.q_a, q_a_.Reserve(tokens * latent.query_rank), latent.query_rank}
               : LinearOutput{layer.q, q, q_stride};
  const LinearOutput projections[] = {first_q, {layer.kv_a, kv, kv_size}};
  absl::Status status = LinearGroup({normed_.data(), hidden_size, tokens}, projections,
                                    Scratch(LinearWorkspaceBytes(tokens, hidden_size)), pool_);
  if (!status.ok()) return status;
  if (low_rank) {
    const int64_t rank = latent.query_rank;
    Bf16* q_a = q_a_normed_.Reserve(tokens * rank);
    status =
        RmsNorm(q_a_.data(), rank, tokens, rank, layer.q_a_norm.data(), latent.norm_eps, q_a, rank, pool_);
    if (!status.ok()) return status;
    status = Linear({q_a, rank, tokens}, {layer.q, q, q_stride}, Scratch(LinearWorkspaceBytes(tokens, rank)),
                    pool_);
    if (!status.ok()) return status;
  }
  status = RmsNorm(kv, kv_size, tokens, latent.kv_rank, layer.kv_a_norm.data(), latent.norm_eps, kv, kv_size,
                   pool_);
  status.Update(Rotate(spec.rope, layer.rope, kv + latent.kv_rank, kv_size, tokens, 1, latent.rope_dim));
  status.Update(Rotate(spec.rope, layer.rope, q + latent.nope_dim, q_stride, tokens, heads, head_dim));
  status.Update(WriteKv(cache, kv, kv_size, kv, kv_size, step.slots.data(), tokens, pool_));
  Bf16* q_rounded = q_rounded_.Reserve(tokens * q_stride);
  status.Update(ConvertToBf16(q, q_stride, tokens, q_stride, q_rounded, q_stride, pool_));
  if (!status.ok()) return status;

  float* latent_q = latent_q_.Reserve(tokens * heads * kv_size);
  status = HeadLinear(layer.key_up, q_rounded, head_dim, latent_q, kv_size, tokens);
  if (!status.ok()) return status;
  pool_.ParallelFor(tokens, [&](int64_t t) {
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(q + t * q_stride + h * head_dim + latent.nope_dim, latent.rope_dim,
                  latent_q + (t * heads + h) * kv_size + latent.kv_rank);
    }
  });
  Bf16* latent_out = latent_out_.Reserve(tokens * heads * latent.kv_rank);
  status = AttendCache(step, spec, layer, cache, latent_q, latent_out);
  if (!status.ok()) return status;
  const int64_t result_size = heads * latent.value_dim;
  float* values = values_.Reserve(tokens * result_size);
  status = HeadLinear(layer.value_up, latent_out, latent.kv_rank, values, latent.value_dim, tokens);
  if (!status.ok()) return status;
  return ConvertToBf16(values, result_size, tokens, result_size, attended_.Reserve(tokens * result_size),
                       result_size, pool_);
}

absl::Status Forward::HeadLinear(absl::Span<const PackedLinear> weights, const Bf16* x, int64_t x_spacing,
                                 float* y, int64_t y_spacing, int64_t tokens) {
  // Each task takes every so many heads, with a workspace of its own; inside it a product runs on one thread.
  const int64_t heads = weights.size();
  const int64_t tasks = std::min<int64_t>(heads, kTasksPerThread * pool_.num_threads());
  const size_t bytes = (LinearWorkspaceBytes(tokens, weights[0].k) + kWorkspaceAlignment - 1) /
                       kWorkspaceAlignment * kWorkspaceAlignment;
  const Workspace workspace = Scratch(tasks * bytes);
  head_results_.assign(tasks, absl::OkStatus());
  pool_.ParallelFor(tasks, [&](int64_t task) {
    const Workspace own{workspace.data + task * bytes, bytes};
    for (int64_t h = task; h < heads; h += tasks) {
      head_results_[task].Update(Linear({x + h * x_spacing, heads * x_spacing, tokens},
                                        {weights[h], y + h * y_spacing, heads * y_spacing}, own, pool_));
    }
  });
  absl::Status status;
  for (const absl::Status& result : head_results_) status.Update(result);
  return status;
}

absl::Status Forward::DenseMlp(int64_t tokens, const MlpSpec& spec, const MoeExpert& weights, int64_t size) {
  const int64_t hidden_size = model_.spec.hidden_size;
  float* gate = gate_.Reserve(tokens * size);
  float* up = up_.Reserve(tokens * size);
  Bf16* activated = activated_.Reserve(tokens * size);
  const LinearOutput projections[] = {{weights.gate, gate, size, weights.gate_bias},
                                      {weights.up, up, size, weights.up_bias}};
  absl::Status status = LinearGroup({normed_.data(), hidden_size, tokens}, projections,
                                    Scratch(LinearWorkspaceBytes(tokens, hidden_size)), pool_);
  if (!status.ok()) return status;
  status =
      GatedActivation(GluOf(spec.activation), gate, size, up, size, tokens, size, activated, size, pool_);
  if (!status.ok()) return status;
  return Linear({activated, size, tokens},
                {weights.down, hidden_.data(), hidden_size, weights.down_bias, /*accumulate=*/true},
                Scratch(LinearWorkspaceBytes(tokens, size)), pool_);
}

absl::Status Forward::MoeMlp(int64_t tokens, const MlpSpec& spec, const CpuLayer& layer) {
  const int64_t hidden_size = model_.spec.hidden_size;
  float* logits = router_.Reserve(tokens * spec.num_experts);
  absl::Status status = Linear({normed_.data(), hidden_size, tokens},
                               {layer.router, logits, spec.num_experts, PointerOrNull(layer.router_bias)},
                               Scratch(LinearWorkspaceBytes(tokens, hidden_size)), pool_);
  if (!status.ok()) return status;

  const RouterConfig config = RouterConfigOf(spec, layer);
  int32_t* ids = expert_ids_.Reserve(tokens * config.top_k);
  float* weights = expert_weights_.Reserve(tokens * config.top_k);
  status = Router(config, logits, spec.num_experts, tokens, ids, weights, pool_);
  if (!status.ok()) return status;

  MoeArgs args;
  args.experts = layer.experts;
  args.top_k = config.top_k;
  args.glu = GluOf(spec.activation);
  args.x = normed_.data();
  args.x_stride = hidden_size;
  args.tokens = tokens;
  args.ids = ids;
  args.weights = weights;
  args.out = hidden_.data();
  args.out_stride = hidden_size;
  args.accumulate = true;
  status = MoeForward(
      args,
      Scratch(MoeWorkspaceBytes(tokens, config.top_k, spec.num_experts, hidden_size, spec.intermediate_size)),
      pool_);
  if (!status.ok() || spec.shared_intermediate_size == 0) return status;
  return DenseMlp(tokens, spec, layer.shared_expert, spec.shared_intermediate_size);
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
