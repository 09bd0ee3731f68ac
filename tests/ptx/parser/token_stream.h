// A cursor over tokens, for the parser's own files. Errors travel as ParseError inside the parser and leave it as a
// status.
#ifndef TESSERA_TESTS_PTX_PARSER_TOKEN_STREAM_H_
#define TESSERA_TESTS_PTX_PARSER_TOKEN_STREAM_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/ptx/parser/lexer.h"
#include "tests/ptx/parser/type.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {

struct ParseError {
  int line;
  std::string what;
};

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& Next() {
    const Token& token = Peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool AtEnd() const { return Peek().kind == Token::Kind::kEnd; }
  bool Accept(std::string_view text) {
    if (!Peek().Is(text)) return false;
    Next();
    return true;
  }
  void Expect(std::string_view text) {
    if (!Accept(text)) Fail(Cat("expected '", text, "' before '", Peek().text, "'"));
  }
  std::string_view ExpectWord(std::string_view what) {
    if (Peek().kind != Token::Kind::kWord) Fail(Cat("expected ", what, " before '", Peek().text, "'"));
    return Next().text;
  }
  // An integer constant, perhaps with a sign; `name` for the message.
  int64_t ExpectInteger(std::string_view name);
  void SkipLine() {
    for (const int line = Peek().line; !AtEnd() && Peek().line == line;) Next();
  }
  // Past the matching bracket of the one the cursor is at.
  void SkipBalanced(std::string_view open, std::string_view close) {
    int depth = 0;
    do {
      if (AtEnd()) Fail(Cat("'", open, "' without its '", close, "'"));
      if (Peek().Is(open)) ++depth;
      if (Peek().Is(close)) --depth;
      Next();
    } while (depth > 0);
  }
  [[noreturn]] void Fail(std::string what) const { throw ParseError{Peek().line, std::move(what)}; }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

// A PTX constant: 12, 0x1F, 017, 0b101, 12U, 0f3F800000 (bits of a float, kF32), 0d... (kF64), 1.5 (kF64). Type is kB64
// for integers. False if it is none.
bool ParseNumber(std::string_view text, uint64_t* bits, Type* type);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_PARSER_TOKEN_STREAM_H_
