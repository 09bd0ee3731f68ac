// What follows an operand: subscripts, calls, filters and tests.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/expression_parser.h"

namespace tessera::jinja {

ExpressionParser::Result ExpressionParser::Postfix(ExprPtr node) {
  for (size_t n = 0;; ++n) {
    if (n > kMaxDepth) return Error("too many subscripts in one expression");
    if (IsOperator(".") || IsOperator("[")) {
      TESSERA_ASSIGN_OR_RETURN(node, Subscript(std::move(node)));
    } else if (IsOperator("(")) {
      TESSERA_ASSIGN_OR_RETURN(node, Call(std::move(node)));
    } else {
      return node;
    }
  }
}

ExpressionParser::Result ExpressionParser::Call(ExprPtr callee) {
  ExprPtr call = New(Expr::Kind::kCall);
  call->args.push_back(std::move(callee));
  TESSERA_RETURN_IF_ERROR(CallArguments(call.get()));
  return call;
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
    TESSERA_ASSIGN_OR_RETURN(index, Expression());
  }
  if (!IsOperator(":")) {
    if (IsOperator(",")) return Error("subscripts of several parts are not supported");
    out->args.push_back(std::move(index));
    TESSERA_RETURN_IF_ERROR(ExpectOperator("]"));
    return out;
  }
  out->kind = Expr::Kind::kSlice;
  out->args.push_back(std::move(index));
  for (int part = 0; part < 2; ++part) {
    ExprPtr bound;
    if (SkipOperator(":") && !IsOperator(":") && !IsOperator("]")) {
      TESSERA_ASSIGN_OR_RETURN(bound, Expression());
    }
    out->args.push_back(std::move(bound));
  }
  TESSERA_RETURN_IF_ERROR(ExpectOperator("]"));
  return out;
}

absl::Status ExpressionParser::CallArguments(Expr* call) {
  TESSERA_RETURN_IF_ERROR(ExpectOperator("("));
  bool first = true;
  while (!IsOperator(")")) {
    if (!first) TESSERA_RETURN_IF_ERROR(ExpectOperator(","));
    first = false;
    if (IsOperator(")")) break;
    const auto seen = [call](absl::string_view stars) {
      return std::any_of(call->named.begin(), call->named.end(),
                         [&](const NamedExpr& n) { return n.name == stars; });
    };
    if (IsOperator("*") || IsOperator("**")) {
      std::string stars = Next().text;
      if (seen("**") || (seen("*") && stars == "*")) return Error("a second list of further arguments");
      TESSERA_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      call->named.push_back({std::move(stars), std::move(value)});
      continue;
    }
    if (seen("**")) return Error("an argument behind the further named ones");
    if (Current().kind == Token::kName && Ahead().kind == Token::kOperator && Ahead().text == "=") {
      std::string name = Next().text;
      Next();
      TESSERA_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      call->named.push_back({std::move(name), std::move(value)});
      continue;
    }
    if (!call->named.empty()) return Error("a positional argument behind a named one");
    TESSERA_ASSIGN_OR_RETURN(ExprPtr value, Expression());
    call->args.push_back(std::move(value));
  }
  Next();
  return absl::OkStatus();
}

ExpressionParser::Result ExpressionParser::OneFilter(ExprPtr input) {
  ExprPtr node = New(Expr::Kind::kFilter);
  TESSERA_ASSIGN_OR_RETURN(node->name, ExpectName());
  node->args.push_back(std::move(input));
  if (IsOperator("(")) TESSERA_RETURN_IF_ERROR(CallArguments(node.get()));
  return node;
}

ExpressionParser::Result ExpressionParser::Filters(ExprPtr node) {
  for (size_t n = 0; SkipOperator("|"); ++n) {
    if (n > kMaxDepth) return Error("too many filters in one expression");
    TESSERA_ASSIGN_OR_RETURN(node, OneFilter(std::move(node)));
  }
  return node;
}

ExpressionParser::Result ExpressionParser::FiltersAndTests(ExprPtr node) {
  for (size_t n = 0;; ++n) {
    if (n > kMaxDepth) return Error("too many filters in one expression");
    if (SkipOperator("|")) {
      TESSERA_ASSIGN_OR_RETURN(node, OneFilter(std::move(node)));
    } else if (IsName("is")) {
      TESSERA_ASSIGN_OR_RETURN(node, Test(std::move(node)));
    } else if (IsOperator("(")) {
      TESSERA_ASSIGN_OR_RETURN(node, Call(std::move(node)));
    } else {
      return node;
    }
  }
}

ExpressionParser::Result ExpressionParser::Test(ExprPtr node) {
  ExprPtr test = New(Expr::Kind::kTest);
  Next();
  const bool negated = SkipName("not");
  TESSERA_ASSIGN_OR_RETURN(test->name, ExpectName());
  test->args.push_back(std::move(node));
  const Token& t = Current();
  if (IsOperator("(")) {
    TESSERA_RETURN_IF_ERROR(CallArguments(test.get()));
  } else if (t.kind == Token::kString || t.kind == Token::kInteger || t.kind == Token::kFloat ||
             IsOperator("[") || IsOperator("{") ||
             (t.kind == Token::kName && t.text != "else" && t.text != "or" && t.text != "and")) {
    // An argument without parentheses: `is divisibleby 3`. Not a keyword that goes on with the expression.
    if (IsName("is")) return Error("tests cannot be chained with 'is'");
    if (!IsName("if") && !IsName("in") && !IsName("not")) {
      TESSERA_ASSIGN_OR_RETURN(ExprPtr argument, Primary());
      TESSERA_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
      test->args.push_back(std::move(argument));
    }
  }
  if (!negated) return test;
  ExprPtr node_not = New(Expr::Kind::kNot);
  node_not->args.push_back(std::move(test));
  return node_not;
}

}  // namespace tessera::jinja
