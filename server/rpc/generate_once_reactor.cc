#include "server/rpc/generate_once_reactor.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/rpc/convert.h"
#include "server/rpc/status.h"
#include "server/rpc/validation.h"

namespace tessera {

GenerateOnceReactor* GenerateOnceReactor::Start(RpcContext* rpc, grpc::CallbackServerContext* context,
                                                const v1::GenerateRequest* request,
                                                v1::GenerateOnceResponse* response) {
  auto reactor = std::make_shared<GenerateOnceReactor>(rpc, context, request, response);
  reactor->Begin(request->request_id(), request->ByteSizeLong());
  return reactor.get();
}

GenerateOnceReactor::GenerateOnceReactor(RpcContext* rpc, grpc::CallbackServerContext* context,
                                         const v1::GenerateRequest* request,
                                         v1::GenerateOnceResponse* response)
    : InferenceCall(rpc, context, "GenerateOnce"), request_(request), response_(response) {}

absl::Status GenerateOnceReactor::Prepare() {
  absl::StatusOr<GenerateSpec> spec = MakeGenerateSpec(*request_, request_id(), serving().model, arrival());
  if (!spec.ok()) return spec.status();
  {
    absl::MutexLock lock(&mu_);
    response_->set_request_id(spec->request_id);
    response_->set_model(serving().model.info.name());
    response_->set_seed(spec->sampling.seed);
    if (request_->return_prompt_token_ids()) {
      response_->mutable_prompt_token_ids()->Add(spec->prompt.begin(), spec->prompt.end());
    }
    for (int32_t i = 0; i < spec->n; ++i) response_->add_outputs()->set_index(i);
    accepted_ = true;
  }
  return Enter([this, &spec](std::function<void()> on_ready) {
    return serving().engine->Generate(*std::move(spec), std::move(on_ready));
  });
}

void GenerateOnceReactor::Finish(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    done_ = true;
  }
  NoteFinish();
  ServerUnaryReactor::Finish(FinishStatus(status, context()));
}

void GenerateOnceReactor::OnEvents() {
  absl::Status status;
  std::string reasons;
  RequestUsage usage;
  {
    absl::MutexLock lock(&mu_);
    if (done_ || !accepted_) return;
    bool ended = false;
    for (bool more = true; more;) {
      std::vector<RequestEvent>& events = TakeEvents(&ended);
      more = !ended && !events.empty();
      for (RequestEvent& event : events) Gather(std::move(event));
    }
    if (!ended && !cancelled()) return;
    done_ = true;
    status = cancelled() ? absl::CancelledError("the caller cancelled") : error_;
    reasons = reasons_;
    usage = usage_;
  }
  LogFinished(reasons, usage, status);
  NoteFinish();
  ServerUnaryReactor::Finish(FinishStatus(status, context()));
}

void GenerateOnceReactor::Gather(RequestEvent event) {
  const Tokenizer* tokenizer = serving().model.tokenizer.get();
  if (OutputDelta* delta = std::get_if<OutputDelta>(&event)) {
    v1::Output* output = response_->mutable_outputs(delta->index);
    output->mutable_text()->append(delta->text);
    if (request_->return_token_ids()) {
      output->mutable_token_ids()->Add(delta->token_ids.begin(), delta->token_ids.end());
    }
    ToProto(delta->logprobs, tokenizer, output->mutable_logprobs());
    ToProto(delta->prompt_logprobs, tokenizer, response_->mutable_prompt_logprobs());
  } else if (OutputFinished* finished = std::get_if<OutputFinished>(&event)) {
    ToProto(*finished, response_->mutable_outputs(finished->index)->mutable_finished());
    absl::StrAppend(&reasons_, reasons_.empty() ? "" : ",", FinishReasonName(finished->reason));
    if (finished->reason == FinishReason::kError && error_.ok()) {
      error_ =
          finished->error.ok() ? absl::InternalError("the engine failed on this request") : finished->error;
    }
    if (finished->usage) {
      usage_ = *finished->usage;
      ToProto(usage_, response_->mutable_usage());
    }
    if (finished->timings) ToProto(*finished->timings, response_->mutable_timings());
  }
}

}  // namespace tessera
