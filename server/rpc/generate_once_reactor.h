#ifndef TESSERA_SERVER_RPC_GENERATE_ONCE_REACTOR_H_
#define TESSERA_SERVER_RPC_GENERATE_ONCE_REACTOR_H_

#include <string>

#include "grpcpp/support/server_callback.h"
#include "server/rpc/inference_call.h"
#include "tessera/v1/inference.grpc.pb.h"

namespace tessera {

// Inference.GenerateOnce: gathers the deltas of Generate into one answer.
class GenerateOnceReactor final : public grpc::ServerUnaryReactor, public InferenceCall {
 public:
  // Owns itself until OnDone.
  static GenerateOnceReactor* Start(RpcContext* rpc, grpc::CallbackServerContext* context,
                                    const v1::GenerateRequest* request, v1::GenerateOnceResponse* response);

  GenerateOnceReactor(RpcContext* rpc, grpc::CallbackServerContext* context,
                      const v1::GenerateRequest* request, v1::GenerateOnceResponse* response);

  void OnCancel() override { Cancel(); }
  void OnDone() override { Release(); }

 private:
  absl::Status Prepare() override;
  void Finish(const absl::Status& status) override;
  void OnEvents() override;
  void Gather(RequestEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const v1::GenerateRequest* const request_;  // gRPC's, until OnDone
  absl::Mutex mu_;
  v1::GenerateOnceResponse* const response_ ABSL_PT_GUARDED_BY(mu_);  // gRPC's, until Finish
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mu_);  // the first error of an output
  std::string reasons_ ABSL_GUARDED_BY(mu_);
  RequestUsage usage_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_GENERATE_ONCE_REACTOR_H_
