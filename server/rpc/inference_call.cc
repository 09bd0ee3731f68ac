#include "server/rpc/inference_call.h"

#include <utility>

#include "server/logging/logging.h"
#include "server/rpc/status.h"

namespace tessera {

InferenceCall::InferenceCall(RpcContext* rpc, grpc::CallbackServerContext* context, const char* method)
    : rpc_(rpc), context_(context), method_(method) {}

void InferenceCall::Begin(const std::string& field, size_t request_bytes) {
  self_ = shared_from_this();
  rpc_->open_calls().Add(self_);
  request_id_ = ResolveRequestId(field, *context_);
  if (absl::Status status = rpc_->Authenticate(*context_); !status.ok()) return Refuse(std::move(status));
  absl::StatusOr<const Serving*> serving = rpc_->Admit();
  if (!serving.ok()) return Refuse(serving.status());
  serving_ = *serving;
  // An id that is not well formed is not entered; Prepare will refuse it together with whatever else is wrong.
  Violations violations;
  CheckRequestId(request_id_, &violations);
  if (violations.empty()) {
    arriving_ = rpc_->arriving().Add(request_id_.id);
    if (!arriving_) {
      return Refuse(
          absl::AlreadyExistsError("a request with the id " + Quoted(request_id_.id) + " is running"));
    }
  }
  if (!rpc_->tokenizers().TrySubmit([self = self_] { self->RunPrepare(); }, request_bytes)) {
    if (arriving_) rpc_->arriving().Remove(request_id_.id);
    Refuse(WithPushback(absl::ResourceExhaustedError("too many requests wait to be tokenised")));
  }
}

void InferenceCall::RunPrepare() {
  absl::Status status = cancelled() ? absl::CancelledError("the caller cancelled") : Prepare();
  const bool aborted = arriving_ && rpc_->arriving().Remove(request_id_.id);
  if (!status.ok()) return Refuse(std::move(status));
  if (aborted) serving_->engine->Abort(request_id_.id, absl::AbortedError("ended by Control.Abort"));
  Signal();
}

absl::Status InferenceCall::Enter(const Submit& submit) {
  // The engine may keep its callback as long as the stream lives, and this call holds the stream: a strong reference
  // would be a cycle.
  absl::StatusOr<std::shared_ptr<RequestStream>> stream = submit([weak = weak_from_this()] {
    if (std::shared_ptr<InferenceCall> call = weak.lock()) call->Signal();
  });
  if (absl::IsResourceExhausted(stream.status())) return WithPushback(stream.status());
  if (!stream.ok()) return stream.status();
  bool gone = false;
  {
    absl::MutexLock lock(&mu_);
    stream_ = *stream;
    gone = cancelled();
  }
  if (gone) (*stream)->Cancel();
  return absl::OkStatus();
}

void InferenceCall::Cancel() {
  std::shared_ptr<RequestStream> stream;
  {
    absl::MutexLock lock(&mu_);
    cancelled_.store(true, std::memory_order_release);
    stream = stream_;
  }
  if (stream == nullptr) return;  // RunPrepare or Enter will see it
  stream->Cancel();
  Signal();
}

absl::Time InferenceCall::WriteStarted() const {
  const int64_t nanos = finish_nanos_.load(std::memory_order_acquire);
  return nanos == 0 ? absl::InfiniteFuture() : absl::FromUnixNanos(nanos);
}

void InferenceCall::Close() {
  absl::MutexLock lock(&context_mu_);
  if (context_lives_) context_->TryCancel();
}

void InferenceCall::Release() {
  {
    absl::MutexLock lock(&context_mu_);
    context_lives_ = false;
  }
  rpc_->open_calls().Remove(this);
  std::shared_ptr<InferenceCall> last =
      std::move(self_);  // destroys *this when it goes, unless a task holds on
}

std::vector<RequestEvent>& InferenceCall::TakeEvents(bool* ended) {
  std::shared_ptr<RequestStream> stream;
  {
    absl::MutexLock lock(&mu_);
    stream = stream_;
  }
  events_.clear();
  *ended = stream != nullptr && !stream->Take(&events_);
  return events_;
}

void InferenceCall::Signal() {
  if (signalled_.exchange(true, std::memory_order_acq_rel)) return;
  // The writers' queue has no bound of its own: a call is in it at most once.
  const bool queued = rpc_->writers().TrySubmit([self = shared_from_this()] {
    self->signalled_.store(false, std::memory_order_release);
    self->OnEvents();
  });
  (void)queued;
}

void InferenceCall::Refuse(absl::Status status) {
  rpc_->metrics()->OnRequestRejected(std::string(absl::StatusCodeToString(status.code())));
  if (rpc_->options().log_requests) {
    LogInfo("request refused", {{"request_id", request_id_.id},
                                {"method", method_},
                                {"code", std::string(absl::StatusCodeToString(status.code()))},
                                {"total_seconds", absl::Now() - arrival_}});
  }
  Finish(status);
}

void InferenceCall::LogFinished(const std::string& reasons, const RequestUsage& usage,
                                const absl::Status& status) const {
  if (!rpc_->options().log_requests) return;
  LogInfo("request finished", {{"request_id", request_id_.id},
                               {"method", method_},
                               {"finish_reasons", reasons},
                               {"prompt_tokens", usage.prompt_tokens},
                               {"completion_tokens", usage.completion_tokens},
                               {"cached_tokens", usage.cached_tokens},
                               {"code", std::string(absl::StatusCodeToString(status.code()))},
                               {"total_seconds", absl::Now() - arrival_}});
}

}  // namespace tessera
