#include "server/scheduler/prefix_cache.h"

#include <algorithm>
#include <cstring>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"

namespace tessera {

PrefixCache::PrefixCache(int32_t num_blocks, int32_t block_size)
    : block_size_(block_size),
      entries_(num_blocks),
      tokens_(static_cast<size_t>(num_blocks) * block_size),
      buckets_(absl::bit_ceil(static_cast<uint64_t>(std::max(num_blocks, 1)) * 2), -1) {}

int32_t PrefixCache::Find(uint64_t hash, int32_t parent, absl::Span<const int32_t> tokens) const {
  for (int32_t block = buckets_[Bucket(hash)]; block >= 0; block = entries_[block].next) {
    const Entry& entry = entries_[block];
    if (entry.hash == hash && entry.parent == parent &&
        std::memcmp(&tokens_[static_cast<size_t>(block) * block_size_], tokens.data(),
                    sizeof(int32_t) * block_size_) == 0) {
      return block;
    }
  }
  return -1;
}

void PrefixCache::Insert(int32_t block, uint64_t hash, int32_t parent, absl::Span<const int32_t> tokens) {
  int32_t& bucket = buckets_[Bucket(hash)];
  entries_[block] = {.hash = hash, .serial = ++last_serial_, .parent = parent, .next = bucket};
  bucket = block;
  std::copy_n(tokens.begin(), block_size_, tokens_.begin() + static_cast<size_t>(block) * block_size_);
  ++size_;
}

void PrefixCache::Erase(int32_t block) {
  int32_t* link = &buckets_[Bucket(entries_[block].hash)];
  while (*link != block) link = &entries_[*link].next;
  *link = entries_[block].next;
  entries_[block] = Entry();
  --size_;
}

absl::Status PrefixCache::CheckInvariants() const {
  std::vector<char> reached(entries_.size(), 0);
  int32_t count = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (int32_t block = buckets_[bucket]; block >= 0; block = entries_[block].next) {
      const Entry& entry = entries_[block];
      if (reached[block]++)
        return absl::InternalError(absl::StrCat("block ", block, " is in the index twice"));
      if (entry.serial == 0 || Bucket(entry.hash) != bucket) {
        return absl::InternalError(absl::StrCat("block ", block, " is in the wrong bucket of the index"));
      }
      if (Find(entry.hash, entry.parent, tokens(block)) != block) {
        return absl::InternalError(absl::StrCat("block ", block, " has a duplicate in the index"));
      }
      ++count;
    }
  }
  for (size_t block = 0; block < entries_.size(); ++block) {
    const Entry& entry = entries_[block];
    if (entry.serial == 0) continue;
    if (!reached[block]) return absl::InternalError(absl::StrCat("block ", block, " cannot be found"));
    if (!IsRoot(entry.parent) && !Contains(entry.parent)) {
      return absl::InternalError(absl::StrCat("block ", block, " outlived its parent ", entry.parent));
    }
    if (!IsRoot(entry.parent) && entries_[entry.parent].serial > entry.serial) {
      return absl::InternalError(absl::StrCat("block ", block, " is older than its parent ", entry.parent));
    }
  }
  if (count != size_) return absl::InternalError(absl::StrCat(count, " blocks indexed, counted ", size_));
  return absl::OkStatus();
}

}  // namespace tessera
