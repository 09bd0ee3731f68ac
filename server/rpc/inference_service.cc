#include "server/rpc/inference_service.h"

#include <utility>

#include "server/rpc/embed_reactor.h"
#include "server/rpc/generate_once_reactor.h"
#include "server/rpc/generate_reactor.h"
#include "server/rpc/status.h"
#include "server/rpc/validation.h"

namespace tessera {
namespace {

// A unary call that needs the tokenizer's threads and nothing of the engine: answered in every state that has a model.
// `handle` gives the response or an error.
template <typename Request, typename Response, typename Handle>
grpc::ServerUnaryReactor* RunOnTokenizer(RpcContext* rpc, grpc::CallbackServerContext* context,
                                         const Request* request, Response* response, Handle handle) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = rpc->Authenticate(*context);
  const Serving* serving = nullptr;
  if (status.ok()) {
    absl::StatusOr<const Serving*> loaded = rpc->Loaded();
    status = loaded.status();
    if (loaded.ok()) serving = *loaded;
  }
  if (status.ok()) {
    const bool queued = rpc->tokenizers().TrySubmit(
        [context, reactor, request, response, serving, handle] {
          absl::StatusOr<Response> answer = handle(*request, serving->model);
          if (answer.ok()) *response = *std::move(answer);
          reactor->Finish(ToGrpcStatus(answer.status()));
        },
        request->ByteSizeLong());
    if (queued) return reactor;
    status = WithPushback(absl::ResourceExhaustedError("too many requests wait to be tokenised"));
  }
  reactor->Finish(FinishStatus(status, context));
  return reactor;
}

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  return GenerateReactor::Start(rpc_, context, request);
}

grpc::ServerUnaryReactor* InferenceService::GenerateOnce(grpc::CallbackServerContext* context,
                                                         const v1::GenerateRequest* request,
                                                         v1::GenerateOnceResponse* response) {
  return GenerateOnceReactor::Start(rpc_, context, request, response);
}

grpc::ServerUnaryReactor* InferenceService::Embed(grpc::CallbackServerContext* context,
                                                  const v1::EmbedRequest* request,
                                                  v1::EmbedResponse* response) {
  return EmbedReactor::Start(rpc_, context, request, response);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  return RunOnTokenizer(rpc_, context, request, response, tessera::Tokenize);
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return RunOnTokenizer(rpc_, context, request, response, tessera::Detokenize);
}

}  // namespace tessera
