#ifndef TESSERA_SERVER_BACKEND_CUDA_CUDA_MODEL_H_
#define TESSERA_SERVER_BACKEND_CUDA_CUDA_MODEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/linear/nvfp4_gemm.h"
#include "kernels/cuda/linear/packed_weights.h"
#include "server/backend/cuda/attention_shape.h"
#include "server/backend/cuda/device_memory.h"
#include "server/backend/load_progress.h"
#include "server/model/checkpoint.h"

namespace tessera::cuda {

// A layer's weights on the device. Pointers into CudaModel's memory, null where the spec has none. Biases are with their
// matrices.
struct CudaLayer {
  const float* input_norm = nullptr;
  const float* post_attention_norm = nullptr;
  AttentionShape attention;
  const float2* rope = nullptr;   // [max_context, rotary_dim / 2]
  const float* q_norm = nullptr;  // of each head, or of all together
  const float* k_norm = nullptr;
  const float* sinks = nullptr;  // [query heads]
  // The features of q, k, v one after the other, each from a multiple of kRowTile on. Latent attention: of q_a, or q
  // without a query rank, and kv_a.
  PackedWeights qkv;
  int32_t k_offset = 0;  // of kv_a in latent attention
  int32_t v_offset = 0;
  PackedWeights o;
  // Latent attention: keys and values are never made; a query goes through its head's key_up into the latent space,
  // and what it attends to comes back through value_up.
  const float* q_a_norm = nullptr;
  const float* kv_a_norm = nullptr;
  PackedWeights q_b;
  PackedWeights key_up, value_up;  // one matrix a query head

  PackedWeights router;  // MoE layers
  const float* selection_bias = nullptr;
  PackedWeights gate_up;  // one matrix an expert; one for a dense MLP
  PackedWeights down;
  PackedWeights shared_gate_up, shared_down;
  // W4A4, in place of gate_up and down where `data` is set: with the activations' tensor scales, one an expert.
  Nvfp4Weights nvfp4_gate_up, nvfp4_down;
  const float* gate_up_input_scales = nullptr;
  const float* down_input_scales = nullptr;
};

struct CudaModel {
  ModelSpec spec;
  std::vector<CudaLayer> layers;
  const uint16_t* embeddings = nullptr;  // bf16 [vocab, hidden]
  const float* final_norm = nullptr;
  PackedWeights lm_head;
  int64_t weight_bytes = 0;
  std::vector<DeviceMemory> memory;
};

// Copies the checkpoint's weights to the current device and repacks them there; for LoadFormat::kDummy makes them up.
// `nvfp4_activations`: on sm_100 experts that have scales for their inputs run as W4A4.
// Errors: UNIMPLEMENTED (a shape that the kernels do not take), RESOURCE_EXHAUSTED (bytes needed and free), and as
// CreateCpuBackend.
absl::StatusOr<std::unique_ptr<CudaModel>> LoadCudaModel(
    const Checkpoint& checkpoint, bool nvfp4_activations,
    const std::function<void(const LoadProgress&)>& progress);

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_CUDA_MODEL_H_
