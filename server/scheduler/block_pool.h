#ifndef TESSERA_SERVER_SCHEDULER_BLOCK_POOL_H_
#define TESSERA_SERVER_SCHEDULER_BLOCK_POOL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

// The blocks of the key-value cache and who holds them. A block is
//  - used: at least one sequence holds it (its reference count);
//  - cached: no sequence holds it, but it is kept for its contents until its space is needed;
//  - free.
// Cached blocks stand in a list from the least to the most recently released. Every operation is O(1), and
// none allocates memory.
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_used() const { return num_blocks() - num_free() - num_cached_; }
  int32_t num_cached() const { return num_cached_; }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t references(int32_t block) const { return blocks_[block].references; }

  // A free block, now used once; -1 if none is free.
  int32_t TakeFree();
  // The cached block that was released longest ago; -1 if none is cached.
  int32_t OldestCached() const { return oldest_; }
  // Makes a cached block free.
  void Drop(int32_t block);

  // One more holder of a used or cached block.
  void Acquire(int32_t block);
  // One holder less. The last one leaves the block cached if `keep`, else free.
  void Release(int32_t block, bool keep);

  // Lists and counts agree with each other.
  absl::Status CheckInvariants() const;

 private:
  struct Block {
    int32_t references = 0;
    bool cached = false;
    int32_t older = -1;  // neighbours in the list of cached blocks
    int32_t newer = -1;
  };

  void Unlink(int32_t block);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // a stack: the block freed last is the warmest
  int32_t oldest_ = -1;
  int32_t newest_ = -1;
  int32_t num_cached_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SCHEDULER_BLOCK_POOL_H_
