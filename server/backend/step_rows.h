#ifndef TESSERA_SERVER_BACKEND_STEP_ROWS_H_
#define TESSERA_SERVER_BACKEND_STEP_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cpu/thread_pool.h"
#include "server/backend/backend.h"

namespace tessera {

// A position whose logits somebody wants.
struct WantedLogits {
  int32_t row = 0;
  int32_t token = 0;     // in the step
  int32_t position = 0;  // in the sequence
  bool last = false;     // of its row in this step
};

// The rows of one batch that can be run, their tokens laid out one after the other, and what is wanted of them:
// what every backend does before and after its own work. Kept from step to step for its memory.
class StepRows {
 public:
  // Takes a batch. `results` gets one entry a row; a row that cannot be run gets its error there and is left out.
  void Choose(absl::Span<const BatchRow> rows, const BackendInfo& info, const KvCacheConfig& kv,
              std::vector<RowResult>* results);

  // Rows in the step, ascending, and the place of each one's first token among the step's.
  absl::Span<const int32_t> chosen() const { return chosen_; }
  int64_t first_token(int32_t row) const { return first_token_[row]; }
  int64_t num_tokens() const { return num_tokens_; }

  // What samplers and prompt scorers want, by row and position.
  absl::Span<const WantedLogits> wanted() const { return wanted_; }

  // Hands the logits of wanted()[begin..end), float [end - begin, vocab], to them: rows in parallel, the positions
  // of a row in order. They may overwrite the logits. Errors go to the row's result.
  void Consume(absl::Span<const BatchRow> rows, size_t begin, size_t end, float* logits, int64_t vocab,
               cpu::ThreadPool& pool, std::vector<RowResult>* results);
  // The same for the positions whose indices are `which`, ascending; float [which.size(), vocab].
  void Consume(absl::Span<const BatchRow> rows, absl::Span<const size_t> which, float* logits, int64_t vocab,
               cpu::ThreadPool& pool, std::vector<RowResult>* results);

 private:
  std::vector<int32_t> chosen_;
  std::vector<int64_t> first_token_;  // of each row of the batch
  int64_t num_tokens_ = 0;
  std::vector<WantedLogits> wanted_;
  std::vector<size_t> row_begins_;  // where each row's positions begin in a chunk
  std::vector<size_t> range_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_BACKEND_STEP_ROWS_H_
