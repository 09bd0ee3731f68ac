#include "server/scheduler/salt_table.h"

#include "server/scheduler/block_hash.h"

namespace tessera {

int32_t SaltTable::Acquire(const std::string& salt) {
  const auto [it, inserted] = ids_.try_emplace(salt, 0);
  if (inserted) {
    if (unused_.empty()) {
      it->second = static_cast<int32_t>(entries_.size());
      entries_.emplace_back();
    } else {
      it->second = unused_.back();
      unused_.pop_back();
    }
    Entry& entry = entries_[it->second];
    entry.salt = salt;
    entry.hash = HashSalt(absl::string_view(salt.data(), salt.size()));
  }
  ++entries_[it->second].references;
  return it->second;
}

void SaltTable::Release(int32_t id) {
  Entry& entry = entries_[id];
  if (--entry.references > 0) return;
  ids_.erase(entry.salt);
  entry.salt = std::string();
  unused_.push_back(id);
}

}  // namespace tessera
