#ifndef TESSERA_SERVER_SCHEDULER_SALT_TABLE_H_
#define TESSERA_SERVER_SCHEDULER_SALT_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace tessera {

// Cache salts by small numbers, so that a block can name its salt exactly (a hash of the salt would let two
// tenants meet). Reference counted: a salt is forgotten when no sequence and no block has it.
class SaltTable {
 public:
  // The number of `salt`, with one reference more.
  int32_t Acquire(const std::string& salt);
  void Acquire(int32_t id) { ++entries_[id].references; }
  void Release(int32_t id);

  uint64_t hash(int32_t id) const { return entries_[id].hash; }
  int32_t references(int32_t id) const { return entries_[id].references; }
  int32_t size() const { return static_cast<int32_t>(ids_.size()); }

 private:
  struct Entry {
    std::string salt;
    uint64_t hash = 0;
    int32_t references = 0;
  };
  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<Entry> entries_;
  std::vector<int32_t> unused_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SCHEDULER_SALT_TABLE_H_
