#ifndef TESSERA_SERVER_ENGINE_REQUEST_PROGRESS_H_
#define TESSERA_SERVER_ENGINE_REQUEST_PROGRESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/engine/request.h"
#include "server/metrics/metrics.h"

namespace tessera {

// What is counted of one request while it lives; becomes its timings, usage and metrics when it ends. Times are the
// steps' own: all tokens of a step come at the same instant.
class RequestProgress {
 public:
  explicit RequestProgress(absl::Time arrival) : arrival_(arrival) {}

  // A step begins to work on the request. Only the first counts.
  void OnStep(absl::Time now) {
    if (!first_step_.has_value()) first_step_ = now;
  }
  // A token of any output. True if it is the request's first.
  bool OnToken(absl::Time now) {
    ++completion_tokens;
    last_token_ = now;
    if (first_token_.has_value()) return false;
    first_token_ = now;
    return true;
  }
  // An embedding call: the results of all inputs are there, which ends its prefill as a first token would.
  void OnEmbedded(absl::Time now) { embedded_ = now; }
  void OnFinish(FinishReason reason) { finish_reasons_.push_back(reason); }

  absl::Duration TimeToFirstToken() const;  // once there is one
  RequestTimings Timings(absl::Time end) const;
  RequestUsage Usage() const { return {prompt_tokens, completion_tokens, cached_tokens}; }
  RequestRecord Record(RequestRecord::Kind kind, absl::Time end) const;

  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t preemptions = 0;
  int32_t max_tokens = 0;
  int32_t n = 1;

 private:
  absl::Time arrival_;
  std::optional<absl::Time> first_step_, first_token_, last_token_, embedded_;
  std::vector<FinishReason> finish_reasons_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_REQUEST_PROGRESS_H_
