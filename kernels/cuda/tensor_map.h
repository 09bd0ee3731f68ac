#ifndef TESSERA_KERNELS_CUDA_TENSOR_MAP_H_
#define TESSERA_KERNELS_CUDA_TENSOR_MAP_H_

#include <cuda.h>

#include <cstdint>

namespace tessera::cuda {

// Describes a dense bf16 matrix to TMA (CUDA driver API, "Tensor Map Object Management"): boxes of `box_rows` rows and 64
// columns, 128 bytes, with the 128-byte swizzle; what lies outside reads as zero. `data` is device memory, 16-byte
// aligned, `columns` a multiple of 8. Returns null or what is wrong.
const char* EncodeBf16Matrix(const void* data, int64_t rows, int32_t columns, int32_t box_rows,
                             CUtensorMap* map);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_TENSOR_MAP_H_
