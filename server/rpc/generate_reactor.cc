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
  v1::GenerateResponse first;
  v1::Accepted* accepted = first.mutable_accepted();
  accepted->set_request_id(spec->request_id);
  accepted->set_model(serving().model.info.name());
  accepted->set_prompt_tokens(static_cast<int32_t>(spec->prompt.size()));
  accepted->set_seed(spec->sampling.seed);
  if (request_->return_prompt_token_ids()) {
    accepted->mutable_prompt_token_ids()->Add(spec->prompt.begin(), spec->prompt.end());
  }
  absl::Status status = Enter([this, &spec](std::function<void()> on_ready) {
    return serving().engine->Generate(*std::move(spec), std::move(on_ready));
  });
  if (!status.ok()) return status;
  absl::MutexLock lock(&mu_);
  pending_.push_front(std::move(first));
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

void GenerateReactor::OnEvents() { Continue(); }

void GenerateReactor::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) broken_ = true;
  }
  if (!ok) Cancel();
  Continue();
}

void GenerateReactor::Continue() {
  // Once the call is finished OnDone may come on another thread, before this returns.
  const std::shared_ptr<InferenceCall> keep = weak_from_this().lock();
  absl::Status status;
  std::string reasons;
  RequestUsage usage;
  {
    absl::MutexLock lock(&mu_);
    // Before Accepted is in place nothing may be taken; while a write is pending the engine's side gathers.
    if (done_ || writing_ || !accepted_) return;
    // No more than there is to write now: what is left with the engine counts against a reader that does not read, and
    // the first message does not wait for those after it.
    while (!broken_ && !cancelled() && pending_.empty() && !ended_) {
      std::vector<RequestEvent>& events = TakeEvents(&ended_);
      if (events.empty()) break;
      for (RequestEvent& event : events) Append(std::move(event));
    }
    if (broken_ || cancelled()) {
      status = absl::CancelledError("the caller cancelled");
    } else if (!pending_.empty()) {
      writing_ = true;
      write_started_ = absl::Now();
      current_ = std::move(pending_.front());
      pending_.pop_front();
      // Serialises the message; its completion comes through gRPC's queue, never on this stack.
      StartWrite(&current_);
      return;
    } else if (!ended_) {
      return;
    }
    done_ = true;
    reasons = reasons_;
    usage = usage_;
  }
  // Not under the lock, which OnDone's side may want.
  LogFinished(reasons, usage, status);
  NoteFinish();
  ServerWriteReactor::Finish(ToGrpcStatus(status));
}

void GenerateReactor::Append(RequestEvent event) {
  v1::GenerateResponse response;
  if (OutputDelta* delta = std::get_if<OutputDelta>(&event)) {
    v1::Delta* out = response.mutable_delta();
    const Tokenizer* tokenizer = serving().model.tokenizer.get();
    out->set_index(delta->index);
    out->set_text(std::move(delta->text));
    out->set_num_tokens(static_cast<int32_t>(delta->token_ids.size()));
    if (return_token_ids_) out->mutable_token_ids()->Add(delta->token_ids.begin(), delta->token_ids.end());
    ToProto(delta->logprobs, tokenizer, out->mutable_logprobs());
    ToProto(delta->prompt_logprobs, tokenizer, out->mutable_prompt_logprobs());
  } else if (OutputFinished* finished = std::get_if<OutputFinished>(&event)) {
    v1::Finished* out = response.mutable_finished();
    ToProto(*finished, out);
    absl::StrAppend(&reasons_, reasons_.empty() ? "" : ",", FinishReasonName(finished->reason));
    if (finished->usage) {
      usage_ = *finished->usage;
      ToProto(usage_, out->mutable_usage());
    }
    if (finished->timings) ToProto(*finished->timings, out->mutable_timings());
  } else {
    return;  // an embedding's result, which no generation has
  }
  pending_.push_back(std::move(response));
}

}  // namespace tessera
