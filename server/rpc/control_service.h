#ifndef TESSERA_SERVER_RPC_CONTROL_SERVICE_H_
#define TESSERA_SERVER_RPC_CONTROL_SERVICE_H_

#include "server/rpc/rpc_context.h"
#include "tessera/v1/control.grpc.pb.h"

namespace tessera {

// tessera.v1.Control: answered on the callback thread, from memory and the engine's counters.
class ControlService final : public v1::Control::CallbackService {
 public:
  explicit ControlService(RpcContext* rpc) : rpc_(rpc) {}

  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest* request,
                                         v1::ModelInfo* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::ServerInfo* response) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context, const v1::GetLoadRequest* request,
                                    v1::Load* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;

 private:
  absl::Status ModelInfo(const v1::GetModelInfoRequest& request, v1::ModelInfo* response) const;
  absl::Status Load(v1::Load* response) const;
  absl::Status Abort(const v1::AbortRequest& request, v1::AbortResponse* response) const;

  RpcContext* const rpc_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_CONTROL_SERVICE_H_
