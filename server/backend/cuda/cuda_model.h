#ifndef TESSERA_SERVER_BACKEND_CUDA_CUDA_MODEL_H_
#define TESSERA_SERVER_BACKEND_CUDA_CUDA_MODEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/linear/packed_weights.h"
#include "server/backend/cuda/device_memory.h"
#include "server/backend/load_progress.h"
#include "server/model/checkpoint.h"

namespace tessera::cuda {

// A layer's weights on the device. Pointers into CudaModel's memory.
struct CudaLayer {
  const float* input_norm = nullptr;
  const float* post_attention_norm = nullptr;
  const float* q_norm = nullptr;  // null where the spec has none
  const float* k_norm = nullptr;
  const float2* rope = nullptr;  // [max_context, rotary_dim / 2]
  PackedWeights qkv;             // the features of q, k, v one after the other
  PackedWeights o;
  PackedWeights router;   // MoE layers
  PackedWeights gate_up;  // one matrix an expert; one for a dense MLP
  PackedWeights down;
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
// Errors: UNIMPLEMENTED (a shape or mix of formats that the kernels do not take), RESOURCE_EXHAUSTED (bytes needed and
// free), and as CreateCpuBackend.
absl::StatusOr<std::unique_ptr<CudaModel>> LoadCudaModel(
    const Checkpoint& checkpoint, const std::function<void(const LoadProgress&)>& progress);

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_CUDA_MODEL_H_
