#include "server/backend/batch_checks.h"

#include "absl/strings/str_cat.h"

namespace tessera {

absl::Status CheckBatchRow(const BatchRow& row, const BackendInfo& info, const KvCacheConfig& kv) {
  const int64_t end = row.start + static_cast<int64_t>(row.tokens.size());
  if (row.tokens.empty() || row.start < 0 || end > info.max_context) {
    return absl::InvalidArgumentError(absl::StrCat("a row of ", row.tokens.size(), " tokens from position ", row.start,
                                                   " does not fit a context of ", info.max_context));
  }
  const int64_t blocks = (end + kv.block_size - 1) / kv.block_size;
  if (static_cast<int64_t>(row.block_table.size()) < blocks) {
    return absl::InvalidArgumentError(absl::StrCat("a row that ends at position ", end, " needs ", blocks,
                                                   " blocks, has ", row.block_table.size()));
  }
  for (int64_t i = 0; i < blocks; ++i) {
    if (row.block_table[i] < 0 || row.block_table[i] >= kv.num_blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", row.block_table[i], " is not one of the cache's ", kv.num_blocks));
    }
  }
  if (row.token_of >= 0) {
    return row.tokens.size() == 1 ? absl::OkStatus()
                                  : absl::InvalidArgumentError("a row of several tokens takes one that is drawn");
  }
  for (const int32_t token : row.tokens) {
    if (token < 0 || token >= info.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", token, " is outside the vocabulary of ", info.vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckKvCacheConfig(const KvCacheConfig& config, int32_t min_block_size) {
  if (config.num_blocks >= 1 && config.block_size >= min_block_size &&
      (config.block_size & (config.block_size - 1)) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a cache of ", config.num_blocks, " blocks of ", config.block_size,
                                                 " tokens: expected at least 1 block of a power of two of tokens, at "
                                                 "least ",
                                                 min_block_size));
}

}  // namespace tessera
