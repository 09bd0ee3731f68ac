#ifndef TESSERA_SERVER_BACKEND_BATCH_CHECKS_H_
#define TESSERA_SERVER_BACKEND_BATCH_CHECKS_H_

#include "absl/status/status.h"
#include "server/backend/backend.h"

namespace tessera {

// Whether a row can be run: its positions fit the context, its block table covers them with blocks of the cache, its
// token ids are in the vocabulary. INVALID_ARGUMENT names what does not fit.
absl::Status CheckBatchRow(const BatchRow& row, const BackendInfo& info, const KvCacheConfig& kv);

// A power of two of tokens, at least `min_block_size`, and at least one block.
absl::Status CheckKvCacheConfig(const KvCacheConfig& config, int32_t min_block_size);

}  // namespace tessera

#endif  // TESSERA_SERVER_BACKEND_BATCH_CHECKS_H_
