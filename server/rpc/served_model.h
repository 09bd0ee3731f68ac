#ifndef TESSERA_SERVER_RPC_SERVED_MODEL_H_
#define TESSERA_SERVER_RPC_SERVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "server/tokenizer/chat_template.h"
#include "server/tokenizer/tokenizer.h"
#include "tessera/v1/control.pb.h"

namespace tessera {

// What the RPC layer knows of the model, for checking requests and for turning text into tokens. Immutable.
struct ServedModel {
  // As GetModelInfo returns it. vocab_size and max_context are the limits that requests are checked against; every
  // field of default_sampling that differs from its own default is set.
  v1::ModelInfo info;
  // Null: the model has none, and only token ids are served.
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  // For requests that do not say max_tokens.
  int32_t default_max_tokens = 256;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_SERVED_MODEL_H_
