// The expression half of the parser.
#ifndef TESSERA_SERVER_TOKENIZER_JINJA_EXPRESSION_PARSER_H_
#define TESSERA_SERVER_TOKENIZER_JINJA_EXPRESSION_PARSER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/jinja/ast.h"
#include "server/tokenizer/jinja/lexer.h"

namespace tessera::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  using Result = absl::StatusOr<ExprPtr>;

  // An expression, with `a if b else c` unless `with_condition` is off.
  Result Expression(bool with_condition = true);
  // One expression, or several with commas between as a tuple; ends before the name `end` if that is not empty.
  Result ExpressionOrTuple(bool with_condition = true, absl::string_view end = "");
  // A name, ns.attr, or several with commas between.
  absl::StatusOr<Target> AssignmentTarget(bool allow_attribute);
  // `| name(...)` applied to `input`, and further ones.
  Result Filters(ExprPtr input);
  Result OneFilter(ExprPtr input);
  // The arguments in parentheses, appended to `call`.
  absl::Status CallArguments(Expr* call);

  const Token& Current() const { return tokens_[pos_]; }
  const Token& Ahead(size_t n = 1) const { return tokens_[std::min(pos_ + n, tokens_.size() - 1)]; }
  Token Next() { return tokens_[pos_ + 1 < tokens_.size() ? pos_++ : pos_]; }
  bool IsOperator(absl::string_view op) const {
    return Current().kind == Token::kOperator && Current().text == op;
  }
  bool IsName(absl::string_view name) const {
    return Current().kind == Token::kName && Current().text == name;
  }
  bool SkipOperator(absl::string_view op);
  bool SkipName(absl::string_view name);
  absl::Status ExpectOperator(absl::string_view op);
  absl::Status Expect(Token::Kind kind, absl::string_view what);
  absl::StatusOr<std::string> ExpectName();
  absl::Status Error(absl::string_view message) const;
  ExprPtr New(Expr::Kind kind) const;
  // Whatever can nest takes one of these for as long as it is being parsed.
  class Level {
   public:
    explicit Level(ExpressionParser* parser) : parser_(parser) { ++parser_->depth_; }
    ~Level() { --parser_->depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    ExpressionParser* parser_;
  };
  absl::Status CheckDepth() const;
  // As errors name a token.
  static std::string Describe(const Token& token);

  // Nesting of expressions and statements together.
  static constexpr int kMaxDepth = 100;
  static constexpr size_t kMaxChain = 200;  // of operators, filters, subscripts at one level

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int depth_ = 0;

 private:
  Result Condition();
  Result Or();
  Result And();
  Result Not();
  Result Compare();
  Result Sum();
  Result Concat();
  Result Product();
  Result Power();
  Result Unary(bool with_filters);
  Result Primary();
  Result Parenthesized();
  Result ListLiteral();
  Result DictLiteral();
  Result Postfix(ExprPtr node);
  Result FiltersAndTests(ExprPtr node);
  Result Call(ExprPtr callee);
  Result Subscript(ExprPtr node);
  Result Test(ExprPtr node);
};

}  // namespace tessera::jinja

#endif  // TESSERA_SERVER_TOKENIZER_JINJA_EXPRESSION_PARSER_H_
