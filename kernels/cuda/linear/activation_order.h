// The order of k in a row of activations.
//
// A matrix step multiplies 16 k, which the packed weights take from all four NVFP4 blocks of a group of 64: four k of each
// (packed_weights.h). The kernels for few slots read plain rows, sixteen bytes of a block at a time. wgmma wants the 16 k of
// a step side by side in shared memory, in pieces of 16 bytes, and copies cannot move less than that at full speed: with a
// tile of 128 features x 128 slots the products of a group take 512 cycles, reading the operand 256 cycles of shared memory,
// filling it 128 in pieces of 16 bytes but 256 and more in words. So prompts keep their activations in the order of the
// steps; it costs a pass over them where no kernel before can write them so, a few percent of the products.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_ACTIVATION_ORDER_H_
#define TESSERA_KERNELS_CUDA_LINEAR_ACTIVATION_ORDER_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/host_device.h"

namespace tessera::cuda {

enum class ActivationOrder {
  kPlain,
  kSteps,  // by StepPosition within each group of 64
};

// Where element `k` of a row stands in the order of the steps: k = 16 block + 4 step + 2 half + i of a group goes to
// 16 step + 8 half + 2 block + i.
TESSERA_HOST_DEVICE constexpr int32_t StepPosition(int32_t k) {
  const int32_t block = k / 16 % 4, step = k / 4 % 4, half = k / 2 % 2;
  return k / 64 * 64 + 16 * step + 8 * half + 2 * block + k % 2;
}

// out[i] = x[input_rows[i]] for `rows` rows of `k` bf16, a multiple of 64. Returns null or what is wrong.
const char* GatherRows(const void* x, const int32_t* input_rows, int64_t rows, int32_t k, void* out,
                       cudaStream_t stream);

// Puts `rows` plain rows of `k` bf16, a multiple of 64, into the order of the steps, in place. Returns null or what is
// wrong.
const char* OrderBySteps(void* x, int64_t rows, int32_t k, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_ACTIVATION_ORDER_H_
