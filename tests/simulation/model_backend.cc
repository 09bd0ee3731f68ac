#include "tests/simulation/model_backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/random.h"

namespace tessera::simulation {

uint64_t ExtendPrefix(uint64_t prefix, int32_t token) {
  return Scramble(prefix * 0x2545f4914f6cdd1du + static_cast<uint32_t>(token));
}

Draw DrawAfter(uint64_t prefix, uint64_t seed, int32_t vocabulary, int32_t stop_one_in) {
  const uint64_t drawn = Scramble(prefix ^ Scramble(seed));
  return {static_cast<int32_t>(drawn % static_cast<uint64_t>(vocabulary)),
          (drawn >> 32) % static_cast<uint64_t>(stop_one_in) == 0};
}

ModelBackend::ModelBackend(int32_t num_blocks, int32_t block_size)
    : block_size_(block_size),
      slots_(static_cast<size_t>(num_blocks) * block_size),
      writers_(num_blocks, 0) {}

absl::Status ModelBackend::CheckNoSharedWrites(absl::Span<const PlannedRow> rows) {
  std::fill(writers_.begin(), writers_.end(), 0);
  for (const PlannedRow& row : rows) {
    for (size_t i = row.start / block_size_; i < row.block_table.size(); ++i)
      writers_[row.block_table[i]] = row.id;
  }
  for (const PlannedRow& row : rows) {
    for (const int32_t block : row.block_table) {
      if (writers_[block] != 0 && writers_[block] != row.id) {
        return absl::InternalError(absl::StrCat("sequence ", writers_[block], " writes block ", block,
                                                ", which sequence ", row.id, " has too"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ModelBackend::Compute(const PlannedRow& row, const RowOwner& owner, uint64_t* prefix) {
  for (int32_t position = 0; position < row.start; ++position) {
    const Slot& slot = SlotAt(row, position);
    if (slot.prefix != owner.prefixes[position]) {
      return absl::InternalError(absl::StrCat("sequence ", row.id, " reads position ", position, " in block ",
                                              row.block_table[position / block_size_],
                                              ", which holds something else, written by ", slot.writer));
    }
    if (slot.salt != owner.salt) {
      return absl::InternalError(absl::StrCat("sequence ", row.id, " of salt ", owner.salt,
                                              " reads position ", position, ", written under salt ",
                                              slot.salt));
    }
    if (!owner.reads_cache && slot.writer != owner.id) {
      return absl::InternalError(absl::StrCat("sequence ", row.id,
                                              " must not read the cache and reads position ", position,
                                              ", written by ", slot.writer));
    }
  }
  uint64_t hash = row.start == 0 ? 0 : SlotAt(row, row.start - 1).prefix;
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    hash = ExtendPrefix(hash, row.tokens[i]);
    SlotAt(row, row.start + static_cast<int32_t>(i)) = {hash, owner.id, owner.salt};
  }
  *prefix = hash;
  return absl::OkStatus();
}

void ModelBackend::Poison(const PlannedRow& row, uint64_t garbage) {
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    SlotAt(row, row.start + static_cast<int32_t>(i)) = {Scramble(garbage + i), row.id, -1};
  }
}

}  // namespace tessera::simulation
