#ifndef TESSERA_SERVER_RPC_STATUS_H_
#define TESSERA_SERVER_RPC_STATUS_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace tessera {

// Collects everything that is wrong with a request, so that the caller can mend it in one go.
class Violations {
 public:
  // `field` is the path in the request, for example "sampling.logit_bias[17]"; `description` says what was found and
  // what was expected. Text of the request in it must go through Quoted().
  void Add(std::string field, std::string description);

  bool empty() const { return total_ == 0; }
  size_t size() const { return total_; }

  // OK if there are none, else INVALID_ARGUMENT: a message that sums them up, and google.rpc.BadRequest as payload.
  // Bounded to what fits gRPC's 8 KiB of metadata; what does not fit is counted.
  absl::Status ToStatus() const;

 private:
  std::vector<std::pair<std::string, std::string>> kept_;
  size_t total_ = 0;
};

// `text` in quotes, escaped to printable ASCII and cut after 64 bytes.
std::string Quoted(const std::string& text);

// INVALID_ARGUMENT for one field alone.
absl::Status InvalidField(std::string field, std::string description);

// Adds google.rpc.RetryInfo: come back after `delay`.
absl::Status WithRetryAfter(absl::Status status, absl::Duration delay);
// The delay that WithRetryAfter put in.
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

// The same code and message (cut to 1 KiB, valid UTF-8); payloads become google.rpc.Status in grpc-status-details-bin.
grpc::Status ToGrpcStatus(const absl::Status& status);

// ToGrpcStatus, with the trailer grpc-retry-pushback-ms put into `context` if the status has a RetryAfter.
grpc::Status FinishStatus(const absl::Status& status, grpc::CallbackServerContext* context);

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_STATUS_H_
