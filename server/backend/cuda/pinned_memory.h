#ifndef TESSERA_SERVER_BACKEND_CUDA_PINNED_MEMORY_H_
#define TESSERA_SERVER_BACKEND_CUDA_PINNED_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "absl/status/status.h"
#include "server/backend/cuda/device_memory.h"

namespace tessera::cuda {

// Owns page-locked host memory, which copies to and from a device without a detour.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  ~PinnedMemory() { cudaFreeHost(data_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Makes room for `bytes`; contents are lost when it has to grow. No copy may be under way.
  absl::Status Reserve(size_t bytes) {
    if (bytes <= bytes_) return absl::OkStatus();
    cudaFreeHost(data_);
    data_ = nullptr;
    bytes_ = 0;
    if (absl::Status status = CudaStatus(cudaMallocHost(&data_, bytes), "allocating pinned memory");
        !status.ok()) {
      return status;
    }
    bytes_ = bytes;
    return absl::OkStatus();
  }

  template <class T>
  T* get() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_PINNED_MEMORY_H_
