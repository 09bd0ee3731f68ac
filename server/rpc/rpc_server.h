#ifndef TESSERA_SERVER_RPC_RPC_SERVER_H_
#define TESSERA_SERVER_RPC_RPC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/engine.h"
#include "server/metrics/metrics.h"
#include "server/rpc/api_keys.h"
#include "server/rpc/served_model.h"
#include "server/rpc/tls.h"

namespace tessera {

struct RpcServerOptions {
  std::string listen = "127.0.0.1:50051";  // HOST:PORT, [IPV6]:PORT or unix:PATH; port 0 for any free one
  std::string version;
  TlsOptions tls;
  ApiKeys api_keys;
  int64_t max_request_bytes = 64 << 20;
  int max_concurrent_streams = 4096;                             // of one connection
  absl::Duration max_connection_age = absl::InfiniteDuration();  // then clients are told to reconnect
  absl::Duration max_connection_age_grace = absl::InfiniteDuration();
  // A caller that has not read for this long is cut off. The engine ends its request sooner or at the same time.
  absl::Duration slow_reader_timeout = absl::Seconds(30);
  // At shutdown, after the last request has ended: for its last message to be read.
  absl::Duration flush_timeout = absl::Seconds(2);
  bool reflection = true;
  bool channelz = false;  // grpc.channelz.v1: what connections and calls there are, told to every caller
  bool log_requests = false;
  int tokenizer_threads = 1;
  int writer_threads = 1;
};

// The gRPC server: listens from Start on, serves from Serve on, and says so through grpc.health.v1.
//
//   Start -> starting -> Serve -> serving <-> failed (the engine does not answer) -> Drain -> draining -> Shutdown
class RpcServer {
 public:
  // Errors: UNAVAILABLE naming address and cause if it cannot listen, those of MakeServerCredentials.
  // `metrics` must outlive the server.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(RpcServerOptions options, Metrics* metrics);
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // The port in use; 0 for unix sockets.
  int port() const;
  // "HOST:PORT" with the port in use.
  std::string address() const;

  // Takes requests from now on; once. `engine` must be started, and outlive this object.
  void Serve(ServedModel model, Engine* engine);

  // Health turns NOT_SERVING and new requests are refused (UNAVAILABLE); running ones go on.
  void Drain();
  // Drain; waits until `deadline` for requests to finish; ends the rest with FINISH_REASON_ABORT; closes all
  // connections. True if nothing was cut off.
  bool DrainAndShutdown(absl::Time deadline);

  bool ready() const;  // serving
  bool alive() const;  // not failed

 private:
  class Impl;
  explicit RpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_RPC_SERVER_H_
