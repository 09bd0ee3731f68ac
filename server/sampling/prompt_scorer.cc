#include "server/sampling/logits.h"
#include "server/sampling/sampler.h"

namespace tessera {

PromptScorer::PromptScorer(absl::Span<const int32_t> prompt, int num_top)
    : prompt_(prompt), num_top_(num_top), result_(prompt.size()) {
  if (!prompt_.empty()) result_[0].token.token = prompt_[0];
}

absl::Status PromptScorer::Add(int32_t position, absl::Span<const float> logits) {
  const size_t scored = static_cast<size_t>(position) + 1;
  if (position < 0 || scored >= prompt_.size()) return absl::OkStatus();
  const int32_t token = prompt_[scored];
  if (token < 0 || static_cast<size_t>(token) >= logits.size()) {
    return absl::InternalError("a prompt token lies outside the model's vocabulary");
  }
  const absl::StatusOr<LargestLogit> largest = FindLargest(logits);
  if (!largest.ok()) return largest.status();
  result_[scored] = ComputeLogprobs(logits, largest->value, token, num_top_);
  return absl::OkStatus();
}

}  // namespace tessera
