#include "client/cli/capacity.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace tessera::cli {
namespace {

struct Gpu {
  int gigabytes;
  const char* name;
};
constexpr Gpu kGpus[] = {{24, "L4"}, {80, "H100"}, {141, "H200"}, {192, "B200"}};

constexpr int64_t kGigabyte = 1000 * 1000 * 1000;

std::string Gigabytes(int64_t bytes) {
  return absl::StrFormat("%.1f GB", static_cast<double>(bytes) / kGigabyte);
}

}  // namespace

int64_t KvBytesPerToken(const ModelSpec& spec) {
  constexpr int64_t kElementBytes = 2;
  int64_t bytes = 0;
  for (const LayerSpec& layer : spec.layers) bytes += kElementBytes * layer.attention.cache_elements();
  return bytes;
}

int64_t CacheBytes(int64_t memory, int64_t weight_bytes) {
  const int64_t rest = memory - weight_bytes;
  return rest < 0 ? rest : rest / 10 * 9;
}

std::vector<std::string> DescribeCapacity(const ModelSpec& spec, int64_t weight_bytes) {
  const int64_t token_bytes = std::max<int64_t>(1, KvBytesPerToken(spec));
  std::set<int64_t> contexts = {std::min<int64_t>(4096, spec.max_context), spec.max_context};
  if (spec.max_context > 32768) contexts.insert(32768);
  std::vector<std::string> lines;
  for (const Gpu& gpu : kGpus) {
    const int64_t cache = CacheBytes(gpu.gigabytes * kGigabyte, weight_bytes);
    std::string line = absl::StrFormat("%d GB (%s): ", gpu.gigabytes, gpu.name);
    if (cache < 0) {
      absl::StrAppend(&line, "no; the weights alone take ", Gigabytes(weight_bytes), ", ", Gigabytes(-cache),
                      " more than there is");
      lines.push_back(std::move(line));
      continue;
    }
    const int64_t tokens = cache / token_bytes;
    std::vector<std::string> parts;
    for (const int64_t context : contexts) {
      parts.push_back(absl::StrCat(tokens / context, " sequences of ", context));
    }
    absl::StrAppend(&line, "room for ", tokens, " tokens: ", absl::StrJoin(parts, ", "));
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace tessera::cli
