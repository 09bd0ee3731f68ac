#include "server/engine/request_progress.h"

#include <algorithm>

namespace tessera {
namespace {

const char* ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

// A wall clock may be set back; a duration is never negative.
absl::Duration Between(absl::Time from, absl::Time to) { return std::max(to - from, absl::ZeroDuration()); }

}  // namespace

absl::Duration RequestProgress::TimeToFirstToken() const { return Between(arrival_, *first_token_); }

RequestTimings RequestProgress::Timings(absl::Time end) const {
  RequestTimings timings;
  timings.total = Between(arrival_, end);
  timings.queue = first_step_.has_value() ? Between(arrival_, *first_step_) : timings.total;
  if (first_token_.has_value()) {
    timings.prefill = Between(*first_step_, *first_token_);
    timings.decode = Between(*first_token_, *last_token_);
    timings.time_to_first_token = Between(arrival_, *first_token_);
  } else if (first_step_.has_value()) {
    timings.prefill = Between(*first_step_, end);
  }
  return timings;
}

RequestRecord RequestProgress::Record(RequestRecord::Kind kind, absl::Time end) const {
  const RequestTimings timings = Timings(end);
  RequestRecord record;
  record.kind = kind;
  record.prompt_tokens = prompt_tokens;
  record.completion_tokens = completion_tokens;
  record.max_tokens = max_tokens;
  record.n = n;
  record.preemptions = preemptions;
  record.queue = timings.queue;
  record.total = timings.total;
  if (first_token_.has_value()) {
    record.prefill = timings.prefill;
    record.decode = timings.decode;
  } else if (embedded_.has_value() && first_step_.has_value()) {
    record.prefill = Between(*first_step_, *embedded_);
  }
  for (FinishReason reason : finish_reasons_) record.finish_reasons.push_back(ReasonName(reason));
  return record;
}

}  // namespace tessera
