#include "server/rpc/callback_threads.h"

#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/byte_buffer.h"

namespace tessera {

struct CallbackThreads::Call {
  grpc::ClientContext context;
  grpc::Slice empty;
  grpc::ByteBuffer request{&empty, 1};  // one without a slice would fail before it is an event
  grpc::ByteBuffer response;
};

// Without credentials gRPC makes a channel on which every call fails.
CallbackThreads::CallbackThreads() : nowhere_(grpc::CreateChannel("", nullptr)) {}

// A call holds the channel, and the last to let go of that must not be one of the threads.
CallbackThreads::~CallbackThreads() {
  absl::MutexLock lock(&mu_);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return call_ == nullptr; };
  mu_.Await(absl::Condition(&none));
}

void CallbackThreads::KeepAwake() {
  Call* call = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (call_ != nullptr) return;
    call_ = std::make_unique<Call>();
    call = call_.get();
  }
  nowhere_.UnaryCall(&call->context, "/nowhere", {}, &call->request, &call->response, [this](grpc::Status) {
    absl::MutexLock lock(&mu_);
    call_ = nullptr;
  });
}

}  // namespace tessera
