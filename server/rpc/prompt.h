#ifndef TESSERA_SERVER_RPC_PROMPT_H_
#define TESSERA_SERVER_RPC_PROMPT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/rpc/served_model.h"
#include "server/rpc/status.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// Checks a prompt's fields without tokenising it. `path` is its place in the request, for example "prompt". Cheap for
// text; linear for token ids.
void CheckPrompt(const v1::Prompt& prompt, const std::string& path, const ServedModel& model,
                 Violations* violations);

// Adds a violation for the first few ids that are not in the model's vocabulary.
void CheckTokenIds(const google::protobuf::RepeatedField<int32_t>& ids, const std::string& path,
                   const ServedModel& model, Violations* violations);

struct TextOptions {
  // For text alone.
  bool add_special_tokens = true;
  bool parse_special = false;
  // For text and chat: stop once it is certain that there are more, with an error or with the first max_tokens.
  size_t max_tokens = kAnyNumberOfTokens;
  bool truncate = false;
};

// The tokens of a prompt that CheckPrompt found right. Slow for long text: never call it on a callback thread. Errors:
// INVALID_ARGUMENT (the template refused the conversation), OUT_OF_RANGE (more than options.max_tokens),
// FAILED_PRECONDITION (no tokenizer, no chat template).
absl::StatusOr<std::vector<int32_t>> TokenizePrompt(const v1::Prompt& prompt, const std::string& path,
                                                    const ServedModel& model,
                                                    const TextOptions& options = {});

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_PROMPT_H_
