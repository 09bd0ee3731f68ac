#ifndef TESSERA_SERVER_BACKEND_CUDA_CUDA_FORWARD_H_
#define TESSERA_SERVER_BACKEND_CUDA_CUDA_FORWARD_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fmha/fmha_prefill.h"
#include "kernels/cuda/linear/activation_order.h"
#include "kernels/cuda/ops/ops.h"
#include "server/backend/cuda/cuda_model.h"
#include "server/backend/cuda/device_memory.h"
#include "server/backend/cuda/graph_cache.h"

namespace tessera::cuda {

// The key-value cache of all layers: bf16, each [blocks, KV heads, block_size, key_dim or value_dim] of the layer's
// AttentionShape. Values that are part of their keys have no memory of their own.
struct CudaKvCache {
  DeviceMemory memory;
  std::vector<std::pair<void*, void*>> layers;  // k, v
  int32_t num_blocks = 0;
  int32_t block_size = 0;
};

// Query tokens that attention takes one by one, device arrays.
struct CudaSingles {
  int32_t count = 0;
  const int32_t* tokens = nullptr;      // [count], or null: token i is the step's i-th
  const int32_t* lengths = nullptr;     // [count] keys that it sees
  const int32_t* table_rows = nullptr;  // [count] row of the block table
};

// A step's tokens, as device arrays.
struct CudaStep {
  int32_t num_tokens = 0;
  bool uses_graph = false;             // small, without chunks
  const int32_t* ids = nullptr;        // [num_tokens], as EmbedTokens takes them
  DrawnTokens drawn;                   // in the step before
  const int32_t* positions = nullptr;  // [num_tokens]
  const int64_t* slots = nullptr;      // [num_tokens] where each token's key and value go
  CudaSingles singles;
  const FmhaPrefillChunk* chunks = nullptr;  // [num_chunks] prompts, if CudaForward::prefills()
  int32_t num_chunks = 0;
  int32_t num_chunk_tokens = 0;
  const int32_t* block_table = nullptr;
  int32_t block_table_stride = 0;
};

// The forward pass: everything on one stream, nothing waited for.
class CudaForward {
 public:
  CudaForward(const CudaModel& model, cudaStream_t stream);

  // Whether prompts may be given as chunks; else all tokens are singles. A token's result is the same, to the bit.
  bool prefills() const { return prefills_; }
  // Whether a step of this many tokens is small enough to be replayed as a graph.
  static bool SuitsGraph(int32_t num_tokens) { return num_tokens <= kMostGraphTokens; }

  // Memory for steps of up to this many tokens, and for the logits of this many at once; larger ones make it grow.
  absl::Status Reserve(int32_t tokens, int32_t logits);

  // Leaves the final hidden state (before the last norm) of every token. The step's arrays must lie at addresses that
  // depend on num_tokens alone while `inputs` and what was drawn are at the same place: small steps of a shape seen before
  // are replayed as a graph.
  absl::Status Run(const CudaStep& step, const CudaKvCache& cache, const void* inputs);

  // After Run: logits, float [count, vocab] on the device, of the tokens whose indices are in `tokens` (device). There are
  // two places for them, so that those of a step hold while the next is at work.
  absl::Status Logits(const int32_t* tokens, int32_t count, int32_t place, float** logits);
  // After Run: normed hidden states, float [count, hidden] on the device, of all tokens from `first`.
  absl::Status Hidden(int32_t first, int32_t count, float** hidden);

 private:
  static constexpr int32_t kMostGraphs = 96;
  static constexpr int32_t kMostGraphTokens = 256;  // larger steps take long enough to hide their launches

  absl::Status Launch(const CudaStep& step, const CudaKvCache& cache);
  // Each makes queries from normed_ and writes keys and values to the cache, attends, and adds the result to hidden_.
  absl::Status AttendGrouped(const CudaStep& step, const AttentionSpec& spec, const CudaLayer& layer,
                             const CudaKvCache& cache, const std::pair<void*, void*>& kv);
  absl::Status AttendLatent(const CudaStep& step, const AttentionSpec& spec, const CudaLayer& layer,
                            const CudaKvCache& cache, const std::pair<void*, void*>& kv);
  // From q_ to attended_.
  absl::Status AttendCache(const CudaStep& step, const AttentionSpec& spec, const CudaLayer& layer,
                           const CudaKvCache& cache, const std::pair<void*, void*>& kv);
  absl::Status AttendChunks(const CudaStep& step, const AttentionSpec& spec, const CudaLayer& layer,
                            const CudaKvCache& cache, const std::pair<void*, void*>& kv);
  absl::Status AttendSingles(const CudaStep& step, const AttentionSpec& spec, const CudaLayer& layer,
                             const CudaKvCache& cache, const std::pair<void*, void*>& kv);
  // Both add to hidden_.
  absl::Status DenseMlp(int32_t tokens, const MlpSpec& spec, const PackedWeights& gate_up,
                        const PackedWeights& down);
  // With `next_norm`, the hidden states are normalised by it besides, as NormHidden does.
  absl::Status Moe(int32_t tokens, const MlpSpec& spec, const CudaLayer& layer, const float* next_norm);
  absl::Status MultiplyNvfp4Experts(int32_t tokens, const MlpSpec& spec, const CudaLayer& layer);
  absl::Status ReserveForNvfp4Experts(int32_t tokens);
  // normed_ = norm(hidden_), in the step's order.
  absl::Status NormHidden(int32_t tokens, const float* weight);
  absl::Status Linear(const PackedWeights& weights, const void* x, int32_t tokens, int32_t features, bool add,
                      float* out, ActivationOrder order);
  // Puts plain rows into the step's order.
  absl::Status Order(void* x, int32_t rows, int32_t k);
  // Slot h * tokens + t of `out` is weights[h] times row t * heads + h of x.
  absl::Status HeadLinear(const PackedWeights& weights, const void* x, int32_t tokens, int32_t features,
                          int32_t tile_slots, float* out);
  absl::Status ReserveFor(int32_t tokens);
  absl::Status ReserveForLatent(int32_t tokens);
  absl::Status ReserveZeroed(size_t bytes, DeviceMemory* memory);
  absl::Status ReserveLogits(int32_t count, int32_t place);

  const CudaModel& model_;
  const cudaStream_t stream_;
  bool prefills_ = true;
  ActivationOrder order_ = ActivationOrder::kPlain;  // of the activations that this step's matrices read
  int32_t most_singles_ = 512;                       // of one attention launch
  GraphCache graphs_;
  std::pair<const void*, const void*> graph_inputs_;
  int32_t reserved_tokens_ = 0;
  DeviceMemory hidden_, normed_, qkv_, q_, attended_, decode_workspace_, prefill_workspace_;
  // Latent attention.
  DeviceMemory q_a_, q_heads_, q_nope_, head_rows_, values_;
  DeviceMemory head_input_row_, head_tile_, head_tile_range_, num_head_tiles_;
  DeviceMemory router_, experts_, expert_weights_, slot_token_, token_slot_, tile_expert_, tile_range_,
      num_tiles_;
  DeviceMemory activated_, expert_out_, nvfp4_workspace_, logits_[2], head_input_, pooled_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_CUDA_FORWARD_H_
