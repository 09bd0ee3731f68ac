#ifndef TESSERA_SERVER_SCHEDULER_BLOCK_MANAGER_H_
#define TESSERA_SERVER_SCHEDULER_BLOCK_MANAGER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/scheduler/block_pool.h"
#include "server/scheduler/prefix_cache.h"
#include "server/scheduler/salt_table.h"

namespace tessera {

// What was found of a sequence's prefix: one block after the other from the root. Holds no references; a
// block may be evicted after it was found, and its serial then tells.
struct PrefixMatch {
  struct Entry {
    int32_t block;
    uint64_t serial;
  };
  std::vector<Entry> blocks;
};

// The blocks of the cache together with the index of their contents: a block is kept when its last holder
// goes if and only if its contents are published, and forgotten when its space is taken.
//
// Sequences hold a chain of blocks from its root on and release it from its end, so a block was never
// released later than its parent: eviction from the oldest always takes the end of a chain, and what stays
// can still be found.
class BlockManager {
 public:
  // `hash_bits`: bits of the prefix hash to keep.
  BlockManager(int32_t num_blocks, int32_t block_size, int32_t hash_bits = 64);

  int32_t block_size() const { return block_size_; }
  int32_t BlocksFor(int64_t tokens) const {
    return static_cast<int32_t>((tokens + block_size_ - 1) / block_size_);
  }
  // Blocks that Allocate can give out.
  int32_t available() const { return pool_.num_free() + pool_.num_cached(); }
  const BlockPool& pool() const { return pool_; }
  const PrefixCache& cache() const { return cache_; }
  const SaltTable& salts() const { return salts_; }

  int32_t AcquireSalt(const std::string& salt) { return salts_.Acquire(salt); }
  void ReleaseSalt(int32_t salt) { salts_.Release(salt); }

  // Appends the chained hashes of full blocks of `tokens` to `hashes` until it has `count`.
  void ExtendHashes(int32_t salt, absl::Span<const int32_t> tokens, int32_t count,
                    std::vector<uint64_t>* hashes) const;

  // Brings `match` up to date: drops what was evicted from its end, then extends it as far as published
  // blocks reach, to at most hashes.size() blocks.
  void Match(int32_t salt, absl::Span<const int32_t> tokens, absl::Span<const uint64_t> hashes,
             PrefixMatch* match) const;
  // How many of the blocks of an up-to-date match are held by sequences: these cost nothing to hold as well.
  int32_t CountUsed(const PrefixMatch& match) const;

  // A block for one holder, with nothing in it. The least recently released cached block is given up if none
  // is free; -1 if every block is used.
  int32_t Allocate();
  void Acquire(int32_t block) { pool_.Acquire(block); }
  void Release(int32_t block) { pool_.Release(block, cache_.Contains(block)); }
  // Releases a whole block table, from its end.
  void ReleaseTable(absl::Span<const int32_t> table);

  // Makes the computed contents of a full block known. `parent` is a published block held by the same
  // sequence, or a root. If another block with the same contents is already published, nothing changes and
  // that one is returned.
  int32_t Publish(int32_t block, uint64_t hash, int32_t parent, absl::Span<const int32_t> tokens);

  // Forgets all contents. Blocks held by sequences stay theirs.
  void ClearPrefixCache();

  absl::Status CheckInvariants() const;

 private:
  void Forget(int32_t block);

  const int32_t block_size_;
  const uint64_t hash_mask_;
  BlockPool pool_;
  PrefixCache cache_;
  SaltTable salts_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SCHEDULER_BLOCK_MANAGER_H_
