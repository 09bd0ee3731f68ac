#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

namespace tessera::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled FindEncoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                       &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<EncodeTiled>(function);
}

}  // namespace

const char* EncodeBf16Matrix(const void* data, int64_t rows, int32_t columns, int32_t box_rows,
                             CUtensorMap* map) {
  static const EncodeTiled encode = FindEncoder();
  if (encode == nullptr) return "tensor map: the driver has no cuTensorMapEncodeTiled";
  const cuuint64_t sizes[2] = {cuuint64_t(columns), cuuint64_t(rows)}, stride = cuuint64_t(columns) * 2;
  const cuuint32_t box[2] = {64, cuuint32_t(box_rows)}, steps[2] = {1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, &stride, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
             ? nullptr
             : "tensor map: the matrix cannot be described to TMA (16-byte aligned device memory is needed)";
}

}  // namespace tessera::cuda
