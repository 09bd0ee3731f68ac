#include "server/scheduler/block_manager.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/scheduler/block_hash.h"

namespace tessera {

BlockManager::BlockManager(int32_t num_blocks, int32_t block_size, int32_t hash_bits)
    : block_size_(block_size),
      hash_mask_(hash_bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << std::max(hash_bits, 0)) - 1),
      pool_(num_blocks),
      cache_(num_blocks, block_size) {}

void BlockManager::ExtendHashes(int32_t salt, absl::Span<const int32_t> tokens, int32_t count,
                                std::vector<uint64_t>* hashes) const {
  for (int32_t i = static_cast<int32_t>(hashes->size()); i < count; ++i) {
    const uint64_t parent = i == 0 ? salts_.hash(salt) : hashes->back();
    hashes->push_back(HashBlock(parent, tokens.subspan(static_cast<size_t>(i) * block_size_, block_size_)) &
                      hash_mask_);
  }
}

void BlockManager::Match(int32_t salt, absl::Span<const int32_t> tokens, absl::Span<const uint64_t> hashes,
                         PrefixMatch* match) const {
  auto& blocks = match->blocks;
  while (!blocks.empty() && cache_.serial(blocks.back().block) != blocks.back().serial) blocks.pop_back();
  while (blocks.size() < hashes.size()) {
    const size_t i = blocks.size();
    const int32_t parent = i == 0 ? PrefixCache::Root(salt) : blocks.back().block;
    const int32_t block = cache_.Find(hashes[i], parent, tokens.subspan(i * block_size_, block_size_));
    if (block < 0) break;
    blocks.push_back({block, cache_.serial(block)});
  }
}

int32_t BlockManager::CountUsed(const PrefixMatch& match) const {
  // Who holds a block holds its parents, so the used ones come first.
  const auto end = std::partition_point(
      match.blocks.begin(), match.blocks.end(),
      [this](const PrefixMatch::Entry& entry) { return pool_.references(entry.block) > 0; });
  return static_cast<int32_t>(end - match.blocks.begin());
}

int32_t BlockManager::Allocate() {
  const int32_t block = pool_.TakeFree();
  if (block >= 0) return block;
  const int32_t oldest = pool_.OldestCached();
  if (oldest < 0) return -1;
  Forget(oldest);
  pool_.Drop(oldest);
  return pool_.TakeFree();
}

void BlockManager::ReleaseTable(absl::Span<const int32_t> table) {
  for (size_t i = table.size(); i > 0; --i) Release(table[i - 1]);
}

int32_t BlockManager::Publish(int32_t block, uint64_t hash, int32_t parent,
                              absl::Span<const int32_t> tokens) {
  const int32_t existing = cache_.Find(hash, parent, tokens);
  if (existing >= 0) return existing;
  cache_.Insert(block, hash, parent, tokens);
  if (PrefixCache::IsRoot(parent)) salts_.Acquire(PrefixCache::SaltOf(parent));
  return block;
}

void BlockManager::Forget(int32_t block) {
  const int32_t parent = cache_.parent(block);
  cache_.Erase(block);
  if (PrefixCache::IsRoot(parent)) salts_.Release(PrefixCache::SaltOf(parent));
}

void BlockManager::ClearPrefixCache() {
  for (int32_t block = 0; block < pool_.num_blocks(); ++block) {
    if (cache_.Contains(block)) Forget(block);
  }
  while (pool_.OldestCached() >= 0) pool_.Drop(pool_.OldestCached());
}

absl::Status BlockManager::CheckInvariants() const {
  if (absl::Status status = pool_.CheckInvariants(); !status.ok()) return status;
  if (absl::Status status = cache_.CheckInvariants(); !status.ok()) return status;
  int32_t published_unused = 0;
  for (int32_t block = 0; block < pool_.num_blocks(); ++block) {
    if (!cache_.Contains(block)) continue;
    const int32_t parent = cache_.parent(block);
    if (pool_.references(block) == 0) ++published_unused;
    if (!PrefixCache::IsRoot(parent) && pool_.references(block) > pool_.references(parent)) {
      return absl::InternalError(absl::StrCat("block ", block, " has more holders than its parent ", parent));
    }
    if (PrefixCache::IsRoot(parent) && salts_.references(PrefixCache::SaltOf(parent)) <= 0) {
      return absl::InternalError(absl::StrCat("the cache salt of block ", block, " is gone"));
    }
  }
  if (published_unused != pool_.num_cached()) {
    return absl::InternalError(absl::StrCat(published_unused, " published blocks have no holder, but ",
                                            pool_.num_cached(), " are cached"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
