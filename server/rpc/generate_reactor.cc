#include "server/rpc/generate_reactor.h"

#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/rpc/convert.h"
#include "server/rpc/status.h"
#include "server/rpc/validation.h"

namespace tessera {

GenerateReactor* GenerateReactor::Start(RpcContext* rpc, grpc::CallbackServerContext* context,
                                        const v1::GenerateRequest* request) {
  auto reactor = std::make_shared<GenerateReactor>(rpc, context, request);
  reactor->Begin(request->request_id(), request->ByteSizeLong());
  return reactor.get();  // not yet deleted: OnDone comes only after it is returned
}

GenerateReactor::GenerateReactor(RpcContext* rpc, grpc::CallbackServerContext* context,
                                 const v1::GenerateRequest* request)
    : InferenceCall(rpc, context, "Generate"),
      request_(request),
      return_token_ids_(request->return_token_ids()) {}

absl::Status GenerateReactor::Prepare() {
  absl::StatusOr<GenerateSpec> spec = MakeGenerateSpec(*request_, request_id(), serving().model, arrival());
  if (!spec.ok()) return spec.status();
  {
    absl::MutexLock lock(&mu_);
    v1::Accepted* accepted = current_.mutable_accepted();
    accepted->set_request_id(spec->request_id);
    accepted->set_model(serving().model.info.name());
    accepted->set_prompt_tokens(static_cast<int32_t>(spec->prompt.size()));
    accepted->set_seed(spec->sampling.seed);
    if (request_->return_prompt_token_ids()) {
      accepted->mutable_prompt_token_ids()->Add(spec->prompt.begin(), spec->prompt.end());
    }
  }
  absl::Status status = Enter([this, &spec](std::function<void()> on_ready) {
    return serving().engine->Generate(*std::move(spec), std::move(on_ready));
  });
  if (!status.ok()) return status;
  absl::MutexLock lock(&mu_);
  accepted_ = true;
  return absl::OkStatus();
}

void GenerateReactor::Finish(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    done_ = true;
  }
  NoteFinish();
  ServerWriteReactor::Finish(FinishStatus(status, context()));
}

absl::Time GenerateReactor::WriteStarted() const {
  absl::MutexLock lock(&mu_);
  return writing_ ? write_started_ : InferenceCall::WriteStarted();
}

void GenerateReactor::OnEvents() { Continue(/*written=*/false); }

void GenerateReactor::OnWriteDone(bool ok) {
  if (!ok) {
    {
      absl::MutexLock lock(&mu_);
      broken_ = true;
    }
    Cancel();
  }
  Continue(/*written=*/true);
}

void GenerateReactor::Continue(bool written) {
  // Once the call is finished OnDone may come on another thread, before this returns.
  const std::shared_ptr<InferenceCall> keep = weak_from_this().lock();
  absl::Status status;
  std::string reasons;
  RequestUsage usage;
  bool write = false;
  {
    absl::MutexLock lock(&mu_);
    if (written) writing_ = false;
    // Before Accepted is in place nothing may be taken; while a write is pending the engine's side gathers.
    if (done_ || writing_ || !accepted_) return;
    if (broken_ || cancelled()) {
      status = absl::CancelledError("the caller cancelled");
    } else if (NextMessage()) {
      write = writing_ = true;
      write_started_ = absl::Now();
    } else if (!ended_) {
      return;
    }
    if (!write) {
      done_ = true;
      reasons = reasons_;
      usage = usage_;
    }
  }
  if (write) {
    // Serialises the message and may write it to the socket. OnWriteDone may come on another thread before it returns.
    StartWrite(&current_);
    return;
  }
  LogFinished(reasons, usage, status);
  NoteFinish();
  ServerWriteReactor::Finish(ToGrpcStatus(status));
}

bool GenerateReactor::NextMessage() {
  if (!accepted_written_) return accepted_written_ = true;
  // No more than there is to write now: what is left with the engine counts against a reader that does not read.
  for (;;) {
    while (events_ != nullptr && next_event_ < events_->size()) {
      if (MakeMessage(&(*events_)[next_event_++])) return true;
    }
    if (ended_) return false;
    events_ = &TakeEvents(&ended_);
    next_event_ = 0;
    if (events_->empty()) return false;
  }
}

bool GenerateReactor::MakeMessage(RequestEvent* event) {
  if (OutputDelta* delta = std::get_if<OutputDelta>(event)) {
    v1::Delta* out = current_.mutable_delta();
    out->Clear();
    const Tokenizer* tokenizer = serving().model.tokenizer.get();
    out->set_index(delta->index);
    out->set_text(delta->text);
    out->set_num_tokens(static_cast<int32_t>(delta->token_ids.size()));
    if (return_token_ids_) out->mutable_token_ids()->Add(delta->token_ids.begin(), delta->token_ids.end());
    ToProto(delta->logprobs, tokenizer, out->mutable_logprobs());
    ToProto(delta->prompt_logprobs, tokenizer, out->mutable_prompt_logprobs());
    return true;
  }
  OutputFinished* finished = std::get_if<OutputFinished>(event);
  if (finished == nullptr) return false;  // an embedding's result, which no generation has
  v1::Finished* out = current_.mutable_finished();
  out->Clear();
  ToProto(*finished, out);
  absl::StrAppend(&reasons_, reasons_.empty() ? "" : ",", FinishReasonName(finished->reason));
  if (finished->usage) {
    usage_ = *finished->usage;
    ToProto(usage_, out->mutable_usage());
  }
  if (finished->timings) ToProto(*finished->timings, out->mutable_timings());
  return true;
}

}  // namespace tessera
