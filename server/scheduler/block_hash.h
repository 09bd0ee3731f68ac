#ifndef TESSERA_SERVER_SCHEDULER_BLOCK_HASH_H_
#define TESSERA_SERVER_SCHEDULER_BLOCK_HASH_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera {

// Hashes of token blocks, chained: a block's hash covers every token before it and the cache salt at the
// root. They only find candidates; equality is always decided by comparing tokens, so a collision costs time
// and nothing else. The same in every run and on every machine.
namespace block_hash_internal {
inline uint64_t Mix(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a ^ 0x9e3779b97f4a7c15u) * (b ^ 0xd1b54a32d192ed03u);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}
}  // namespace block_hash_internal

inline uint64_t HashSalt(absl::string_view salt) {
  uint64_t hash = block_hash_internal::Mix(salt.size(), 0x5851f42d4c957f2du);
  for (const char c : salt) hash = block_hash_internal::Mix(hash, static_cast<unsigned char>(c));
  return hash;
}

// `parent`: the hash of the block before, or of the salt.
inline uint64_t HashBlock(uint64_t parent, absl::Span<const int32_t> tokens) {
  uint64_t hash = parent;
  size_t i = 0;
  for (; i + 2 <= tokens.size(); i += 2) {
    hash = block_hash_internal::Mix(hash, static_cast<uint64_t>(static_cast<uint32_t>(tokens[i])) << 32 |
                                              static_cast<uint32_t>(tokens[i + 1]));
  }
  if (i < tokens.size()) hash = block_hash_internal::Mix(hash, static_cast<uint32_t>(tokens[i]));
  return hash;
}

}  // namespace tessera

#endif  // TESSERA_SERVER_SCHEDULER_BLOCK_HASH_H_
