// The small JSON files around a tokenizer.
#ifndef TESSERA_SERVER_TOKENIZER_TOKENIZER_CONFIG_H_
#define TESSERA_SERVER_TOKENIZER_TOKENIZER_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// One JSON object of what tokenizer_config.json, special_tokens_map.json and added_tokens.json of `directory` say, in
// the form of the first, which goes before the others: the named tokens ("bos_token": "<s>"), the switches
// add_bos_token, add_eos_token and legacy, and added_tokens_decoder. Whatever else is there is left out, however deep
// it is nested. Files may be absent. INVALID_ARGUMENT naming file and key.
absl::StatusOr<std::string> GatherTokenizerConfig(const std::string& directory);

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_TOKENIZER_CONFIG_H_
