// Small tcgen05 kernels, one question each.
#ifndef TESSERA_TESTS_UNIT_KERNELS_CUDA_TCGEN05_PROBE_H_
#define TESSERA_TESTS_UNIT_KERNELS_CUDA_TCGEN05_PROBE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::cuda {

inline constexpr int32_t kProbeRows = 128;  // M, and N

// How an operand stands in shared memory.
enum class ProbeLayout {
  kKMajor,  // no swizzle
  kKMajorSwizzle128,
  kMnMajor,  // no swizzle
  kMnMajorSwizzle128,
};

// d[128][128] = a b^T, a and b bf16 [128][k], k 16, 64 or 128, each laid out as said, from `offset` bytes (a multiple of
// 1024) into shared memory on.
cudaError_t ProbeProduct(const void* a, const void* b, float* d, int32_t k, ProbeLayout a_layout,
                         ProbeLayout b_layout, int32_t offset);

// Each thread of four warps stores 24 words to tensor memory in three stores of 32x32b.x8, then 8 more to 8 columns in two
// stores of 16x256b.x1 (16 lanes each), and loads all with 32x32b.x8: out [128][32].
cudaError_t ProbeStores(uint32_t* out);

// A kernel that would write 1 to *out, launched with `bytes` of shared memory.
cudaError_t ProbeSharedMemory(int32_t* out, int32_t bytes);

}  // namespace tessera::cuda

#endif  // TESSERA_TESTS_UNIT_KERNELS_CUDA_TCGEN05_PROBE_H_
