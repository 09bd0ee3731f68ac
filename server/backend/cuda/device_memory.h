#ifndef TESSERA_SERVER_BACKEND_CUDA_DEVICE_MEMORY_H_
#define TESSERA_SERVER_BACKEND_CUDA_DEVICE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::cuda {

// A CUDA error as a status that says what was being done.
inline absl::Status CudaStatus(cudaError_t error, absl::string_view doing) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(doing, ": ", cudaGetErrorString(error)));
}

// What a kernel's launcher returns, as a status.
inline absl::Status KernelStatus(const char* error) {
  return error == nullptr ? absl::OkStatus() : absl::InternalError(error);
}

// Owns device memory.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() { Free(); }
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // RESOURCE_EXHAUSTED names `what`, the bytes needed and free. What was held before is freed first.
  absl::Status Allocate(size_t bytes, absl::string_view what) {
    Free();
    if (bytes == 0) return absl::OkStatus();
    const cudaError_t error = cudaMalloc(&data_, bytes);
    if (error == cudaSuccess) {
      bytes_ = bytes;
      return absl::OkStatus();
    }
    data_ = nullptr;
    if (error != cudaErrorMemoryAllocation) return CudaStatus(error, absl::StrCat("allocating ", what));
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return absl::ResourceExhaustedError(
        absl::StrCat(what, " needs ", bytes, " bytes of device memory; ", free, " of ", total, " are free"));
  }

  // Makes room for `bytes`; contents are lost when it has to grow.
  absl::Status Reserve(size_t bytes, absl::string_view what) {
    return bytes <= bytes_ ? absl::OkStatus() : Allocate(bytes, what);
  }

  // The same for memory that work enqueued on `stream` may use: that is waited for before it grows.
  absl::Status Reserve(size_t bytes, absl::string_view what, cudaStream_t stream) {
    if (bytes <= bytes_) return absl::OkStatus();
    absl::Status status = CudaStatus(cudaStreamSynchronize(stream), "waiting before growing buffers");
    return status.ok() ? Allocate(bytes, what) : status;
  }

  template <class T = void>
  T* get() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void Free() {
    if (data_ != nullptr) cudaFree(data_);
    data_ = nullptr;
    bytes_ = 0;
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_DEVICE_MEMORY_H_
