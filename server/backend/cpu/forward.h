#ifndef TESSERA_SERVER_BACKEND_CPU_FORWARD_H_
#define TESSERA_SERVER_BACKEND_CPU_FORWARD_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cpu/fmha/kv_cache.h"
#include "kernels/cpu/thread_pool.h"
#include "server/backend/cpu/cpu_model.h"
#include "server/backend/cpu/step_buffers.h"
#include "server/backend/cpu/step_input.h"

namespace tessera::cpu {

// Runs the transformer's layers. The residual stream is float; each matrix product's input is rounded to
// BF16; every token's result depends on its sequence alone. One thread at a time.
class Forward {
 public:
  // Both outlive this.
  Forward(const CpuModel& model, ThreadPool& pool) : model_(model), pool_(pool) {}

  // Computes all layers for the step's tokens, writing their keys and values into `caches` (one a layer).
  absl::Status Run(const StepInput& step, absl::Span<const KvCache> caches);

  // [num_tokens, hidden]: the residual stream after the last layer, before the final norm. Valid until the
  // next Run.
  const float* hidden() const { return hidden_.data(); }

  // logits[i] = lm_head(norm(hidden()[tokens[i]])), [tokens.size(), vocab].
  absl::Status Logits(absl::Span<const int32_t> tokens, float* logits);

  // out[i] = norm(hidden()[first + i]) in float, [count, hidden]. May be called from inside the pool.
  absl::Status FinalNorm(int64_t first, int64_t count, float* out) const;

 private:
  absl::Status Embed(const StepInput& step);
  // Each makes queries from normed_, writes keys and values to the cache, and leaves what was attended to in
  // attended_, [tokens, query heads, value_dim].
  absl::Status AttendGrouped(const StepInput& step, const AttentionSpec& spec, const CpuLayer& layer,
                             const KvCache& cache);
  absl::Status AttendLatent(const StepInput& step, const AttentionSpec& spec, const CpuLayer& layer,
                            const KvCache& cache);
  // Queries [tokens, query heads, cache.head_dim] to out [tokens, query heads, cache.value_dim].
  absl::Status AttendCache(const StepInput& step, const AttentionSpec& spec, const CpuLayer& layer,
                           const KvCache& cache, const float* q, Bf16* out);
  // Both add to hidden_. `size` is the MLP's intermediate size.
  absl::Status DenseMlp(int64_t tokens, const MlpSpec& spec, const MoeExpert& weights, int64_t size);
  absl::Status MoeMlp(int64_t tokens, const MlpSpec& spec, const CpuLayer& layer);
  // Rotates rope.rotary_dim elements of each of `heads` heads, `spacing` apart, from the first of which x points to.
  absl::Status Rotate(const RopeSpec& rope, int table, float* x, int64_t stride, int64_t tokens,
                      int64_t heads, int64_t spacing);
  // y[t, h] = weights[h] x[t, h] for each head h: x is BF16 with heads x_spacing apart, y float with heads
  // y_spacing apart, tokens lie heads apart.
  absl::Status HeadLinear(absl::Span<const PackedLinear> weights, const Bf16* x, int64_t x_spacing, float* y,
                          int64_t y_spacing, int64_t tokens);
  Workspace Scratch(size_t bytes);

  const CpuModel& model_;
  ThreadPool& pool_;
  GrowingArray<float> hidden_;     // [tokens, hidden]
  GrowingArray<Bf16> normed_;      // [tokens, hidden]
  GrowingArray<float> q_, k_, v_;  // [tokens, heads, head_dim]
  GrowingArray<Bf16> attended_;    // [tokens, query heads, value_dim]
  // Latent attention.
  GrowingArray<float> q_a_, latent_;           // [tokens, query_rank], [tokens, kv_rank + rope_dim]
  GrowingArray<Bf16> q_a_normed_, q_rounded_;  // [tokens, query_rank], [tokens, query heads, head_dim]
  GrowingArray<float> latent_q_;               // [tokens, query heads, kv_rank + rope_dim]
  GrowingArray<Bf16> latent_out_;              // [tokens, query heads, kv_rank]
  std::vector<absl::Status> head_results_;     // one a task
  GrowingArray<float> values_;                 // [tokens, query heads, value_dim]
  GrowingArray<float> router_;                 // [tokens, experts]
  GrowingArray<int32_t> expert_ids_;           // [tokens, experts per token]
  GrowingArray<float> expert_weights_;
  GrowingArray<float> gate_, up_;  // [tokens, intermediate]
  GrowingArray<Bf16> activated_;   // [tokens, intermediate]
  struct RopeTables {
    GrowingArray<float> cos, sin;  // [tokens, rotary_dim / 2]
  };
  std::vector<RopeTables> rope_;  // one a model_.ropes
  GrowingArray<std::byte> scratch_;
};

}  // namespace tessera::cpu

#endif  // TESSERA_SERVER_BACKEND_CPU_FORWARD_H_
