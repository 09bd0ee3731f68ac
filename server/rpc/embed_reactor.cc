#include "server/rpc/embed_reactor.h"

#include <utility>
#include <variant>

#include "server/rpc/status.h"
#include "server/rpc/validation.h"

namespace tessera {

EmbedReactor* EmbedReactor::Start(RpcContext* rpc, grpc::CallbackServerContext* context,
                                  const v1::EmbedRequest* request, v1::EmbedResponse* response) {
  auto reactor = std::make_shared<EmbedReactor>(rpc, context, request, response);
  reactor->Begin(request->request_id(), request->ByteSizeLong());
  return reactor.get();
}

EmbedReactor::EmbedReactor(RpcContext* rpc, grpc::CallbackServerContext* context,
                           const v1::EmbedRequest* request, v1::EmbedResponse* response)
    : InferenceCall(rpc, context, "Embed"), request_(request), response_(response) {}

absl::Status EmbedReactor::Prepare() {
  absl::StatusOr<EmbedCall> call = MakeEmbedCall(*request_, request_id(), serving().model, arrival());
  if (!call.ok()) return call.status();
  {
    absl::MutexLock lock(&mu_);
    response_->set_request_id(call->spec.request_id);
    response_->set_model(serving().model.info.name());
    for (bool cut : call->truncated) response_->add_embeddings()->set_truncated(cut);
    accepted_ = true;
  }
  return Enter([this, &call](std::function<void()> on_ready) {
    return serving().engine->Embed(std::move(call->spec), std::move(on_ready));
  });
}

void EmbedReactor::Finish(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    done_ = true;
  }
  NoteFinish();
  ServerUnaryReactor::Finish(FinishStatus(status, context()));
}

void EmbedReactor::OnEvents() {
  absl::Status status;
  RequestUsage usage;
  {
    absl::MutexLock lock(&mu_);
    if (done_ || !accepted_) return;
    bool ended = false;
    for (bool more = true; more;) {
      std::vector<RequestEvent>& events = TakeEvents(&ended);
      more = !ended && !events.empty();
      for (RequestEvent& event : events) {
        EmbeddingResult* result = std::get_if<EmbeddingResult>(&event);
        if (result == nullptr) continue;
        if (!result->status.ok() && error_.ok()) error_ = result->status;
        v1::Embedding* embedding = response_->mutable_embeddings(result->index);
        embedding->mutable_values()->Add(result->values.begin(), result->values.end());
        embedding->set_num_tokens(result->num_tokens);
        response_->set_prompt_tokens(response_->prompt_tokens() + result->num_tokens);
      }
    }
    if (!ended && !cancelled()) return;
    done_ = true;
    status = cancelled() ? absl::CancelledError("the caller cancelled") : error_;
    usage.prompt_tokens = response_->prompt_tokens();
  }
  LogFinished(status.ok() ? "stop" : "error", usage, status);
  NoteFinish();
  ServerUnaryReactor::Finish(FinishStatus(status, context()));
}

}  // namespace tessera
