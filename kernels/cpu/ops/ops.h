// The small row-wise operations between the matrix products. Arithmetic is float; each row's result depends
// on that row alone. Strides are in elements. All fail with INVALID_ARGUMENT, before writing, on shapes that
// do not fit; zero tokens are fine.
#ifndef TESSERA_KERNELS_CPU_OPS_OPS_H_
#define TESSERA_KERNELS_CPU_OPS_OPS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/ops/glu.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/nvfp4/bf16.h"

namespace tessera::cpu {

// out[t] = x[t] * rsqrt(mean(x[t]^2) + eps) * weight. The product is rounded to BF16 once, at the end.
// weight: [dim], or null for a norm without one.
absl::Status RmsNorm(const float* x, int64_t x_stride, int64_t tokens, int64_t dim, const float* weight,
                     float eps, Bf16* out, int64_t out_stride, ThreadPool& pool);
// The same with a float result (a final norm, embeddings); out may be x.
absl::Status RmsNorm(const float* x, int64_t x_stride, int64_t tokens, int64_t dim, const float* weight,
                     float eps, float* out, int64_t out_stride, ThreadPool& pool);

// RMSNorm of each head, in place: x is [tokens, heads, head_dim], tokens stride apart; weight [head_dim] is
// shared by the heads (q_norm, k_norm of Qwen3).
absl::Status HeadRmsNorm(float* x, int64_t stride, int64_t tokens, int64_t heads, int64_t head_dim,
                         const float* weight, float eps, ThreadPool& pool);

enum class RopeKind : uint8_t {
  kNeox,         // rotate-half: element i pairs with i + rotary_dim/2
  kInterleaved,  // element 2i pairs with 2i+1
};

// cos[t, i] = scale * cos(positions[t] * inverse_frequencies[i]) and likewise sin, computed in double and
// rounded once. cos, sin: [tokens, half]; half = rotary_dim / 2. scale is YaRN's attention factor, else 1.
absl::Status RopeTable(const int32_t* positions, int64_t tokens, const double* inverse_frequencies,
                       int64_t half, double scale, float* cos, float* sin, ThreadPool& pool);

// Rotates the first rotary_dim elements of each head, in place: x is [tokens, heads, head_dim], tokens stride
// apart; cos, sin: [tokens, rotary_dim/2].
absl::Status Rope(RopeKind kind, float* x, int64_t stride, int64_t tokens, int64_t heads, int64_t head_dim,
                  int64_t rotary_dim, const float* cos, const float* sin, ThreadPool& pool);

// out = bf16(act(gate, up)); [tokens, dim] each.
absl::Status GatedActivation(const Glu& glu, const float* gate, int64_t gate_stride, const float* up,
                             int64_t up_stride, int64_t tokens, int64_t dim, Bf16* out, int64_t out_stride,
                             ThreadPool& pool);

// out[t] = float(table[ids[t]]) for a row-major BF16 table [vocab, dim]. An id outside [0, vocab) is an
// error that names its place.
absl::Status EmbeddingLookup(const Bf16* table, int64_t vocab, int64_t dim, const int32_t* ids,
                             int64_t tokens, float* out, int64_t out_stride, ThreadPool& pool);

// out = bf16(x), [tokens, dim].
absl::Status ConvertToBf16(const float* x, int64_t x_stride, int64_t tokens, int64_t dim, Bf16* out,
                           int64_t out_stride, ThreadPool& pool);

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_OPS_OPS_H_
