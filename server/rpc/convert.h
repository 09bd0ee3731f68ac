#ifndef TESSERA_SERVER_RPC_CONVERT_H_
#define TESSERA_SERVER_RPC_CONVERT_H_

#include <vector>

#include "server/engine/request.h"
#include "server/rpc/served_model.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// From the engine's types to the API's.

v1::FinishReason ToProto(FinishReason reason);
const char* FinishReasonName(FinishReason reason);  // as in metrics and logs: "stop", ...
void ToProto(const RequestUsage& usage, v1::Usage* out);
void ToProto(const RequestTimings& timings, v1::Timings* out);
// Without usage and timings.
void ToProto(const OutputFinished& finished, v1::Finished* out);
// `tokenizer` gives the tokens' bytes; may be null.
void ToProto(const std::vector<PositionLogprobs>& logprobs, const Tokenizer* tokenizer,
             google::protobuf::RepeatedPtrField<v1::PositionLogprobs>* out);

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_CONVERT_H_
