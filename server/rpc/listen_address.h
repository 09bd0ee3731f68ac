#ifndef TESSERA_SERVER_RPC_LISTEN_ADDRESS_H_
#define TESSERA_SERVER_RPC_LISTEN_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// HOST:PORT or [IPV6]:PORT.
struct HostPort {
  std::string host;
  int port = 0;
};

// INVALID_ARGUMENT saying what is wrong with `address`.
absl::StatusOr<HostPort> ParseHostPort(const std::string& address);

// Binds and closes a socket on `address`, to learn why a server could not: gRPC itself only says that it failed.
// UNAVAILABLE naming address and cause. OK for unix: addresses, which are not tried.
absl::Status CheckCanListen(const std::string& address);

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_LISTEN_ADDRESS_H_
