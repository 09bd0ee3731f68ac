#ifndef TESSERA_SERVER_BACKEND_NULL_NULL_BACKEND_H_
#define TESSERA_SERVER_BACKEND_NULL_NULL_BACKEND_H_

#include <cstdint>
#include <deque>
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
  bool overlaps = false;  // as a device that works beside its host
  int32_t late_one_in = 0;  // with overlaps: one token in this many is drawn late; 0: none
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
  absl::Status Draw() override;
  absl::Status Finish() override;
  bool DrawsOnDevice(const Sampler&) const override { return true; }
  absl::Duration device_idle() const override { return idle_; }

 private:
  // A step on its way through the device: started, not finished. Has its own copy of what a device gets in Start.
  struct Started {
    absl::Span<const BatchRow> given;
    std::vector<BatchRow> rows;
    std::vector<int32_t> tokens, blocks;  // of all rows
    std::vector<RowResult>* results = nullptr;
    absl::Duration idle;
    absl::Time end;  // when the device has done it
  };

  absl::Duration TimeOf(absl::Span<const BatchRow> rows) const;
  absl::Status RunRows(absl::Span<const BatchRow> rows, std::vector<RowResult>* results);
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

  std::deque<Started> started_;  // the first is the one to be finished
  std::vector<int32_t> drawn_;   // by the rows of the last step, as a step started ahead takes it
  int64_t num_drawn_ = 0;
  absl::Time device_free_ = absl::InfinitePast();
  absl::Duration idle_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_BACKEND_NULL_NULL_BACKEND_H_
