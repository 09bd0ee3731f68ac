#ifndef TESSERA_SERVER_RPC_CALLBACK_THREADS_H_
#define TESSERA_SERVER_RPC_CALLBACK_THREADS_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/generic/generic_stub.h"

namespace tessera {

// Keeps gRPC's callback threads from sleeping all at once.
//
// gRPC 1.51 has a few threads that wait for events, a second at a time; one that got none in this time sleeps 100 ms,
// deaf to what comes (src/cpp/common/completion_queue_cc.cc, "nexting_thread"). Where little happens all of them do so
// together, and a request then lies on the socket for up to 100 ms. A call on a channel that leads nowhere fails at
// once, and its failure is an event: who got the last one is awake for a second from then on.
class CallbackThreads {
 public:
  // How often KeepAwake is to be called at least.
  static constexpr absl::Duration kPeriod = absl::Milliseconds(500);

  CallbackThreads();
  ~CallbackThreads();

  // Gives one of the threads something to do. Returns at once. From one thread.
  void KeepAwake();

 private:
  struct Call;

  grpc::GenericStub nowhere_;
  absl::Mutex mu_;
  std::unique_ptr<Call> call_ ABSL_GUARDED_BY(mu_);  // until it has failed
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_CALLBACK_THREADS_H_
