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
  absl::Status Attend(const StepInput& step, const LayerSpec& spec, const CpuLayer& layer,
                      const KvCache& cache);
  absl::Status DenseMlp(int64_t tokens, const LayerSpec& spec, const CpuLayer& layer);
  absl::Status MoeMlp(int64_t tokens, const LayerSpec& spec, const CpuLayer& layer);
  Workspace Scratch(size_t bytes);

  const CpuModel& model_;
  ThreadPool& pool_;
  GrowingArray<float> hidden_;        // [tokens, hidden]
  GrowingArray<Bf16> normed_;         // [tokens, hidden]
  GrowingArray<float> q_, k_, v_;     // [tokens, heads, head_dim]
  GrowingArray<Bf16> attended_;       // [tokens, query heads, head_dim]
  GrowingArray<float> router_;        // [tokens, experts]
  GrowingArray<int32_t> expert_ids_;  // [tokens, experts per token]
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
