#include "client/retry.h"

#include <algorithm>
#include <cmath>

namespace tessera {

std::optional<absl::Duration> RetryState::Next(const absl::Status& status, std::optional<int64_t> pushback_ms,
                                               absl::Time now) {
  const bool retryable =
      absl::IsUnavailable(status) || (policy_.retry_when_full && absl::IsResourceExhausted(status));
  if (!retryable || attempts_ >= policy_.max_attempts) return std::nullopt;
  // RESOURCE_EXHAUSTED without a pushback can also be a message over the size limit, which no retry mends.
  if (absl::IsResourceExhausted(status) && !pushback_ms.has_value()) return std::nullopt;
  absl::Duration wait;
  if (pushback_ms.has_value()) {
    if (*pushback_ms < 0) return std::nullopt;
    wait = absl::Milliseconds(*pushback_ms);
  } else {
    const double growth = std::pow(policy_.multiplier, attempts_ - 1);
    wait = std::min(policy_.initial_backoff * growth, policy_.max_backoff);
    wait *= absl::Uniform(absl::IntervalClosed, random_, 1 - policy_.jitter, 1 + policy_.jitter);
  }
  if (now + wait >= deadline_) return std::nullopt;
  ++attempts_;
  return wait;
}

}  // namespace tessera
