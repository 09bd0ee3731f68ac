#ifndef TESSERA_SERVER_BACKEND_NULL_NULL_BACKEND_H_
#define TESSERA_SERVER_BACKEND_NULL_NULL_BACKEND_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/backend/backend.h"

namespace tessera {

struct NullBackendConfig {
  int32_t vocab_size = 32000;
  int32_t hidden_size = 64;
  int32_t max_context = 32768;
  // Tokens are drawn from first_token .. first_token + num_tokens - 1; num_tokens 0 means up to the end of the
  // vocabulary. Keeps special tokens out of generations.
  int32_t first_token = 0;
  int32_t num_tokens = 0;

  // For tests: latency and faults.
  absl::Duration step_time;   // slept in every step
  absl::Duration token_time;  // and for every token of it
  // Called first in every step; an error is the device's failure.
  std::function<absl::Status(absl::Span<const BatchRow>)> before_run;
  // The most likely token after `last` at `position`, in place of the rule. Must lie in the range above.
  std::function<int32_t(int32_t last, int32_t position)> rule;
  bool overlaps = false;  // as a device that works beside its host: Start only notes the step, Finish runs it
  int32_t nan_token = -1;  // its hidden state and the logits after it hold NaN
};

// A backend without a model: what it answers follows from the tokens of a sequence by a fixed rule that costs next to
// nothing. For measuring and testing everything around the model.
//
// The rule is a hash over the whole prefix, and it goes through the cache as a model's attention does: each position
// leaves its hash in its slot, and a step reads the slots of earlier positions through the block table. A block that
// was freed too early, shared wrongly or never computed changes the output, as it would with a model.
//
// The distribution gives a chance to kNumCandidates neighbouring tokens, the first of them most. Every sampling
// parameter works on it, at the cost of those few; only prompt log-probabilities write out a whole row of logits.
class NullBackend : public Backend {
 public:
  static constexpr int kNumCandidates = 24;

  explicit NullBackend(NullBackendConfig config);

  const BackendInfo& info() const override { return info_; }
  absl::Status AllocateKvCache(const KvCacheConfig& config) override;
  absl::Status Run(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) override;
  bool overlaps() const override { return config_.overlaps; }
  absl::Status Start(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) override;
  absl::Status Finish() override;

 private:
  absl::Status CheckRow(const BatchRow& row) const;
  void RunRow(const BatchRow& row, RowResult* result);
  uint64_t& Slot(const BatchRow& row, int32_t position);
  // Candidates and logits after `token` at `position`, whose hash is `hash`; ids ascend.
  int Candidates(uint64_t hash, int32_t token, int32_t position, int32_t* ids, float* logits) const;

  NullBackendConfig config_;
  BackendInfo info_;
  int32_t block_size_ = 0;
  std::vector<uint64_t> cache_;  // one hash a token slot
  std::vector<float> dense_;     // a row of logits
  std::vector<float> hidden_;
  absl::Span<const BatchRow> started_rows_;
  std::vector<RowResult>* started_results_ = nullptr;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_BACKEND_NULL_NULL_BACKEND_H_
