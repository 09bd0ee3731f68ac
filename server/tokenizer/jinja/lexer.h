// Splits a template into its text and the tokens of its tags, with Jinja's whitespace control as transformers
// sets it: trim_blocks and lstrip_blocks on, one trailing newline of the source dropped.
#ifndef TESSERA_SERVER_TOKENIZER_JINJA_LEXER_H_
#define TESSERA_SERVER_TOKENIZER_JINJA_LEXER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::jinja {

struct Token {
  enum Kind {
    kData,           // text outside of tags
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string text;  // kData, kName, kOperator; kString: with its escapes resolved
  int64_t integer = 0;
  double number = 0;
  int line = 1;
};

// The last token is kEnd. INVALID_ARGUMENT with the line if the source cannot be split.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

}  // namespace tessera::jinja

#endif  // TESSERA_SERVER_TOKENIZER_JINJA_LEXER_H_
