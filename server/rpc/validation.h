#ifndef TESSERA_SERVER_RPC_VALIDATION_H_
#define TESSERA_SERVER_RPC_VALIDATION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/request.h"
#include "server/rpc/served_model.h"
#include "server/rpc/status.h"
#include "tessera/v1/control.pb.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// From a request as it came to one that the engine takes. Ranges and defaults are those of proto/tessera/v1. These
// functions tokenise, so they may be slow: never call them on a callback thread.

// Where a request's id came from.
struct RequestId {
  std::string id;
  std::string field = "request_id";  // or the metadata's name, for messages
  bool repeated = false;             // the metadata was sent more than once
};

// Adds a violation if `id` is not 1 to 128 printable ASCII characters without spaces.
void CheckRequestId(const RequestId& id, Violations* violations);

// NOT_FOUND if `name` is neither empty nor the model's.
absl::Status CheckModelName(const std::string& name, const ServedModel& model);

absl::StatusOr<GenerateSpec> MakeGenerateSpec(const v1::GenerateRequest& request, const RequestId& id,
                                              const ServedModel& model, absl::Time arrival);

// An embedding call, and which of its inputs were cut.
struct EmbedCall {
  EmbedSpec spec;
  std::vector<bool> truncated;
};
absl::StatusOr<EmbedCall> MakeEmbedCall(const v1::EmbedRequest& request, const RequestId& id,
                                        const ServedModel& model, absl::Time arrival);

absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request, const ServedModel& model);
absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                  const ServedModel& model);

absl::Status CheckAbortRequest(const v1::AbortRequest& request);

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_VALIDATION_H_
