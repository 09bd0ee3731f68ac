// The parsed template.
#ifndef TESSERA_SERVER_TOKENIZER_JINJA_AST_H_
#define TESSERA_SERVER_TOKENIZER_JINJA_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/tokenizer/jinja/value.h"

namespace tessera::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

// name=value
struct NamedExpr {
  std::string name;
  ExprPtr value;
};

struct Expr {
  enum class Kind {
    kConstant,   // constant
    kName,       // name
    kList,       // args
    kTuple,      // args
    kDict,       // args: key, value, key, value, ...
    kAttribute,  // args[0] . name
    kItem,       // args[0] [ args[1] ]
    kSlice,      // args[0] [ args[1] : args[2] : args[3] ], each of them null if left out
    kCall,       // args[0] ( args[1...], named ), where named "*" and "**" stand for several
    kFilter,     // args[0] | name ( args[1...], named ); args[0] null: the text of a block
    kTest,       // args[0] is name ( args[1...], named )
    kCondition,  // args[0] if args[1] else args[2] (or null)
    kAnd,
    kOr,
    kNot,
    kCompare,  // args[0] operators[0] args[1] operators[1] args[2] ...
    kBinary,   // args[0] name args[1]
    kConcat,   // args joined as strings
    kNegative,
    kPositive,
  };
  Kind kind;
  int line;
  std::string name;
  Value constant;
  std::vector<ExprPtr> args;
  std::vector<NamedExpr> named;
  std::vector<std::string> operators;
};

struct Stmt;
using StmtList = std::vector<std::unique_ptr<Stmt>>;

// What is assigned to: a name, an attribute of a namespace, or several of them.
struct Target {
  std::string name;
  std::string attribute;  // "ns.attr"
  std::vector<Target> parts;
};

struct Parameter {
  std::string name;
  ExprPtr default_value;  // or null
};

struct Stmt {
  enum class Kind {
    kText,         // text
    kOutput,       // expr
    kIf,           // branches: expr, body; one without expr is else
    kFor,          // for target in expr if condition: body, else_body
    kSet,          // target = expr
    kSetBlock,     // target = body, through the filter expr (or null)
    kFilterBlock,  // body through the filter expr
    kWith,         // assignments, body
    kMacro,        // name, parameters, body
    kCallBlock,    // expr (a call) with body as its caller; parameters
    kScope,        // body in a scope of its own: {% generation %}
    kBreak,
    kContinue,
  };
  struct Branch {
    ExprPtr condition;
    StmtList body;
  };
  Kind kind;
  int line;
  Text text;
  std::string name;
  Target target;
  ExprPtr expr;
  ExprPtr condition;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  StmtList body, else_body;
};

struct Template {
  StmtList body;
};

}  // namespace tessera::jinja

#endif  // TESSERA_SERVER_TOKENIZER_JINJA_AST_H_
