// Tokens of PTX text.
#ifndef TESSERA_TESTS_PTX_PARSER_LEXER_H_
#define TESSERA_TESTS_PTX_PARSER_LEXER_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::ptx {

struct Token {
  enum class Kind : uint8_t {
    kWord,  // identifier, directive (".reg"), dotted opcode ("ld.global.L1::no_allocate.v4.u32"), "%r1", "_"
    kNumber,  // as written; starts with a digit
    kString,  // without its quotes
    kPunctuation,
    kEnd,
  };
  Kind kind;
  std::string_view text;  // into the source
  int line;

  bool Is(std::string_view s) const {
    return (kind == Kind::kWord || kind == Kind::kPunctuation) && text == s;
  }
};

// The last token is kEnd. Errors are InvalidArgument "line N: ...".
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_PARSER_LEXER_H_
