#include "server/tokenizer/jinja/expression_parser.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/status_macros.h"

namespace tessera::jinja {

std::string ExpressionParser::Describe(const Token& token) {
  switch (token.kind) {
    case Token::kData:
      return "text";
    case Token::kBlockBegin:
      return "'{%'";
    case Token::kBlockEnd:
      return "'%}'";
    case Token::kVariableBegin:
      return "'{{'";
    case Token::kVariableEnd:
      return "'}}'";
    case Token::kEnd:
      return "the end of the template";
    default:
      return absl::StrCat("'", token.text, "'");
  }
}

bool ExpressionParser::SkipOperator(absl::string_view op) {
  if (!IsOperator(op)) return false;
  Next();
  return true;
}

bool ExpressionParser::SkipName(absl::string_view name) {
  if (!IsName(name)) return false;
  Next();
  return true;
}

absl::Status ExpressionParser::ExpectOperator(absl::string_view op) {
  if (SkipOperator(op)) return absl::OkStatus();
  return Error(absl::StrCat("expected '", op, "', got ", Describe(Current())));
}

absl::Status ExpressionParser::Expect(Token::Kind kind, absl::string_view what) {
  if (Current().kind != kind) return Error(absl::StrCat("expected ", what, ", got ", Describe(Current())));
  Next();
  return absl::OkStatus();
}

absl::StatusOr<std::string> ExpressionParser::ExpectName() {
  if (Current().kind != Token::kName)
    return Error(absl::StrCat("expected a name, got ", Describe(Current())));
  return Next().text;
}

absl::Status ExpressionParser::Error(absl::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat("line ", Current().line, ": ", message));
}

ExprPtr ExpressionParser::New(Expr::Kind kind) const {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = Current().line;
  return e;
}

absl::Status ExpressionParser::CheckDepth() const {
  return depth_ > kMaxDepth ? Error("the template is nested too deeply") : absl::OkStatus();
}

ExpressionParser::Result ExpressionParser::Expression(bool with_condition) {
  const Level level(this);
  TESSERA_RETURN_IF_ERROR(CheckDepth());
  return with_condition ? Condition() : Or();
}

ExpressionParser::Result ExpressionParser::ExpressionOrTuple(bool with_condition, absl::string_view end) {
  const auto at_end = [&] {
    const Token& t = Current();
    return t.kind == Token::kVariableEnd || t.kind == Token::kBlockEnd || IsOperator(")") ||
           (!end.empty() && IsName(end));
  };
  ExprPtr tuple = New(Expr::Kind::kTuple);
  bool has_comma = false;
  while (!at_end()) {
    TESSERA_ASSIGN_OR_RETURN(ExprPtr item, Expression(with_condition));
    tuple->args.push_back(std::move(item));
    if (!SkipOperator(",")) break;
    has_comma = true;
  }
  if (!has_comma && tuple->args.size() == 1) return std::move(tuple->args[0]);
  if (tuple->args.empty()) return Error(absl::StrCat("expected an expression, got ", Describe(Current())));
  return tuple;
}

absl::StatusOr<Target> ExpressionParser::AssignmentTarget(bool allow_attribute) {
  const auto one = [&]() -> absl::StatusOr<Target> {
    Target t;
    TESSERA_ASSIGN_OR_RETURN(t.name, ExpectName());
    for (const char* reserved : {"true", "false", "none", "True", "False", "None"}) {
      if (t.name == reserved) return Error(absl::StrCat("cannot assign to '", t.name, "'"));
    }
    if (allow_attribute && SkipOperator(".")) {
      TESSERA_ASSIGN_OR_RETURN(t.attribute, ExpectName());
    }
    return t;
  };
  Target tuple;
  bool has_comma = false;
  const bool parenthesis = SkipOperator("(");
  while (Current().kind == Token::kName && !IsName("in")) {
    TESSERA_ASSIGN_OR_RETURN(Target part, one());
    tuple.parts.push_back(std::move(part));
    if (!SkipOperator(",")) break;
    has_comma = true;
  }
  if (parenthesis) TESSERA_RETURN_IF_ERROR(ExpectOperator(")"));
  if (tuple.parts.empty())
    return Error(absl::StrCat("expected a name to assign to, got ", Describe(Current())));
  if (!has_comma) return std::move(tuple.parts[0]);
  return tuple;
}

ExpressionParser::Result ExpressionParser::Condition() {
  TESSERA_ASSIGN_OR_RETURN(ExprPtr value, Or());
  while (IsName("if")) {
    ExprPtr node = New(Expr::Kind::kCondition);
    Next();
    TESSERA_ASSIGN_OR_RETURN(ExprPtr condition, Or());
    ExprPtr otherwise;
    if (SkipName("else")) {
      TESSERA_ASSIGN_OR_RETURN(otherwise, Expression());
    }
    node->args.push_back(std::move(value));
    node->args.push_back(std::move(condition));
    node->args.push_back(std::move(otherwise));
    value = std::move(node);
  }
  return value;
}

ExpressionParser::Result ExpressionParser::Or() {
  TESSERA_ASSIGN_OR_RETURN(ExprPtr first, And());
  if (!IsName("or")) return first;
  ExprPtr node = New(Expr::Kind::kOr);
  node->args.push_back(std::move(first));
  while (SkipName("or")) {
    TESSERA_ASSIGN_OR_RETURN(ExprPtr next, And());
    node->args.push_back(std::move(next));
  }
  return node;
}

ExpressionParser::Result ExpressionParser::And() {
  TESSERA_ASSIGN_OR_RETURN(ExprPtr first, Not());
  if (!IsName("and")) return first;
  ExprPtr node = New(Expr::Kind::kAnd);
  node->args.push_back(std::move(first));
  while (SkipName("and")) {
    TESSERA_ASSIGN_OR_RETURN(ExprPtr next, Not());
    node->args.push_back(std::move(next));
  }
  return node;
}

ExpressionParser::Result ExpressionParser::Not() {
  if (!IsName("not")) return Compare();
  const Level level(this);
  TESSERA_RETURN_IF_ERROR(CheckDepth());
  ExprPtr node = New(Expr::Kind::kNot);
  Next();
  TESSERA_ASSIGN_OR_RETURN(ExprPtr operand, Not());
  node->args.push_back(std::move(operand));
  return node;
}

ExpressionParser::Result ExpressionParser::Compare() {
  TESSERA_ASSIGN_OR_RETURN(ExprPtr first, Sum());
  ExprPtr node;
  while (true) {
    std::string op;
    if (Current().kind == Token::kOperator) {
      for (const char* candidate : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (IsOperator(candidate)) op = candidate;
      }
      if (!op.empty()) Next();
    } else if (SkipName("in")) {
      op = "in";
    } else if (IsName("not") && Ahead().kind == Token::kName && Ahead().text == "in") {
      Next();
      Next();
      op = "not in";
    }
    if (op.empty()) break;
    if (node == nullptr) {
      node = New(Expr::Kind::kCompare);
      node->args.push_back(std::move(first));
    }
    node->operators.push_back(std::move(op));
    TESSERA_ASSIGN_OR_RETURN(ExprPtr operand, Sum());
    node->args.push_back(std::move(operand));
  }
  return node == nullptr ? std::move(first) : std::move(node);
}

// Left-associative chains become left-deep trees; their length is bounded as their evaluation recurses.
#define TESSERA_JINJA_BINARY(method, operand, condition)                       \
  ExpressionParser::Result ExpressionParser::method() {                        \
    TESSERA_ASSIGN_OR_RETURN(ExprPtr left, operand);                           \
    for (size_t n = 0; condition; ++n) {                                       \
      if (n > kMaxChain) return Error("too many operators in one expression"); \
      ExprPtr node = New(Expr::Kind::kBinary);                                 \
      node->name = Next().text;                                                \
      TESSERA_ASSIGN_OR_RETURN(ExprPtr right, operand);                        \
      node->args.push_back(std::move(left));                                   \
      node->args.push_back(std::move(right));                                  \
      left = std::move(node);                                                  \
    }                                                                          \
    return left;                                                               \
  }

TESSERA_JINJA_BINARY(Sum, Concat(), IsOperator("+") || IsOperator("-"))
TESSERA_JINJA_BINARY(Product, Power(),
                     IsOperator("*") || IsOperator("/") || IsOperator("//") || IsOperator("%"))
TESSERA_JINJA_BINARY(Power, Unary(true), IsOperator("**"))
#undef TESSERA_JINJA_BINARY

ExpressionParser::Result ExpressionParser::Concat() {
  TESSERA_ASSIGN_OR_RETURN(ExprPtr first, Product());
  if (!IsOperator("~")) return first;
  ExprPtr node = New(Expr::Kind::kConcat);
  node->args.push_back(std::move(first));
  while (SkipOperator("~")) {
    TESSERA_ASSIGN_OR_RETURN(ExprPtr next, Product());
    node->args.push_back(std::move(next));
  }
  return node;
}

ExpressionParser::Result ExpressionParser::Unary(bool with_filters) {
  const Level level(this);
  TESSERA_RETURN_IF_ERROR(CheckDepth());
  ExprPtr node;
  if (IsOperator("-") || IsOperator("+")) {
    node = New(IsOperator("-") ? Expr::Kind::kNegative : Expr::Kind::kPositive);
    Next();
    TESSERA_ASSIGN_OR_RETURN(ExprPtr operand, Unary(false));
    node->args.push_back(std::move(operand));
  } else {
    TESSERA_ASSIGN_OR_RETURN(node, Primary());
  }
  TESSERA_ASSIGN_OR_RETURN(node, Postfix(std::move(node)));
  if (!with_filters) return node;
  return FiltersAndTests(std::move(node));
}

ExpressionParser::Result ExpressionParser::Primary() {
  const Token& token = Current();
  ExprPtr node = New(Expr::Kind::kConstant);
  switch (token.kind) {
    case Token::kName:
      if (token.text == "true" || token.text == "True") {
        node->constant = Value::Bool(true);
      } else if (token.text == "false" || token.text == "False") {
        node->constant = Value::Bool(false);
      } else if (token.text == "none" || token.text == "None") {
        node->constant = Value::MakeNone();
      } else {
        node->kind = Expr::Kind::kName;
        node->name = token.text;
      }
      Next();
      return node;
    case Token::kString: {
      Text text;
      while (Current().kind == Token::kString) text.Append(Next().text);
      node->constant = Value::Str(std::move(text));
      return node;
    }
    case Token::kInteger:
      node->constant = Value::Int(Next().integer);
      return node;
    case Token::kFloat:
      node->constant = Value::Float(Next().number);
      return node;
    default:
      break;
  }
  if (IsOperator("(")) return Parenthesized();
  if (IsOperator("[")) return ListLiteral();
  if (IsOperator("{")) return DictLiteral();
  return Error(absl::StrCat("unexpected ", Describe(token)));
}

ExpressionParser::Result ExpressionParser::Parenthesized() {
  Next();
  if (IsOperator(")")) {
    Next();
    return New(Expr::Kind::kTuple);
  }
  TESSERA_ASSIGN_OR_RETURN(ExprPtr node, ExpressionOrTuple());
  TESSERA_RETURN_IF_ERROR(ExpectOperator(")"));
  return node;
}

ExpressionParser::Result ExpressionParser::ListLiteral() {
  ExprPtr node = New(Expr::Kind::kList);
  Next();
  while (!IsOperator("]")) {
    if (!node->args.empty()) TESSERA_RETURN_IF_ERROR(ExpectOperator(","));
    if (IsOperator("]")) break;
    TESSERA_ASSIGN_OR_RETURN(ExprPtr item, Expression());
    node->args.push_back(std::move(item));
  }
  Next();
  return node;
}

ExpressionParser::Result ExpressionParser::DictLiteral() {
  ExprPtr node = New(Expr::Kind::kDict);
  Next();
  while (!IsOperator("}")) {
    if (!node->args.empty()) TESSERA_RETURN_IF_ERROR(ExpectOperator(","));
    if (IsOperator("}")) break;
    TESSERA_ASSIGN_OR_RETURN(ExprPtr key, Expression());
    TESSERA_RETURN_IF_ERROR(ExpectOperator(":"));
    TESSERA_ASSIGN_OR_RETURN(ExprPtr value, Expression());
    node->args.push_back(std::move(key));
    node->args.push_back(std::move(value));
  }
  Next();
  return node;
}

}  // namespace tessera::jinja
