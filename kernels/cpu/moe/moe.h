// The mixture-of-experts layer: for each token the weighted sum of its experts' gated networks.
//
//   out[t] (+)= sum over j of weights[t, j] * down_e( bf16( act(gate_e(x[t]), up_e(x[t])) ) ),  e = ids[t, j]
//
// where each matrix may have a bias, and act is SwiGLU or a clamped relative of it (see Glu).
//
// The sum over j runs in ascending j, in float. Tokens are sorted by expert (stable counting sort), each
// active expert's weights are read once, and an expert with 0, 1 or many tokens takes the same path with the
// same order of operations, so that a token's result does not depend on the rest of the batch, bit for bit.
#ifndef TESSERA_KERNELS_CPU_MOE_MOE_H_
#define TESSERA_KERNELS_CPU_MOE_MOE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cpu/linear/packed_linear.h"
#include "kernels/cpu/ops/glu.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/workspace.h"
#include "kernels/nvfp4/bf16.h"

namespace tessera::cpu {

// Formats and tensor scales may differ between the three and between experts; shapes may not.
struct MoeExpert {
  PackedLinear gate;                 // [intermediate, hidden]
  PackedLinear up;                   // [intermediate, hidden]
  PackedLinear down;                 // [hidden, intermediate]
  const float* gate_bias = nullptr;  // [intermediate], or null
  const float* up_bias = nullptr;    // [intermediate], or null
  const float* down_bias = nullptr;  // [hidden], or null; inside the weighted sum
};

struct MoeArgs {
  absl::Span<const MoeExpert> experts;
  int top_k = 0;
  Glu glu;
  const Bf16* x = nullptr;  // [tokens, hidden]
  int64_t x_stride = 0;
  int64_t tokens = 0;
  const int32_t* ids = nullptr;    // [tokens, top_k], each in [0, experts.size())
  const float* weights = nullptr;  // [tokens, top_k]
  float* out = nullptr;            // [tokens, hidden]
  int64_t out_stride = 0;
  bool accumulate = false;  // add to out: a residual stream
};

size_t MoeWorkspaceBytes(int64_t tokens, int top_k, int num_experts, int64_t hidden, int64_t intermediate);

// Fails with INVALID_ARGUMENT, before touching out, on shapes, ids, pointers or a workspace that do not fit.
absl::Status MoeForward(const MoeArgs& args, Workspace workspace, ThreadPool& pool);

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_MOE_MOE_H_
