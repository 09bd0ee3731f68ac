#ifndef TESSERA_CLIENT_RETRY_H_
#define TESSERA_CLIENT_RETRY_H_

#include <cstdint>
#include <optional>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/tessera_client.h"

namespace tessera {

// Decides whether a failed try is followed by another, and after what wait. No clock and no I/O of its own,
// so that its rules can be tested. One for each call; not thread-safe.
class RetryState {
 public:
  // `deadline`: of the whole call. A wait that would reach it is not begun: the caller learns the reason now.
  RetryState(const RetryPolicy& policy, absl::Time deadline) : policy_(policy), deadline_(deadline) {}

  // After a try failed with `status` at `now`. `pushback_ms`: the server's grpc-retry-pushback-ms, if it sent
  // one. The wait before the next try, or nothing when there is to be none.
  std::optional<absl::Duration> Next(const absl::Status& status, std::optional<int64_t> pushback_ms,
                                     absl::Time now);

 private:
  const RetryPolicy policy_;
  const absl::Time deadline_;
  int attempts_ = 1;
  absl::BitGen random_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_RETRY_H_
