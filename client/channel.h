#ifndef TESSERA_CLIENT_CHANNEL_H_
#define TESSERA_CLIENT_CHANNEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/tessera_client.h"
#include "grpcpp/channel.h"

namespace tessera {

// Checks the options and makes the channel; connects nothing yet.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ClientOptions& options);

}  // namespace tessera

#endif  // TESSERA_CLIENT_CHANNEL_H_
