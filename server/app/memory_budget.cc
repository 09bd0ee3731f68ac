#include "server/app/memory_budget.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kMaxDefaultCacheBytes = int64_t{4} << 30;

// The number that a file of /sys holds; `fallback` if there is none ("max", no such file).
int64_t ReadNumber(const char* path, int64_t fallback) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : fallback;
}

}  // namespace

int64_t AvailableMemory() {
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  int64_t available = kUnlimited;
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  int64_t kibibytes = 0;
  for (std::string unit; meminfo >> key >> kibibytes; std::getline(meminfo, unit)) {
    if (key == "MemAvailable:") available = kibibytes * 1024;
  }
  const int64_t limit = ReadNumber("/sys/fs/cgroup/memory.max", kUnlimited);
  if (limit == kUnlimited) return available;
  const int64_t used = ReadNumber("/sys/fs/cgroup/memory.current", 0);
  return std::min(available, std::max<int64_t>(limit - used, 0));
}

absl::StatusOr<int32_t> KvBlocks(const ServerOptions& options, const BackendInfo& backend,
                                 int32_t max_context, int64_t available) {
  const int64_t block_bytes = std::max<int64_t>(backend.kv_bytes_per_token, 1) * options.block_size;
  const int64_t blocks_per_sequence = (int64_t{max_context} + options.block_size - 1) / options.block_size;
  // One sequence more than can run, so that prefixes stay cached when all are as long as they can be.
  const int64_t most = std::min<int64_t>(blocks_per_sequence * (int64_t{options.max_running} + 1),
                                         std::numeric_limits<int32_t>::max() / options.block_size);
  if (options.kv_blocks > 0) {
    if (options.kv_blocks > std::numeric_limits<int32_t>::max() / options.block_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("--kv-blocks: found ", options.kv_blocks, ", expected at most ",
                       std::numeric_limits<int32_t>::max() / options.block_size));
    }
    return options.kv_blocks;
  }
  if (options.kv_cache_bytes > 0) {
    if (options.kv_cache_bytes < block_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("--kv-cache-bytes: found ", options.kv_cache_bytes, ", expected at least ",
                       block_bytes, ", which one block of ", options.block_size, " tokens takes"));
    }
    return static_cast<int32_t>(std::min(options.kv_cache_bytes / block_bytes, most));
  }
  // A GPU's memory is there for this; a host's is shared with everything else.
  const int64_t bytes =
      backend.device == "cuda" ? available / 10 * 9 : std::min(available / 4, kMaxDefaultCacheBytes);
  if (bytes < block_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for keys and values: one block of ",
                                                     options.block_size, " tokens takes ", block_bytes,
                                                     " bytes, and ", available, " bytes are free"));
  }
  return static_cast<int32_t>(std::min(bytes / block_bytes, most));
}

}  // namespace tessera
