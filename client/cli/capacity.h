#ifndef TESSERA_CLIENT_CLI_CAPACITY_H_
#define TESSERA_CLIENT_CLI_CAPACITY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/model/model_spec.h"

namespace tessera::cli {

// Bytes that one token's keys and values take in BF16, over all layers: what the backends allocate.
int64_t KvBytesPerToken(const ModelSpec& spec);

// Of `memory` bytes, what is left for keys and values beside the weights, as the server counts: nine tenths of the
// rest, as steps need some. Negative: what the weights lack.
int64_t CacheBytes(int64_t memory, int64_t weight_bytes);

// What fits where: for each of some sizes of GPU memory, how many tokens and how many sequences of some lengths have
// room; one line each.
std::vector<std::string> DescribeCapacity(const ModelSpec& spec, int64_t weight_bytes);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_CAPACITY_H_
