#ifndef TESSERA_SERVER_TOKENIZER_JINJA_PARSER_H_
#define TESSERA_SERVER_TOKENIZER_JINJA_PARSER_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/jinja/ast.h"

namespace tessera::jinja {

// Parses Jinja's language less what reaches beyond one template (extends, block, include, import).
// INVALID_ARGUMENT "line N: ..." if the source is malformed.
absl::StatusOr<Template> ParseTemplate(absl::string_view source);

}  // namespace tessera::jinja

#endif  // TESSERA_SERVER_TOKENIZER_JINJA_PARSER_H_
