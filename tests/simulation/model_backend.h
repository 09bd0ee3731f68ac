#ifndef TESSERA_TESTS_SIMULATION_MODEL_BACKEND_H_
#define TESSERA_TESTS_SIMULATION_MODEL_BACKEND_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/scheduler/scheduler.h"

namespace tessera::simulation {

// What a language model does, seen from its scheduler: the keys and values of a position depend on every
// token up to it, and so does the next token. Here they are hashes.
uint64_t ExtendPrefix(uint64_t prefix, int32_t token);

// What a sequence that generates with `seed` draws after this prefix.
struct Draw {
  int32_t token = 0;
  bool stops = false;
};
Draw DrawAfter(uint64_t prefix, uint64_t seed, int32_t vocabulary, int32_t stop_one_in);

// Who asks for a row, and the prefix hash after each of its tokens as it should be.
struct RowOwner {
  SequenceId id = 0;
  int32_t salt = 0;
  bool reads_cache = true;
  absl::Span<const uint64_t> prefixes;
};

// A key-value cache that remembers what was written to each slot and by whom. It computes a row from what is
// in the blocks of the row's table, as a device would, and besides verifies that this is what should be
// there.
class ModelBackend {
 public:
  ModelBackend(int32_t num_blocks, int32_t block_size);

  // To be called before a step's rows are computed: blocks that one row writes may be in no other row's
  // table.
  absl::Status CheckNoSharedWrites(absl::Span<const PlannedRow> rows);

  // Computes one row. `prefix` gets the hash of all tokens up to the row's last.
  absl::Status Compute(const PlannedRow& row, const RowOwner& owner, uint64_t* prefix);

  // A row that failed: its slots hold anything.
  void Poison(const PlannedRow& row, uint64_t garbage);

 private:
  struct Slot {
    uint64_t prefix = 0x6e6f7468696e67;  // never a right one
    SequenceId writer = 0;
    int32_t salt = -1;
  };
  Slot& SlotAt(const PlannedRow& row, int32_t position) {
    return slots_[static_cast<size_t>(row.block_table[position / block_size_]) * block_size_ +
                  position % block_size_];
  }

  const int32_t block_size_;
  std::vector<Slot> slots_;
  std::vector<SequenceId> writers_;  // a block's writer in this step; scratch
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_MODEL_BACKEND_H_
