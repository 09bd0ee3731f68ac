#ifndef TESSERA_CLIENT_CANCELLATION_H_
#define TESSERA_CLIENT_CANCELLATION_H_

#include <condition_variable>
#include <mutex>
#include <set>

#include "absl/time/time.h"
#include "client/tessera_client.h"
#include "grpcpp/client_context.h"

namespace tessera {

// What a Cancellation's copies and the calls under it share. Thread-safe.
struct Cancellation::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool cancelled = false;
  std::set<grpc::ClientContext*> contexts;

  void Cancel() {
    std::lock_guard<std::mutex> lock(mutex);
    cancelled = true;
    for (grpc::ClientContext* context : contexts) context->TryCancel();
    changed.notify_all();
  }

  bool IsCancelled() {
    std::lock_guard<std::mutex> lock(mutex);
    return cancelled;
  }

  // True if it was cancelled before or during the wait.
  bool WaitFor(absl::Duration wait) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, absl::ToChronoNanoseconds(wait), [this] { return cancelled; });
  }
};

// Registers a context for as long as its call runs, so that Cancel reaches it.
class ScopedContext {
 public:
  ScopedContext(Cancellation::State& state, grpc::ClientContext& context) : state_(state), context_(context) {
    std::lock_guard<std::mutex> lock(state_.mutex);
    state_.contexts.insert(&context_);
    // A call that starts after it ends with CANCELLED at once.
    if (state_.cancelled) context_.TryCancel();
  }
  ~ScopedContext() {
    std::lock_guard<std::mutex> lock(state_.mutex);
    state_.contexts.erase(&context_);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  Cancellation::State& state_;
  grpc::ClientContext& context_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_CANCELLATION_H_
