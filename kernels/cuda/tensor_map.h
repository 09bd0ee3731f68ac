#ifndef TESSERA_KERNELS_CUDA_TENSOR_MAP_H_
#define TESSERA_KERNELS_CUDA_TENSOR_MAP_H_

#include <cuda.h>

#include <cstdint>

namespace tessera::cuda {

// A dense tensor as TMA is to see it (CUDA driver API, "Tensor Map Object Management"), dimensions from the innermost on.
// Boxes have 64 elements in a row and are swizzled by that row: 128 bytes of bf16, 64 of bytes. What lies outside reads as
// zero.
struct TmaTensor {
  const void* data = nullptr;  // device memory, 16-byte aligned
  int32_t element_bytes = 2;   // 2: bf16; 1: bytes
  int32_t rank = 2;            // 2 or 3
  uint64_t sizes[3] = {};      // that are seen
  uint64_t row = 0;            // elements from one row to the next, whose bytes are a multiple of 16
  uint32_t box[2] = {1, 1};    // of the second and the third dimension

  bool operator==(const TmaTensor&) const = default;
};

// Returns null or what is wrong. The maps of the last tensors are kept (a thread's own), since caches and buffers stay where
// they are from launch to launch.
const char* EncodeTensorMap(const TmaTensor& tensor, CUtensorMap* map);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_TENSOR_MAP_H_
