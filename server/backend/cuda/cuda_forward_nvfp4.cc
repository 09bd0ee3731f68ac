// The experts' part of the forward pass where weights and activations are NVFP4.
#include <algorithm>

#include "kernels/cuda/moe/nvfp4_moe.h"
#include "server/backend/cuda/cuda_forward.h"
#include "server/status_macros.h"

namespace tessera::cuda {
namespace {

// All but the pointers to a step's data.
Nvfp4MoeParams MoeParams(int32_t tokens, const MlpSpec& spec, const CudaLayer& layer, int32_t hidden) {
  Nvfp4MoeParams p;
  p.tokens = tokens;
  p.hidden = hidden;
  p.intermediate = spec.intermediate_size;
  p.num_experts = spec.num_experts;
  p.top_k = spec.num_experts_per_token;
  p.gate_up = layer.nvfp4_gate_up;
  p.down = layer.nvfp4_down;
  p.gate_up_input_scales = layer.gate_up_input_scales;
  p.down_input_scales = layer.down_input_scales;
  return p;
}

}  // namespace

absl::Status CudaForward::ReserveForNvfp4Experts(int32_t tokens) {
  size_t bytes = 0;
  for (size_t i = 0; i < model_.layers.size(); ++i) {
    const MlpSpec& spec = model_.spec.layers[i].mlp;
    if (model_.layers[i].nvfp4_gate_up.data == nullptr) continue;
    // Fewer tokens can need more: tiles grow with an expert's share, and a small one is padded as a large one.
    for (const int32_t share : {16, 32, 64, tokens}) {
      const int64_t most = int64_t{share} * spec.num_experts / spec.num_experts_per_token;
      const int32_t at = static_cast<int32_t>(std::clamp<int64_t>(most, 1, tokens));
      bytes = std::max(
          bytes, Nvfp4MoeWorkspaceBytes(MoeParams(at, spec, model_.layers[i], model_.spec.hidden_size)));
    }
  }
  return bytes == 0 ? absl::OkStatus() : nvfp4_workspace_.Reserve(bytes, "the experts' activations in NVFP4");
}

absl::Status CudaForward::MultiplyNvfp4Experts(int32_t tokens, const MlpSpec& spec, const CudaLayer& layer) {
  Nvfp4MoeParams p = MoeParams(tokens, spec, layer, model_.spec.hidden_size);
  p.x = normed_.get();
  p.x_stride = model_.lm_head.k;
  p.experts = experts_.get<int32_t>();
  p.expert_weights = expert_weights_.get<float>();
  p.residual = hidden_.get<float>();
  p.workspace = nvfp4_workspace_.get();
  return KernelStatus(Nvfp4Moe(p, stream_));
}

}  // namespace tessera::cuda
