#ifndef TESSERA_SERVER_ENGINE_INBOX_H_
#define TESSERA_SERVER_ENGINE_INBOX_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine/active_request.h"

namespace tessera {

// Where the threads of the world and the engine thread meet: new requests and orders to end them go in, the engine
// takes them out between steps. Bounded by what waits for a first step; refusals are immediate. Also the one place that
// knows which request ids are in use.
//
// All methods are thread-safe and hold the lock for a few instructions. Streams keep a pointer to it (shared_ptr), so
// that a late Cancel finds something to talk to.
class Inbox {
 public:
  struct EndOrder {
    uint64_t serial = 0;
    absl::Status why;
  };
  // What the engine takes out.
  struct Contents {
    std::vector<std::unique_ptr<ActiveRequest>> submitted;
    std::vector<EndOrder> ends;  // their requests were submitted before, or have ended
    bool stop = false;
  };

  Inbox(int32_t max_queued_sequences, int64_t max_queued_tokens)
      : max_queued_sequences_(max_queued_sequences), max_queued_tokens_(max_queued_tokens) {}

  // Whether Submit would accept such a request now, as a check before the work of building it.
  absl::Status CheckRoom(const std::string& request_id, int64_t sequences, int64_t tokens) const;
  // UNAVAILABLE, ALREADY_EXISTS or RESOURCE_EXHAUSTED, with the numbers; the request is then gone. Otherwise calls
  // `on_accepted`, before the engine can see the request.
  absl::Status Submit(std::unique_ptr<ActiveRequest> request, absl::FunctionRef<void()> on_accepted);

  // Orders an end. By id: false if none of this id is live.
  bool End(const std::string& request_id, absl::Status why);
  void EndBySerial(uint64_t serial, absl::Status why);
  std::vector<std::string> EndAll(absl::Status why);

  void Wake();
  void Stop();
  // Refuses all further requests with this status; the first one stays.
  void Refuse(absl::Status status);

  // Waits until no request is live, or `deadline` (system clock). True if none is.
  bool WaitUntilNoneLive(absl::Time deadline);
  int32_t submitted_sequences() const;  // not yet taken out
  bool refusing() const;

  // For the engine thread. Take returns at once; Wait when there is something to take, Wake was called, or
  // `deadline` (system clock) has come.
  void Take(Contents* contents);
  void Wait(absl::Time deadline);
  // Sequences that were queued are so no longer: they are in a step, or ended before it.
  void LeaveQueue(int32_t sequences, int64_t tokens);
  // The id may be used again.
  void ReleaseId(const std::string& request_id);
  // The last events of this many requests are out.
  void Delivered(int32_t requests);

 private:
  absl::Status CheckRoomLocked(const std::string& request_id, int64_t sequences, int64_t tokens) const;

  const int32_t max_queued_sequences_;
  const int64_t max_queued_tokens_;
  mutable std::mutex mu_;  // guards what follows
  std::condition_variable work_;
  std::condition_variable none_live_;
  Contents contents_;
  bool woken_ = false;
  absl::Status refusal_;
  absl::flat_hash_map<std::string, uint64_t> live_ids_;
  int64_t live_requests_ = 0;  // submitted, last event not out yet
  int32_t submitted_sequences_ = 0;
  int64_t queued_sequences_ = 0;
  int64_t queued_tokens_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_INBOX_H_
