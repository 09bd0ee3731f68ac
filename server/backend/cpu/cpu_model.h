#ifndef TESSERA_SERVER_BACKEND_CPU_CPU_MODEL_H_
#define TESSERA_SERVER_BACKEND_CPU_CPU_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/fmha/kv_cache.h"
#include "kernels/cpu/linear/packed_linear.h"
#include "kernels/cpu/moe/moe.h"
#include "kernels/cpu/thread_pool.h"
#include "server/backend/backend.h"
#include "server/backend/cpu/cpu_backend.h"
#include "server/backend/cpu/memory.h"
#include "server/model/checkpoint.h"
#include "server/model/model_spec.h"

namespace tessera::cpu {

// One layer in the kernels' form. Vectors that the spec does not ask for are empty.
struct CpuLayer {
  std::vector<float> input_norm, post_attention_norm;  // [hidden]
  std::vector<float> q_norm, k_norm;                   // [head_dim]
  std::vector<float> q_bias, k_bias, v_bias, o_bias;
  std::vector<float> sinks;  // [query heads]
  PackedLinear q, k, v, o;
  // Latent attention. Keys and values are never made: a query goes through its head's key_up into the latent
  // space, where the cache is, and what it attends to comes back through value_up.
  PackedLinear q_a, kv_a;
  std::vector<float> q_a_norm, kv_a_norm;
  std::vector<PackedLinear> key_up;    // one a query head: [kv_rank, nope_dim]
  std::vector<PackedLinear> value_up;  // one a query head: [value_dim, kv_rank]

  PackedLinear router;                             // MoE layers
  std::vector<float> router_bias, selection_bias;  // [experts]
  std::vector<MoeExpert> experts;                  // one a MoE expert; exactly one for a dense MLP
  MoeExpert shared_expert;                         // if the spec has one
  std::vector<std::vector<float>> expert_biases;   // what the experts' pointers point to
  int rope = 0;                                    // index into CpuModel::ropes
};

// A model's weights, repacked into memory of its own.
struct CpuModel {
  ModelSpec spec;
  std::vector<CpuLayer> layers;
  std::vector<float> final_norm;
  PackedLinear lm_head;
  const Bf16* embeddings = nullptr;  // [vocab, hidden]; null when tied: rows are then taken from lm_head
  std::vector<RopeSpec> ropes;       // the different ones among the layers
  MappedMemory memory;               // holds all packed matrices
};

// The cache of one layer, without its memory.
KvCache KvCacheShape(const AttentionSpec& attention, const KvCacheConfig& config);

// Packs all matrices in parallel. A kDummy checkpoint gets random weights of plausible size: NVFP4 for every
// matrix but router, embeddings and output. Errors as CreateCpuBackend.
absl::StatusOr<std::unique_ptr<CpuModel>> LoadCpuModel(
    const Checkpoint& checkpoint, ThreadPool& pool, const std::function<void(const LoadProgress&)>& progress);

}  // namespace tessera::cpu

#endif  // TESSERA_SERVER_BACKEND_CPU_CPU_MODEL_H_
