#ifndef TESSERA_SERVER_ENGINE_REQUEST_STREAM_H_
#define TESSERA_SERVER_ENGINE_REQUEST_STREAM_H_

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/engine/request.h"

namespace tessera {

// The bounded way out of the engine for one request: the engine pushes, one reader takes. Deltas that gather while the
// reader is busy are merged per output, so memory is bounded by the text itself; a reader that leaves tokens untaken
// for longer than the engine's slow_reader_timeout, or more than slow_reader_tokens of them, is aborted by the engine.
//
// Shared by engine and reader (shared_ptr). All methods are thread-safe.
class RequestStream {
 public:
  // `on_ready` is called by the engine thread, without any lock held, each time the stream goes from empty to not
  // empty. It must return quickly, and may call Take.
  RequestStream(std::string request_id, std::function<void()> on_ready);

  const std::string& request_id() const { return request_id_; }

  // Moves out everything that gathered. Returns false once the request has ended and everything was taken.
  bool Take(std::vector<RequestEvent>* events);

  // The reader is gone or wants no more: the engine ends the request at its next step. Events may still arrive.
  void Cancel() { cancelled_.store(true, std::memory_order_release); }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // For the engine.
  void Push(RequestEvent event);
  void Close();  // nothing follows
  // Tokens waiting to be taken, and since when the oldest of them waits (InfiniteFuture if none).
  int32_t untaken_tokens() const;
  absl::Time untaken_since() const;

 private:
  const std::string request_id_;
  const std::function<void()> on_ready_;
  std::atomic<bool> cancelled_{false};
  mutable absl::Mutex mu_;
  std::vector<RequestEvent> events_ ABSL_GUARDED_BY(mu_);
  int32_t untaken_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time untaken_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_REQUEST_STREAM_H_
