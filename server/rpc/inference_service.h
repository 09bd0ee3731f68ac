#ifndef TESSERA_SERVER_RPC_INFERENCE_SERVICE_H_
#define TESSERA_SERVER_RPC_INFERENCE_SERVICE_H_

#include "server/rpc/rpc_context.h"
#include "tessera/v1/inference.grpc.pb.h"

namespace tessera {

// tessera.v1.Inference: a reactor for each call.
class InferenceService final : public v1::Inference::CallbackService {
 public:
  explicit InferenceService(RpcContext* rpc) : rpc_(rpc) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* GenerateOnce(grpc::CallbackServerContext* context,
                                         const v1::GenerateRequest* request,
                                         v1::GenerateOnceResponse* response) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context, const v1::EmbedRequest* request,
                                  v1::EmbedResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;

 private:
  RpcContext* const rpc_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_INFERENCE_SERVICE_H_
