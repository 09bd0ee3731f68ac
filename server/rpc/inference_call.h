#ifndef TESSERA_SERVER_RPC_INFERENCE_CALL_H_
#define TESSERA_SERVER_RPC_INFERENCE_CALL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/engine/request_stream.h"
#include "server/rpc/rpc_context.h"

namespace tessera {

// The part that all calls to the engine share: the way in and the way out. A reactor derives from it.
//
//   callback thread   Begin: caller, state, request id
//   tokenizer thread  Prepare: checks, tokenises, hands the request to the engine
//   engine thread     on_ready -> Signal: puts the call into the writers' queue, once however often it is called
//   writer thread     OnEvents: takes what gathered and answers
//
// None of these waits for another. The object owns itself from Begin until Release, and whatever still holds a
// reference (a queued task, the engine's callback) keeps it alive a little longer.
class InferenceCall : public std::enable_shared_from_this<InferenceCall> {
 public:
  virtual ~InferenceCall() = default;

  // When the write that is pending, the last one included, was started; InfiniteFuture if none is.
  virtual absl::Time WriteStarted() const;
  // Ends the call from this side, at any time: the caller sees CANCELLED.
  void Close();

 protected:
  InferenceCall(RpcContext* rpc, grpc::CallbackServerContext* context, const char* method);

  // Starts the life of a call; `field` is the request's own request_id, `request_bytes` its size. Ends in Refuse or in
  // OnEvents.
  void Begin(const std::string& field, size_t request_bytes);
  // For OnCancel: ends the request in the engine at its next step.
  void Cancel();
  // For OnDone.
  void Release();

  // Submits to the engine with the callback given, and returns the request's stream. Not called on callback threads.
  using Submit =
      std::function<absl::StatusOr<std::shared_ptr<RequestStream>>(std::function<void()> on_ready)>;
  // For Prepare: enters the engine. The call's stream is set when this returns OK.
  absl::Status Enter(const Submit& submit);

  // Checks the request and calls Enter. An error refuses the call.
  virtual absl::Status Prepare() = 0;
  // Must finish the call with this status; nothing was accepted.
  virtual void Finish(const absl::Status& status) = 0;
  // There may be events, or the caller has gone. Runs on writer threads, now and then on two at once: a signal that
  // comes while it runs queues it again. Overrides take events under their own lock, so that these stay in order.
  virtual void OnEvents() = 0;

  // The events that gathered, to be moved from before the next call; none before the request is accepted. Sets `ended`
  // after the last. One thread at a time.
  std::vector<RequestEvent>& TakeEvents(bool* ended);
  void Signal();

  // To be called before gRPC's Finish, which writes what a unary call answers.
  void NoteFinish() { finish_nanos_.store(absl::GetCurrentTimeNanos(), std::memory_order_release); }

  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  const RequestId& request_id() const { return request_id_; }
  absl::Time arrival() const { return arrival_; }
  const Serving& serving() const { return *serving_; }
  grpc::CallbackServerContext* context() const { return context_; }
  // One line for the log, if --log-requests.
  void LogFinished(const std::string& reasons, const RequestUsage& usage, const absl::Status& status) const;

 private:
  void Refuse(absl::Status status);
  void RunPrepare();

  RpcContext* const rpc_;
  grpc::CallbackServerContext* const context_;
  const char* const method_;
  const absl::Time arrival_ = absl::Now();
  RequestId request_id_;
  bool arriving_ = false;  // the id is in ArrivingRequests
  const Serving* serving_ = nullptr;
  std::shared_ptr<InferenceCall> self_;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> signalled_{false};
  std::atomic<int64_t> finish_nanos_{0};  // Unix time; 0 before NoteFinish
  absl::Mutex context_mu_;                // held by Close, and never where gRPC may call back
  bool context_lives_ ABSL_GUARDED_BY(context_mu_) = true;
  std::vector<RequestEvent> events_;  // keeps its memory from call to call
  absl::Mutex mu_;
  std::shared_ptr<RequestStream> stream_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_INFERENCE_CALL_H_
