#ifndef TESSERA_SERVER_RPC_GENERATE_REACTOR_H_
#define TESSERA_SERVER_RPC_GENERATE_REACTOR_H_

#include <deque>
#include <string>

#include "grpcpp/support/server_callback.h"
#include "server/rpc/inference_call.h"
#include "tessera/v1/inference.grpc.pb.h"

namespace tessera {

// Inference.Generate: one message is written at a time; what the engine makes meanwhile gathers in the request's
// stream, merged per output, and goes out in the next message.
class GenerateReactor final : public grpc::ServerWriteReactor<v1::GenerateResponse>, public InferenceCall {
 public:
  // Owns itself until OnDone.
  static GenerateReactor* Start(RpcContext* rpc, grpc::CallbackServerContext* context,
                                const v1::GenerateRequest* request);

  GenerateReactor(RpcContext* rpc, grpc::CallbackServerContext* context, const v1::GenerateRequest* request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override { Cancel(); }
  void OnDone() override { Release(); }
  absl::Time WriteStarted() const override;

 private:
  absl::Status Prepare() override;
  void Finish(const absl::Status& status) override;
  void OnEvents() override;

  // Makes messages of what gathered and starts the next write, or ends the call.
  void Continue();
  void Append(RequestEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const v1::GenerateRequest* const request_;  // gRPC's, until OnDone
  const bool return_token_ids_;

  mutable absl::Mutex mu_;
  std::deque<v1::GenerateResponse> pending_ ABSL_GUARDED_BY(mu_);
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time write_started_ ABSL_GUARDED_BY(mu_);
  bool broken_ ABSL_GUARDED_BY(mu_) = false;  // a write failed: the caller is gone
  bool ended_ ABSL_GUARDED_BY(mu_) = false;   // nothing more will come from the engine
  bool done_ ABSL_GUARDED_BY(mu_) = false;    // Finish was started; nothing may follow
  std::string reasons_ ABSL_GUARDED_BY(mu_);
  RequestUsage usage_ ABSL_GUARDED_BY(mu_);
  v1::GenerateResponse current_ ABSL_GUARDED_BY(mu_);  // being written: unchanged while writing_
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_GENERATE_REACTOR_H_
