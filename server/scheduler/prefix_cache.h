#ifndef TESSERA_SERVER_SCHEDULER_PREFIX_CACHE_H_
#define TESSERA_SERVER_SCHEDULER_PREFIX_CACHE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace tessera {

// Which blocks hold which tokens: an index of full, computed blocks by what stands before them and in them.
//
// A block is identified by its parent and its tokens. The parent is the block before it, or a root (one a
// cache salt); as the parent was itself found by comparison, equality of the two is equality of the whole
// prefix. The hash only picks the chain of candidates. A parent stays in the index as long as any of its
// children does: the caller removes children first.
//
// No operation allocates memory; Find and Insert are O(1) on average, in the size of a block.
class PrefixCache {
 public:
  PrefixCache(int32_t num_blocks, int32_t block_size);

  // The parent of a salt's first blocks. Negative, so that it is never a block.
  static int32_t Root(int32_t salt) { return -1 - salt; }
  static bool IsRoot(int32_t parent) { return parent < 0; }
  static int32_t SaltOf(int32_t root) { return -1 - root; }

  // The block with these tokens after `parent`; -1 if none.
  int32_t Find(uint64_t hash, int32_t parent, absl::Span<const int32_t> tokens) const;

  // Adds a block that is not in the index, with contents that are not in the index.
  void Insert(int32_t block, uint64_t hash, int32_t parent, absl::Span<const int32_t> tokens);
  void Erase(int32_t block);

  bool Contains(int32_t block) const { return entries_[block].serial != 0; }
  // Changes each time a block is inserted, so that it tells whether a block still is what it was; 0 if not in
  // the index.
  uint64_t serial(int32_t block) const { return entries_[block].serial; }
  int32_t parent(int32_t block) const { return entries_[block].parent; }
  absl::Span<const int32_t> tokens(int32_t block) const {
    return absl::MakeConstSpan(&tokens_[static_cast<size_t>(block) * block_size_], block_size_);
  }
  int32_t size() const { return size_; }

  absl::Status CheckInvariants() const;

 private:
  struct Entry {
    uint64_t hash = 0;
    uint64_t serial = 0;
    int32_t parent = 0;
    int32_t next = -1;  // in the bucket
  };

  size_t Bucket(uint64_t hash) const { return hash & (buckets_.size() - 1); }

  const int32_t block_size_;
  std::vector<Entry> entries_;    // one a block
  std::vector<int32_t> tokens_;   // block_size a block
  std::vector<int32_t> buckets_;  // first block of each, or -1
  uint64_t last_serial_ = 0;
  int32_t size_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SCHEDULER_PREFIX_CACHE_H_
