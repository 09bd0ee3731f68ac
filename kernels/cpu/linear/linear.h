// y = x W^T: the matrix product of decode and prefill.
//
// Numerics: x is BF16, weights are exact, products and sums are float. For each output the sum runs over
// blocks of 16 columns (NVFP4; the block's sum is then multiplied by its scale and added) or 32 columns
// (BF16), in ascending order, and the tensor scale multiplies the total. That order is the same for one token
// and for many and for any number of threads, so a row of y depends on its row of x alone, bit for bit, on a
// given instruction set. Across instruction sets results differ by rounding only.
#ifndef TESSERA_KERNELS_CPU_LINEAR_LINEAR_H_
#define TESSERA_KERNELS_CPU_LINEAR_LINEAR_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cpu/linear/packed_linear.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/workspace.h"
#include "kernels/nvfp4/bf16.h"

namespace tessera::cpu {

// Strides are in elements, between rows.
struct LinearInput {
  const Bf16* x = nullptr;  // [tokens, k]
  int64_t x_stride = 0;
  int64_t tokens = 0;
};

// One product of the input: y[t, i] = tensor_scale * sum(...) (+ bias[i]) (+ the previous y[t, i]).
struct LinearOutput {
  PackedLinear weights;
  float* y = nullptr;  // [tokens, n]; must not overlap x
  int64_t y_stride = 0;
  const float* bias = nullptr;  // [n], or null
  bool accumulate = false;      // add to y: a residual stream
};

size_t LinearWorkspaceBytes(int64_t tokens, int64_t k);

// All products of one input in one fork (query, key and value; gate and up). All weights have the same k.
// tokens may be 0. Fails with INVALID_ARGUMENT, before touching y, when shapes, strides, pointers or the
// workspace's size do not fit.
absl::Status LinearGroup(const LinearInput& input, absl::Span<const LinearOutput> outputs,
                         Workspace workspace, ThreadPool& pool);

absl::Status Linear(const LinearInput& input, const LinearOutput& output, Workspace workspace,
                    ThreadPool& pool);

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_LINEAR_LINEAR_H_
