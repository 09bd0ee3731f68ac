#ifndef TESSERA_SERVER_RPC_EMBED_REACTOR_H_
#define TESSERA_SERVER_RPC_EMBED_REACTOR_H_

#include <vector>

#include "grpcpp/support/server_callback.h"
#include "server/rpc/inference_call.h"
#include "tessera/v1/inference.grpc.pb.h"

namespace tessera {

// Inference.Embed: gathers the results of all inputs. An input that fails is the status of the call.
class EmbedReactor final : public grpc::ServerUnaryReactor, public InferenceCall {
 public:
  // Owns itself until OnDone.
  static EmbedReactor* Start(RpcContext* rpc, grpc::CallbackServerContext* context,
                             const v1::EmbedRequest* request, v1::EmbedResponse* response);

  EmbedReactor(RpcContext* rpc, grpc::CallbackServerContext* context, const v1::EmbedRequest* request,
               v1::EmbedResponse* response);

  void OnCancel() override { Cancel(); }
  void OnDone() override { Release(); }

 private:
  absl::Status Prepare() override;
  void Finish(const absl::Status& status) override;
  void OnEvents() override;

  const v1::EmbedRequest* const request_;  // gRPC's, until OnDone
  absl::Mutex mu_;
  v1::EmbedResponse* const response_ ABSL_PT_GUARDED_BY(mu_);  // gRPC's, until Finish
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mu_);  // the first error of an input
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_EMBED_REACTOR_H_
