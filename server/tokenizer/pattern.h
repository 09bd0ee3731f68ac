// The `pattern` of a Split or Replace: {"String": "..."} or {"Regex": "..."}.
#ifndef TESSERA_SERVER_TOKENIZER_PATTERN_H_
#define TESSERA_SERVER_TOKENIZER_PATTERN_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/tokenizer/json_view.h"
#include "server/tokenizer/regex.h"

namespace tessera {

struct Pattern {
  Regex regex;
  // The text, if the pattern is a literal one; never empty then.
  std::string literal;
};

// Refuses what PCRE2 would read otherwise than Oniguruma, for which the patterns are written.
absl::StatusOr<Pattern> PatternFromJson(const JsonView& json);

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_PATTERN_H_
