#ifndef TESSERA_SERVER_APP_MEMORY_BUDGET_H_
#define TESSERA_SERVER_APP_MEMORY_BUDGET_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/app/server_options.h"
#include "server/backend/backend.h"

namespace tessera {

// Memory that this process may still take: what the machine has available, or what is left of the container's limit
// (cgroup v2) where that is less.
int64_t AvailableMemory();

// The number of key-value blocks: as the flags say, else a quarter of `available` and at most 4 GiB (on a GPU: nine
// tenths, with `available` the device memory that is free), and never more than
// `max_running` sequences of `max_context` tokens can hold. INVALID_ARGUMENT or RESOURCE_EXHAUSTED with the numbers if
// that is too few for even one block.
absl::StatusOr<int32_t> KvBlocks(const ServerOptions& options, const BackendInfo& backend,
                                 int32_t max_context, int64_t available);

}  // namespace tessera

#endif  // TESSERA_SERVER_APP_MEMORY_BUDGET_H_
