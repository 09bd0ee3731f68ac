// The `normalizer` of tokenizer.json: what happens to a text before anything is looked for in it.
#ifndef TESSERA_SERVER_TOKENIZER_NORMALIZER_H_
#define TESSERA_SERVER_TOKENIZER_NORMALIZER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tokenizer/json_view.h"

namespace tessera {

// Immutable, thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Replaces `text`, valid UTF-8, by its normal form, valid UTF-8. `at_start`: it is the start of a whole input.
  virtual absl::Status Normalize(bool at_start, std::string* text) const = 0;

  // NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, Precompiled, Sequence. Null for null.
  static absl::StatusOr<std::unique_ptr<Normalizer>> FromJson(const JsonView& json);
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_NORMALIZER_H_
