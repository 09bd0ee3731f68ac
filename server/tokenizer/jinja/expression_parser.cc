#include "server/tokenizer/jinja/expression_parser.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/tokenizer/status_macros.h"

namespace tessera::jinja {
namespace {

// Nesting of expressions and statements together.
constexpr int kMaxDepth = 100;
constexpr size_t kMaxChain = 200;  // of operators, filters, subscripts at one level

std::string Describe(const Token& token) {
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

}  // namespace

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
  TOKENIZER_RETURN_IF_ERROR(CheckDepth());
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
    TOKENIZER_ASSIGN_OR_RETURN(ExprPtr item, Expression(with_condition));
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
    TOKENIZER_ASSIGN_OR_RETURN(t.name, ExpectName());
    for (const char* reserved : {"true", "false", "none", "True", "False", "None"}) {
      if (t.name == reserved) return Error(absl::StrCat("cannot assign to '", t.name, "'"));
    }
    if (allow_attribute && SkipOperator(".")) {
      TOKENIZER_ASSIGN_OR_RETURN(t.attribute, ExpectName());
    }
    return t;
  };
  Target tuple;
  bool has_comma = false;
  const bool parenthesis = SkipOperator("(");
  while (Current().kind == Token::kName && !IsName("in")) {
    TOKENIZER_ASSIGN_OR_RETURN(Target part, one());
    tuple.parts.push_back(std::move(part));
    if (!SkipOperator(",")) break;
    has_comma = true;
  }
  if (parenthesis) TOKENIZER_RETURN_IF_ERROR(ExpectOperator(")"));
  if (tuple.parts.empty())
    return Error(absl::StrCat("expected a name to assign to, got ", Describe(Current())));
  if (!has_comma) return std::move(tuple.parts[0]);
  return tuple;
}

ExpressionParser::Result ExpressionParser::Condition() {
  TOKENIZER_ASSIGN_OR_RETURN(ExprPtr value, Or());
  while (IsName("if")) {
    ExprPtr node = New(Expr::Kind::kCondition);
    Next();
    TOKENIZER_ASSIGN_OR_RETURN(ExprPtr condition, Or());
    ExprPtr otherwise;
    if (SkipName("else")) {
      TOKENIZER_ASSIGN_OR_RETURN(otherwise, Expression());
    }
    node->args.push_back(std::move(value));
    node->args.push_back(std::move(condition));
    node->args.push_back(std::move(otherwise));
    value = std::move(node);
  }
  return value;
}

ExpressionParser::Result ExpressionParser::Or() {
  TOKENIZER_ASSIGN_OR_RETURN(ExprPtr first, And());
  if (!IsName("or")) return first;
  ExprPtr node = New(Expr::Kind::kOr);
  node->args.push_back(std::move(first));
  while (SkipName("or")) {
    TOKENIZER_ASSIGN_OR_RETURN(ExprPtr next, And());
    node->args.push_back(std::move(next));
  }
  return node;
}

ExpressionParser::Result ExpressionParser::And() {
  TOKENIZER_ASSIGN_OR_RETURN(ExprPtr first, Not());
  if (!IsName("and")) return first;
  ExprPtr node = New(Expr::Kind::kAnd);
  node->args.push_back(std::move(first));
  while (SkipName("and")) {
    TOKENIZER_ASSIGN_OR_RETURN(ExprPtr next, Not());
    node->args.push_back(std::move(next));
  }
  return node;
}

ExpressionParser::Result ExpressionParser::Not() {
  if (!IsName("not")) return Compare();
  const Level level(this);
  TOKENIZER_RETURN_IF_ERROR(CheckDepth());
  ExprPtr node = New(Expr::Kind::kNot);
  Next();
  TOKENIZER_ASSIGN_OR_RETURN(ExprPtr operand, Not());
  node->args.push_back(std::move(operand));
  return node;
}

ExpressionParser::Result ExpressionParser::Compare() {
  TOKENIZER_ASSIGN_OR_RETURN(ExprPtr first, Sum());
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
    TOKENIZER_ASSIGN_OR_RETURN(ExprPtr operand, Sum());
    node->args.push_back(std::move(operand));
  }
  return node == nullptr ? std::move(first) : std::move(node);
}

// Left-associative chains become left-deep trees; their length is bounded as their evaluation recurses.
#define TESSERA_JINJA_BINARY(method, operand, condition)                       \
  ExpressionParser::Result ExpressionParser::method() {                        \
    TOKENIZER_ASSIGN_OR_RETURN(ExprPtr left, operand);                         \
    for (size_t n = 0; condition; ++n) {                                       \
      if (n > kMaxChain) return Error("too many operators in one expression"); \
      ExprPtr node = New(Expr::Kind::kBinary);                                 \
      node->name = Next().text;                                                \
      TOKENIZER_ASSIGN_OR_RETURN(ExprPtr right, operand);                      \
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
  TOKENIZER_ASSIGN_OR_RETURN(ExprPtr first, Product());
  if (!IsOperator("~")) return first;
  ExprPtr node = New(Expr::Kind::kConcat);
  node->args.push_back(std::move(first));
  while (SkipOperator("~")) {
    TOKENIZER_ASSIGN_OR_RETURN(ExprPtr next, Product());
    node->args.push_back(std::move(next));
  }
  return node;
}

ExpressionParser::Result ExpressionParser::Unary(bool with_filters) {
  const Level level(this);
  TOKENIZER_RETURN_IF_ERROR(CheckDepth());
  ExprPtr node;
  if (IsOperator("-") || IsOperator("+")) {
    node = New(IsOperator("-") ? Expr::Kind::kNegative : Expr::Kind::kPositive);
    Next();
    TOKENIZER_ASSIGN_OR_RETURN(ExprPtr operand, Unary(false));
    node->args.push_back(std::move(operand));
  } else {
    TOKENIZER_ASSIGN_OR_RETURN(node, Primary());
  }
  TOKENIZER_ASSIGN_OR_RETURN(node, Postfix(std::move(node)));
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
  TOKENIZER_ASSIGN_OR_RETURN(ExprPtr node, ExpressionOrTuple());
  TOKENIZER_RETURN_IF_ERROR(ExpectOperator(")"));
  return node;
}

ExpressionParser::Result ExpressionParser::ListLiteral() {
  ExprPtr node = New(Expr::Kind::kList);
  Next();
  while (!IsOperator("]")) {
    if (!node->args.empty()) TOKENIZER_RETURN_IF_ERROR(ExpectOperator(","));
    if (IsOperator("]")) break;
    TOKENIZER_ASSIGN_OR_RETURN(ExprPtr item, Expression());
    node->args.push_back(std::move(item));
  }
  Next();
  return node;
}

ExpressionParser::Result ExpressionParser::DictLiteral() {
  ExprPtr node = New(Expr::Kind::kDict);
  Next();
  while (!IsOperator("}")) {
    if (!node->args.empty()) TOKENIZER_RETURN_IF_ERROR(ExpectOperator(","));
    if (IsOperator("}")) break;
    TOKENIZER_ASSIGN_OR_RETURN(ExprPtr key, Expression());
    TOKENIZER_RETURN_IF_ERROR(ExpectOperator(":"));
    TOKENIZER_ASSIGN_OR_RETURN(ExprPtr value, Expression());
    node->args.push_back(std::move(key));
    node->args.push_back(std::move(value));
  }
  Next();
  return node;
}

ExpressionParser::Result ExpressionParser::Postfix(ExprPtr node) {
  for (size_t n = 0;; ++n) {
    if (n > kMaxDepth) return Error("too many subscripts in one expression");
    if (IsOperator(".") || IsOperator("[")) {
      TOKENIZER_ASSIGN_OR_RETURN(node, Subscript(std::move(node)));
    } else if (IsOperator("(")) {
      ExprPtr call = New(Expr::Kind::kCall);
      call->args.push_back(std::move(node));
      TOKENIZER_RETURN_IF_ERROR(CallArguments(call.get()));
      node = std::move(call);
    } else {
      return node;
    }
  }
}

ExpressionParser::Result ExpressionParser::Subscript(ExprPtr node) {
  ExprPtr out = New(Expr::Kind::kItem);
  out->args.push_back(std::move(node));
  if (SkipOperator(".")) {
    if (Current().kind == Token::kName) {
      out->kind = Expr::Kind::kAttribute;
      out->name = Next().text;
      return out;
    }
    if (Current().kind != Token::kInteger)
      return Error(absl::StrCat("expected a name or number, got ", Describe(Current())));
    out->args.push_back(New(Expr::Kind::kConstant));
    out->args[1]->constant = Value::Int(Next().integer);
    return out;
  }
  Next();
  ExprPtr index;
  if (!IsOperator(":")) {
    TOKENIZER_ASSIGN_OR_RETURN(index, Expression());
  }
  if (!IsOperator(":")) {
    if (IsOperator(",")) return Error("subscripts of several parts are not supported");
    out->args.push_back(std::move(index));
    TOKENIZER_RETURN_IF_ERROR(ExpectOperator("]"));
    return out;
  }
  out->kind = Expr::Kind::kSlice;
  out->args.push_back(std::move(index));
  for (int part = 0; part < 2; ++part) {
    ExprPtr bound;
    if (SkipOperator(":") && !IsOperator(":") && !IsOperator("]")) {
      TOKENIZER_ASSIGN_OR_RETURN(bound, Expression());
    }
    out->args.push_back(std::move(bound));
  }
  TOKENIZER_RETURN_IF_ERROR(ExpectOperator("]"));
  return out;
}

absl::Status ExpressionParser::CallArguments(Expr* call) {
  TOKENIZER_RETURN_IF_ERROR(ExpectOperator("("));
  bool first = true;
  while (!IsOperator(")")) {
    if (!first) TOKENIZER_RETURN_IF_ERROR(ExpectOperator(","));
    first = false;
    if (IsOperator(")")) break;
    if (IsOperator("*") || IsOperator("**")) return Error("* and ** in a call are not supported");
    if (Current().kind == Token::kName && Ahead().kind == Token::kOperator && Ahead().text == "=") {
      std::string name = Next().text;
      Next();
      TOKENIZER_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      call->named.push_back({std::move(name), std::move(value)});
      continue;
    }
    if (!call->named.empty()) return Error("a positional argument behind a named one");
    TOKENIZER_ASSIGN_OR_RETURN(ExprPtr value, Expression());
    call->args.push_back(std::move(value));
  }
  Next();
  return absl::OkStatus();
}

ExpressionParser::Result ExpressionParser::OneFilter(ExprPtr input) {
  ExprPtr node = New(Expr::Kind::kFilter);
  TOKENIZER_ASSIGN_OR_RETURN(node->name, ExpectName());
  node->args.push_back(std::move(input));
  if (IsOperator("(")) TOKENIZER_RETURN_IF_ERROR(CallArguments(node.get()));
  return node;
}

ExpressionParser::Result ExpressionParser::Filters(ExprPtr node) {
  for (size_t n = 0; SkipOperator("|"); ++n) {
    if (n > kMaxDepth) return Error("too many filters in one expression");
    TOKENIZER_ASSIGN_OR_RETURN(node, OneFilter(std::move(node)));
  }
  return node;
}

ExpressionParser::Result ExpressionParser::FiltersAndTests(ExprPtr node) {
  for (size_t n = 0;; ++n) {
    if (n > kMaxDepth) return Error("too many filters in one expression");
    if (SkipOperator("|")) {
      TOKENIZER_ASSIGN_OR_RETURN(node, OneFilter(std::move(node)));
    } else if (IsName("is")) {
      TOKENIZER_ASSIGN_OR_RETURN(node, Test(std::move(node)));
    } else if (IsOperator("(")) {
      ExprPtr call = New(Expr::Kind::kCall);
      call->args.push_back(std::move(node));
      TOKENIZER_RETURN_IF_ERROR(CallArguments(call.get()));
      node = std::move(call);
    } else {
      return node;
    }
  }
}

ExpressionParser::Result ExpressionParser::Test(ExprPtr node) {
  ExprPtr test = New(Expr::Kind::kTest);
  Next();
  const bool negated = SkipName("not");
  TOKENIZER_ASSIGN_OR_RETURN(test->name, ExpectName());
  test->args.push_back(std::move(node));
  const Token& t = Current();
  if (IsOperator("(")) {
    TOKENIZER_RETURN_IF_ERROR(CallArguments(test.get()));
  } else if (t.kind == Token::kString || t.kind == Token::kInteger || t.kind == Token::kFloat ||
             IsOperator("[") || IsOperator("{") ||
             (t.kind == Token::kName && t.text != "else" && t.text != "or" && t.text != "and")) {
    // An argument without parentheses: `is divisibleby 3`. Not a keyword that goes on with the expression.
    if (IsName("is")) return Error("tests cannot be chained with 'is'");
    if (!IsName("if") && !IsName("in") && !IsName("not")) {
      TOKENIZER_ASSIGN_OR_RETURN(ExprPtr argument, Primary());
      TOKENIZER_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
      test->args.push_back(std::move(argument));
    }
  }
  if (!negated) return test;
  ExprPtr node_not = New(Expr::Kind::kNot);
  node_not->args.push_back(std::move(test));
  return node_not;
}

}  // namespace tessera::jinja
