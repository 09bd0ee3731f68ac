#include "server/scheduler/block_pool.h"

#include "absl/strings/str_cat.h"

namespace tessera {

BlockPool::BlockPool(int32_t num_blocks) : blocks_(num_blocks) {
  free_.reserve(num_blocks);
  for (int32_t block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

int32_t BlockPool::TakeFree() {
  if (free_.empty()) return -1;
  const int32_t block = free_.back();
  free_.pop_back();
  blocks_[block].references = 1;
  return block;
}

void BlockPool::Drop(int32_t block) {
  Unlink(block);
  free_.push_back(block);
}

void BlockPool::Acquire(int32_t block) {
  if (blocks_[block].cached) Unlink(block);
  ++blocks_[block].references;
}

void BlockPool::Release(int32_t block, bool keep) {
  Block& b = blocks_[block];
  if (--b.references > 0) return;
  if (!keep) {
    free_.push_back(block);
    return;
  }
  b.cached = true;
  b.older = newest_;
  b.newer = -1;
  (newest_ < 0 ? oldest_ : blocks_[newest_].newer) = block;
  newest_ = block;
  ++num_cached_;
}

void BlockPool::Unlink(int32_t block) {
  Block& b = blocks_[block];
  (b.older < 0 ? oldest_ : blocks_[b.older].newer) = b.newer;
  (b.newer < 0 ? newest_ : blocks_[b.newer].older) = b.older;
  b.older = b.newer = -1;
  b.cached = false;
  --num_cached_;
}

absl::Status BlockPool::CheckInvariants() const {
  std::vector<char> seen(blocks_.size(), 0);
  for (const int32_t block : free_) {
    if (block < 0 || block >= num_blocks()) return absl::InternalError(absl::StrCat("free block ", block));
    if (seen[block]++) return absl::InternalError(absl::StrCat("block ", block, " is free twice"));
    if (blocks_[block].references != 0 || blocks_[block].cached) {
      return absl::InternalError(absl::StrCat("free block ", block, " is also used or cached"));
    }
  }
  int32_t cached = 0;
  for (int32_t block = oldest_, older = -1; block >= 0; older = block, block = blocks_[block].newer) {
    if (seen[block]++) return absl::InternalError(absl::StrCat("cached block ", block, " has two states"));
    if (blocks_[block].references != 0 || !blocks_[block].cached || blocks_[block].older != older) {
      return absl::InternalError(absl::StrCat("cached block ", block, " is wrongly linked"));
    }
    ++cached;
    if (blocks_[block].newer < 0 && block != newest_) return absl::InternalError("the cached list is cut");
  }
  if (cached != num_cached_) {
    return absl::InternalError(absl::StrCat(cached, " blocks are cached, counted ", num_cached_));
  }
  for (int32_t block = 0; block < num_blocks(); ++block) {
    if (!seen[block] && blocks_[block].references <= 0) {
      return absl::InternalError(absl::StrCat("block ", block, " is lost"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
