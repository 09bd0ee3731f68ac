#ifndef TESSERA_SERVER_SAMPLING_SAMPLER_H_
#define TESSERA_SERVER_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/logit_math.h"
#include "server/sampling/logprobs.h"
#include "server/sampling/sampling_params.h"

namespace tessera {

// What one step drew for one sequence.
struct SampledToken {
  int32_t token = -1;
  PositionLogprobs logprobs;  // filled if the sampler was made with num_logprobs >= 0
};

// Draws the tokens of one sequence. Holds what the draw depends on (parameters, counts of tokens seen), so that the
// token at output position i is a function of the logits, the parameters, the seed and i alone: it is the same alone
// or in a batch, before or after a preemption. The random numbers are counter based: (seed, output position).
//
// Owned by the engine's record of the sequence; used by one thread at a time (a backend may run different samplers in
// parallel). Sample() does not change the state: Accept() does, once the token is kept.
class Sampler {
 public:
  // `prompt` feeds the repetition penalty. `barred` are the tokens barred while fewer than `min_tokens` tokens are
  // out (end and stop ids). `num_logprobs` is -1 for none, else how many most likely tokens to report (0 to 20).
  Sampler(SamplingParams params, absl::Span<const int32_t> prompt, std::vector<int32_t> barred,
          int32_t min_tokens, int num_logprobs);

  // `logits` has one float per vocabulary entry and may be overwritten. `logits` that hold NaN, +infinity, or no
  // finite value, are an INTERNAL error that IsInvalidLogits() tells (logits.h): never a token.
  absl::StatusOr<SampledToken> Sample(absl::Span<float> logits) const;

  // The same for a model that gives only some tokens a chance: `ids` (ascending) have these logits, every other token
  // has -infinity. Costs what the few tokens cost, not the vocabulary.
  absl::StatusOr<SampledToken> SampleSparse(absl::Span<const int32_t> ids, absl::Span<float> logits) const;

  // Records that `token` was appended to the output.
  void Accept(int32_t token);

  // Number of tokens accepted so far.
  int32_t position() const { return position_; }

  // What a device needs to draw the same token: the random number, in [0, 1), and the changes to the logits.
  double Uniform() const;
  void AppendEdits(std::vector<LogitEdit>* edits) const;
  int num_logprobs() const { return num_logprobs_; }
  const SamplingParams& params() const { return params_; }

 private:
  class Row;
  absl::StatusOr<SampledToken> SampleRow(Row row) const;
  int32_t Draw(absl::Span<const float> logits, float largest) const;

  SamplingParams params_;
  std::vector<int32_t> barred_;  // sorted, unique
  int32_t min_tokens_;
  int num_logprobs_;
  int32_t position_ = 0;
  // Kept only where a penalty needs them.
  absl::flat_hash_map<int32_t, int32_t> output_counts_;
  std::vector<int32_t> prompt_tokens_;  // sorted, unique
};

// Collects log-probabilities of prompt tokens while the prompt is computed chunk by chunk.
class PromptScorer {
 public:
  // `prompt` must outlive the scorer. `num_top` as in Sampler.
  PromptScorer(absl::Span<const int32_t> prompt, int num_top);

  // `logits` (read only) predict the token at `position + 1`. Each position arrives once or, after a preemption, again
  // with the same values; positions past the prompt's last but one are ignored.
  absl::Status Add(int32_t position, absl::Span<const float> logits);

  // The same for who has the log-probabilities already: the token that they are wanted of, -1 if of none, and how many of
  // the most likely ones.
  int32_t TokenAfter(int32_t position) const {
    const size_t scored = static_cast<size_t>(position) + 1;
    return position < 0 || scored >= prompt_.size() ? -1 : prompt_[scored];
  }
  int num_top() const { return num_top_; }
  void Put(int32_t position, PositionLogprobs logprobs) { result_[position + 1] = std::move(logprobs); }

  // One entry a prompt token; the first has token.rank 0 and no values.
  const std::vector<PositionLogprobs>& result() const { return result_; }
  // The same, moved out; the scorer is done with.
  std::vector<PositionLogprobs> Release() { return std::move(result_); }

 private:
  absl::Span<const int32_t> prompt_;
  int num_top_;
  std::vector<PositionLogprobs> result_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SAMPLING_SAMPLER_H_
