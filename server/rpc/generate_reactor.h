#ifndef TESSERA_SERVER_RPC_GENERATE_REACTOR_H_
#define TESSERA_SERVER_RPC_GENERATE_REACTOR_H_

#include <cstddef>
#include <string>
#include <vector>

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

  // Starts the next write if there is one and none is pending, or ends the call. `written`: the pending one is done.
  void Continue(bool written);
  // Puts the next message into `current_`. False if there is none yet, or no more.
  bool NextMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MakeMessage(RequestEvent* event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const v1::GenerateRequest* const request_;  // gRPC's, until OnDone
  const bool return_token_ids_;

  mutable absl::Mutex mu_;  // not held where gRPC is called, which writes to the socket
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;
  bool accepted_written_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<RequestEvent>* events_ ABSL_GUARDED_BY(mu_) = nullptr;  // those taken last,
  size_t next_event_ ABSL_GUARDED_BY(mu_) = 0;                        // and the first not made a message of
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time write_started_ ABSL_GUARDED_BY(mu_);
  bool broken_ ABSL_GUARDED_BY(mu_) = false;  // a write failed: the caller is gone
  bool ended_ ABSL_GUARDED_BY(mu_) = false;   // nothing more will come from the engine
  bool done_ ABSL_GUARDED_BY(mu_) = false;    // Finish was started; nothing may follow
  std::string reasons_ ABSL_GUARDED_BY(mu_);
  RequestUsage usage_ ABSL_GUARDED_BY(mu_);
  // The message being written: unchanged while writing_. Kept from message to message for its memory.
  v1::GenerateResponse current_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_GENERATE_REACTOR_H_
