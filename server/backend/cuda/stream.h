#ifndef TESSERA_SERVER_BACKEND_CUDA_STREAM_H_
#define TESSERA_SERVER_BACKEND_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/statusor.h"
#include "server/backend/cuda/device_memory.h"

namespace tessera::cuda {

// Owns a stream that does not wait for the default one. Waits for its work before it goes.
class Stream {
 public:
  static absl::StatusOr<Stream> Create() {
    Stream stream;
    absl::Status status =
        CudaStatus(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking), "making a stream");
    if (!status.ok()) return status;
    return stream;
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  ~Stream() {
    if (stream_ == nullptr) return;
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  cudaStream_t get() const { return stream_; }

 private:
  Stream() = default;
  cudaStream_t stream_ = nullptr;
};

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_STREAM_H_
