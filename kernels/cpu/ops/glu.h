// The gated activation between an MLP's matrices, as data.
#ifndef TESSERA_KERNELS_CPU_OPS_GLU_H_
#define TESSERA_KERNELS_CPU_OPS_GLU_H_

#include <limits>

namespace tessera::cpu {

// act(gate, up) = g * sigmoid(sigmoid_scale * g) * (u + up_offset), g = min(gate, limit),
// u = clamp(up, -limit, limit). As it stands here it is SwiGLU, silu(gate) * up.
struct Glu {
  float limit = std::numeric_limits<float>::infinity();
  float sigmoid_scale = 1.0f;
  float up_offset = 0.0f;
};

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_OPS_GLU_H_
