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

const char* EncodeTensorMap(const TmaTensor& tensor, CUtensorMap* map) {
  static const EncodeTiled encode = FindEncoder();
  if (encode == nullptr) return "tensor map: the driver has no cuTensorMapEncodeTiled";
  const bool bytes = tensor.element_bytes == 1;
  const cuuint64_t sizes[3] = {tensor.sizes[0], tensor.sizes[1], tensor.sizes[2]};
  const cuuint64_t row_bytes = tensor.row * tensor.element_bytes;
  const cuuint64_t strides[2] = {row_bytes, row_bytes * sizes[1]};
  const cuuint32_t box[3] = {64, tensor.box[0], tensor.box[1]}, steps[3] = {1, 1, 1};
  return encode(map, bytes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, tensor.rank,
                const_cast<void*>(tensor.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                bytes ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
             ? nullptr
             : "tensor map: a tensor cannot be described to TMA (16-byte aligned device memory is needed)";
}

}  // namespace tessera::cuda
