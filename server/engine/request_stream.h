#ifndef TESSERA_SERVER_ENGINE_REQUEST_STREAM_H_
#define TESSERA_SERVER_ENGINE_REQUEST_STREAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/engine/request.h"

namespace tessera {

// The bounded way out of the engine for one request: the engine pushes, one reader takes. Deltas that gather while the
// reader is busy are merged per output, so memory is bounded by the text itself; a reader that leaves tokens untaken
// for longer than the engine's slow_reader_timeout, or more than slow_reader_tokens of them, is aborted by the engine.
// So a reader that wants the whole answer at once still takes as it comes.
//
// Shared by engine and reader (shared_ptr). All methods are thread-safe.
class RequestStream {
 public:
  // `on_ready` is called by the engine thread, without any lock held, each time the stream goes from empty to not
  // empty. It must return quickly, and may call Take. `on_cancel` is called once, by the first Cancel.
  RequestStream(std::string request_id, std::function<void()> on_ready,
                std::function<void()> on_cancel = nullptr);

  const std::string& request_id() const { return request_id_; }

  // Replaces `*events` by everything that gathered. Returns whether more can come: false with the request's last
  // events, and ever after.
  //
  //   const bool more = stream->Take(&events);
  //   for (RequestEvent& event : events) ...
  //   if (!more) finish; else wait for on_ready
  bool Take(std::vector<RequestEvent>* events);

  // The reader is gone or wants no more: the engine, which is woken, ends the request at its next step (kAbort). Events
  // may still arrive.
  void Cancel();
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // Tokens waiting to be taken, and since when the oldest of them waits (InfiniteFuture if none).
  struct Backlog {
    int32_t tokens = 0;
    absl::Time since = absl::InfiniteFuture();
  };
  Backlog backlog() const;

  // For the engine. Push returns the backlog that it leaves; PushLast ends the stream with this event.
  Backlog Push(RequestEvent event, absl::Time now = absl::Now());
  void PushLast(RequestEvent event);
  // Ends the stream; nothing follows. Once the stream has ended this and Push have no effect.
  void Close();

 private:
  // Appends to the output's delta that still waits, if there is one. Holds mu_.
  bool Merge(OutputDelta* delta);

  const std::string request_id_;
  const std::function<void()> on_ready_;
  const std::function<void()> on_cancel_;
  std::atomic<bool> cancelled_{false};
  mutable std::mutex mu_;  // guards what follows
  std::vector<RequestEvent> events_;
  Backlog backlog_;
  bool closed_ = false;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_REQUEST_STREAM_H_
