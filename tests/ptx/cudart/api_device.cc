// Devices, errors, versions, and the driver functions that a program may ask for.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/ptx/cudart/runtime.h"
#include "tests/ptx/tma/tensor_map.h"

namespace tessera::ptx {
namespace {

// The emulator's enumerators are the driver's.
static_assert(static_cast<int>(TensorElement::kBfloat16) == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
static_assert(static_cast<int>(TensorElement::k16U6Align16B) == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B);
static_assert(static_cast<int>(TensorSwizzle::k128B) == CU_TENSOR_MAP_SWIZZLE_128B);
static_assert(static_cast<int>(TensorSwizzle::k128BAtom64B) == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B);
static_assert(static_cast<int>(TensorFill::kNan) == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);
static_assert(kTensorMapBytes == sizeof(CUtensorMap));

CUresult EncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                     const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                     const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                     CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  static_assert(sizeof(cuuint64_t) == sizeof(uint64_t) && sizeof(cuuint32_t) == sizeof(uint32_t));
  const auto refuse = [](std::string reason) {
    std::fprintf(stderr, "emulated driver: %s\n", reason.c_str());
    Runtime::Get().Fail(cudaErrorInvalidValue, std::move(reason));
    return CUDA_ERROR_INVALID_VALUE;
  };
  if (map == nullptr || reinterpret_cast<uint64_t>(map) % kTensorMapAlignment != 0) {
    return refuse("cuTensorMapEncodeTiled: tensorMap is null or not a multiple of 64 bytes");
  }
  if (sizes == nullptr || box == nullptr || steps == nullptr || (strides == nullptr && rank > 1)) {
    return refuse("cuTensorMapEncodeTiled: a null array");
  }
  if (rank < 1 || rank > kMaxTensorRank)
    return refuse(absl::StrCat("cuTensorMapEncodeTiled: tensorRank is ", rank));
  const absl::StatusOr<TensorMap> made =
      MakeTiledTensorMap({static_cast<uint32_t>(type),
                          rank,
                          reinterpret_cast<uint64_t>(address),
                          {reinterpret_cast<const uint64_t*>(sizes), rank},
                          {reinterpret_cast<const uint64_t*>(strides), rank - 1},
                          {reinterpret_cast<const uint32_t*>(box), rank},
                          {reinterpret_cast<const uint32_t*>(steps), rank},
                          static_cast<uint32_t>(interleave),
                          static_cast<uint32_t>(swizzle),
                          static_cast<uint32_t>(promotion),
                          static_cast<uint32_t>(fill)});
  if (!made.ok()) return refuse(std::string(made.status().message()));
  uint8_t bytes[kTensorMapBytes];
  EncodeTensorMap(*made, bytes);
  std::memcpy(map, bytes, sizeof(bytes));
  return CUDA_SUCCESS;
}

cudaError_t CheckDevice(int device) {
  return device == 0 ? cudaSuccess
                     : Runtime::Get().Fail(cudaErrorInvalidDevice, absl::StrCat("device ", device, " of 1"));
}

}  // namespace
}  // namespace tessera::ptx

using tessera::ptx::Runtime;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return Runtime::Get().Call([&] {
    *count = 1;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return Runtime::Get().Call([&] {
    *device = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return Runtime::Get().Call([&] { return tessera::ptx::CheckDevice(device); });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    r.device.FillProperties(properties);
    return tessera::ptx::CheckDevice(device);
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    if (const cudaError_t error = tessera::ptx::CheckDevice(device); error != cudaSuccess) return error;
    if (r.device.Attribute(attribute, value)) return cudaSuccess;
    return r.Fail(cudaErrorNotSupported,
                  absl::StrCat("device attribute ", static_cast<int>(attribute), " is not emulated"));
  });
}

cudaError_t cudaDeviceSynchronize() {
  Runtime& r = Runtime::Get();
  return r.CallThatMayWait("cudaDeviceSynchronize", [&] { return r.streams.RunEverything(); });
}

cudaError_t cudaDeviceReset() {
  Runtime::Get().Reset();
  return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return Runtime::Get().TakeLastError(true); }

cudaError_t cudaPeekAtLastError() { return Runtime::Get().TakeLastError(false); }

const char* cudaGetErrorString(cudaError_t error) { return Runtime::Get().ErrorString(error); }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                             unsigned long long, cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&tessera::ptx::EncodeTiled) : nullptr;
  if (found != nullptr) *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
