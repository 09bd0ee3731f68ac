#ifndef TESSERA_SERVER_BACKEND_CPU_CPU_BACKEND_H_
#define TESSERA_SERVER_BACKEND_CPU_CPU_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/backend/backend.h"
#include "server/backend/load_progress.h"
#include "server/model/checkpoint.h"

namespace tessera {

struct CpuBackendOptions {
  // Threads that compute, the caller's included; 0 for one a usable core.
  int num_threads = 0;
  // Called while loading, from one thread at a time. May be empty.
  std::function<void(const LoadProgress&)> progress;
};

// Repacks the checkpoint's weights into memory, in parallel, and returns a backend that runs them. The
// checkpoint may be closed or destroyed afterwards: no view of its files is kept. Errors: INVALID_ARGUMENT
// (bad values in a tensor), UNIMPLEMENTED (a shape or kind that the CPU kernels do not take),
// RESOURCE_EXHAUSTED (bytes needed and free), DATA_LOSS (a file changed while it was read).
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const Checkpoint& checkpoint,
                                                          CpuBackendOptions options);

}  // namespace tessera

#endif  // TESSERA_SERVER_BACKEND_CPU_CPU_BACKEND_H_
