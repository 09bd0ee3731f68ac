#ifndef TESSERA_SERVER_RPC_HEALTH_SERVICE_H_
#define TESSERA_SERVER_RPC_HEALTH_SERVICE_H_

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/rpc/rpc_context.h"

namespace tessera {

// grpc.health.v1 for the services that health.proto names. Answers from memory alone, without a key, whatever the
// engine does. gRPC's own implementation would say SERVING from the moment the port is open.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  HealthService();
  ~HealthService() override;

  // Sets what all services say in this state of the server, and tells the watchers.
  void SetState(ServerState state);
  // Ends all watches, so that the server can shut down; later ones end at once.
  void Shutdown();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context, const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class WatchReactor;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  static Status StatusOf(const std::string& service, ServerState state);

  absl::Mutex mu_;
  ServerState state_ ABSL_GUARDED_BY(mu_) = ServerState::kStarting;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<WatchReactor>> watchers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_HEALTH_SERVICE_H_
