#ifndef TESSERA_CLIENT_STATUS_H_
#define TESSERA_CLIENT_STATUS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace tessera {

// The same code and message. A google.rpc.BadRequest among the details (grpc-status-details-bin) becomes a
// payload under its type URL, and its violations are appended to the message unless the server has put them
// there.
absl::Status FromGrpc(const grpc::Status& status);

// The trailer grpc-retry-pushback-ms of a call that has ended. A value that is no number counts as "do not
// retry" (gRFC A6).
std::optional<int64_t> RetryPushback(const grpc::ClientContext& context);

}  // namespace tessera

#endif  // TESSERA_CLIENT_STATUS_H_
