#ifndef TESSERA_SERVER_BACKEND_CUDA_STREAM_H_
#define TESSERA_SERVER_BACKEND_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
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

// Owns an event: a point in a stream's work that can be waited for, and its time.
class Event {
 public:
  static absl::StatusOr<Event> Create() {
    Event event;
    absl::Status status = CudaStatus(cudaEventCreate(&event.event_), "making an event");
    if (!status.ok()) return status;
    return event;
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  // After what the stream has been given so far.
  absl::Status Record(cudaStream_t stream) {
    return CudaStatus(cudaEventRecord(event_, stream), "recording an event");
  }
  absl::Status Wait() const { return CudaStatus(cudaEventSynchronize(event_), "running a step"); }
  // From this event to a later one; both must have been reached. Zero if that can't be told.
  absl::Duration Until(const Event& later) const {
    float milliseconds = 0;
    if (cudaEventElapsedTime(&milliseconds, event_, later.event_) != cudaSuccess) return absl::ZeroDuration();
    return absl::Milliseconds(milliseconds);
  }

 private:
  Event() = default;
  cudaEvent_t event_ = nullptr;
};

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_STREAM_H_
