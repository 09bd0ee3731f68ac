// The `post_processor` of tokenizer.json: the special tokens around a sequence.
#ifndef TESSERA_SERVER_TOKENIZER_POST_PROCESSOR_H_
#define TESSERA_SERVER_TOKENIZER_POST_PROCESSOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tokenizer/json_view.h"

namespace tessera {

struct PostProcessor {
  std::vector<int32_t> before, after;

  // TemplateProcessing, ByteLevel (which concerns offsets only), BertProcessing, RobertaProcessing, Sequence.
  static absl::StatusOr<PostProcessor> FromJson(const JsonView& json);
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_POST_PROCESSOR_H_
