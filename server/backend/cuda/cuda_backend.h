#ifndef TESSERA_SERVER_BACKEND_CUDA_CUDA_BACKEND_H_
#define TESSERA_SERVER_BACKEND_CUDA_CUDA_BACKEND_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/backend/backend.h"
#include "server/backend/load_progress.h"
#include "server/model/checkpoint.h"

namespace tessera {

struct CudaBackendOptions {
  int device = 0;
  int sampling_threads = 0;  // of the host, the caller's included; 0 for one a usable core, at most 8
  // Memory for steps of this size is taken at once; larger ones take more when they come.
  int32_t max_step_tokens = 256;
  int32_t max_step_sequences = 64;
  // Blackwell: experts of a checkpoint that has scales for their inputs multiply in NVFP4 on both sides (W4A4). Else, and
  // always on Hopper, activations stay BF16.
  bool nvfp4_activations = true;
  std::function<void(const LoadProgress&)> progress;
};

// Whether this machine has a GPU that the kernels run on (compute capability 9.0 or 10.0). UNAVAILABLE says what is missing.
absl::Status CheckCudaDevice(int device);

// Bytes of device memory free on `device`, for sizing the cache.
absl::StatusOr<int64_t> FreeDeviceMemory(int device);

// As CreateCpuBackend, on a GPU.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const Checkpoint& checkpoint,
                                                           CudaBackendOptions options);

}  // namespace tessera

#endif  // TESSERA_SERVER_BACKEND_CUDA_CUDA_BACKEND_H_
