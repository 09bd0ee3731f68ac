// Plain references of the CPU kernels, in double precision, one loop after the other: what the kernels are
// tested against. Slow, single-threaded, allocate freely. Inputs are what the kernels get; where a kernel
// rounds an intermediate result to BF16 by definition, so does the reference.
#ifndef TESSERA_KERNELS_CPU_REFERENCE_H_
#define TESSERA_KERNELS_CPU_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "kernels/cpu/fmha/attention.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/moe/moe.h"
#include "kernels/cpu/moe/router.h"

namespace tessera::cpu::reference {

double GatedActivation(const Glu& glu, double gate, double up);

// Weights as doubles, [n, k], tensor scale applied.
std::vector<double> Weights(const PackedLinear& weights);

// [tokens, n]: x W^T (+ bias).
std::vector<double> Linear(const LinearInput& input, const PackedLinear& weights, const float* bias);

// Sum of |x_i w_i| for each output: the yardstick of a float sum's rounding error.
std::vector<double> LinearMagnitude(const LinearInput& input, const PackedLinear& weights);

// [tokens, hidden], without what was in args.out.
std::vector<double> Moe(const MoeArgs& args);

struct Routing {
  std::vector<int32_t> ids;     // [tokens, top_k]
  std::vector<double> weights;  // [tokens, top_k]
};
Routing Route(const RouterConfig& config, const float* logits, int64_t logits_stride, int64_t tokens);

// [tokens, dim].
std::vector<double> RmsNorm(const float* x, int64_t x_stride, int64_t tokens, int64_t dim,
                            const float* weight, double eps);

// [tokens, q_heads * value_dim]; all scores of a row at once, ordinary softmax.
std::vector<double> Attention(const AttentionArgs& args);

}  // namespace tessera::cpu::reference

#endif  // TESSERA_KERNELS_CPU_REFERENCE_H_
