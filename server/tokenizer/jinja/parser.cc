#include "server/tokenizer/jinja/parser.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/expression_parser.h"

namespace tessera::jinja {
namespace {

using StmtPtr = std::unique_ptr<Stmt>;

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  absl::StatusOr<Template> Run() {
    Template out;
    TESSERA_ASSIGN_OR_RETURN(out.body, Body({}));
    if (Current().kind != Token::kEnd) return Error(absl::StrCat("unexpected tag '", Current().text, "'"));
    return out;
  }

 private:
  StmtPtr NewStmt(Stmt::Kind kind) const {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = Current().line;
    return s;
  }

  // Statements up to one of the tags in `ends`, whose name becomes the current token.
  absl::StatusOr<StmtList> Body(const std::vector<absl::string_view>& ends) {
    const Level level(this);
    TESSERA_RETURN_IF_ERROR(CheckDepth());
    StmtList out;
    while (Current().kind != Token::kEnd) {
      if (Current().kind == Token::kData) {
        StmtPtr s = NewStmt(Stmt::Kind::kText);
        s->text = Text(Next().text, /*untrusted=*/false);
        out.push_back(std::move(s));
      } else if (Current().kind == Token::kVariableBegin) {
        StmtPtr s = NewStmt(Stmt::Kind::kOutput);
        Next();
        TESSERA_ASSIGN_OR_RETURN(s->expr, ExpressionOrTuple());
        TESSERA_RETURN_IF_ERROR(Expect(Token::kVariableEnd, "'}}'"));
        out.push_back(std::move(s));
      } else {
        TESSERA_RETURN_IF_ERROR(Expect(Token::kBlockBegin, "a tag"));
        for (const absl::string_view end : ends) {
          if (IsName(end)) return out;
        }
        TESSERA_ASSIGN_OR_RETURN(StmtPtr s, Statement());
        out.push_back(std::move(s));
      }
    }
    if (!ends.empty())
      return Error(
          absl::StrCat("unexpected end of template, expected '", absl::StrJoin(ends, "' or '"), "'"));
    return out;
  }

  absl::Status EndOfTag() { return Expect(Token::kBlockEnd, "'%}'"); }
  // The rest of a tag that is only its name, "{% endif %}".
  absl::Status Close() {
    Next();
    return EndOfTag();
  }

  absl::StatusOr<StmtPtr> Statement() {
    const Token name = Current();
    if (name.kind != Token::kName) return Error("expected the name of a tag");
    if (name.text == "if") return If();
    if (name.text == "for") return For();
    if (name.text == "set") return Set();
    if (name.text == "macro") return Macro();
    if (name.text == "call") return Call();
    if (name.text == "filter") return Filter();
    if (name.text == "with") return With();
    if (name.text == "generation") {
      StmtPtr s = NewStmt(Stmt::Kind::kScope);
      Next();
      TESSERA_RETURN_IF_ERROR(EndOfTag());
      TESSERA_ASSIGN_OR_RETURN(s->body, IsolatedBody({"endgeneration"}));
      TESSERA_RETURN_IF_ERROR(Close());
      return s;
    }
    if (name.text == "break" || name.text == "continue") {
      if (loops_ == 0) return Error(absl::StrCat("'", name.text, "' outside of a loop"));
      StmtPtr s = NewStmt(name.text == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue);
      TESSERA_RETURN_IF_ERROR(Close());
      return s;
    }
    for (const char* other :
         {"extends", "block", "include", "import", "from", "autoescape", "do", "print", "trans"}) {
      if (name.text == other) return Error(absl::StrCat("the tag '", name.text, "' is not supported"));
    }
    return Error(absl::StrCat("unknown tag '", name.text, "'"));
  }

  absl::StatusOr<StmtPtr> If() {
    StmtPtr s = NewStmt(Stmt::Kind::kIf);
    bool is_else = false;
    while (true) {
      Next();  // if, elif, else
      Stmt::Branch branch;
      if (!is_else) {
        TESSERA_ASSIGN_OR_RETURN(branch.condition, ExpressionOrTuple(/*with_condition=*/false));
      }
      TESSERA_RETURN_IF_ERROR(EndOfTag());
      if (is_else) {
        TESSERA_ASSIGN_OR_RETURN(branch.body, Body({"endif"}));
      } else {
        TESSERA_ASSIGN_OR_RETURN(branch.body, Body({"elif", "else", "endif"}));
      }
      s->branches.push_back(std::move(branch));
      if (IsName("endif")) break;
      is_else = IsName("else");
    }
    TESSERA_RETURN_IF_ERROR(Close());
    return s;
  }

  absl::StatusOr<StmtPtr> For() {
    StmtPtr s = NewStmt(Stmt::Kind::kFor);
    Next();
    TESSERA_ASSIGN_OR_RETURN(s->target, AssignmentTarget(/*allow_attribute=*/false));
    if (!SkipName("in")) return Error("expected 'in'");
    TESSERA_ASSIGN_OR_RETURN(s->expr, ExpressionOrTuple(/*with_condition=*/false, "recursive"));
    if (SkipName("if")) {
      TESSERA_ASSIGN_OR_RETURN(s->condition, Expression());
    }
    if (IsName("recursive")) return Error("recursive loops are not supported");
    TESSERA_RETURN_IF_ERROR(EndOfTag());
    ++loops_;
    TESSERA_ASSIGN_OR_RETURN(s->body, Body({"endfor", "else"}));
    --loops_;
    if (IsName("else")) {
      TESSERA_RETURN_IF_ERROR(Close());
      TESSERA_ASSIGN_OR_RETURN(s->else_body, Body({"endfor"}));
    }
    TESSERA_RETURN_IF_ERROR(Close());
    return s;
  }

  absl::StatusOr<StmtPtr> Set() {
    StmtPtr s = NewStmt(Stmt::Kind::kSet);
    Next();
    TESSERA_ASSIGN_OR_RETURN(s->target, AssignmentTarget(/*allow_attribute=*/true));
    if (SkipOperator("=")) {
      TESSERA_ASSIGN_OR_RETURN(s->expr, ExpressionOrTuple());
      TESSERA_RETURN_IF_ERROR(EndOfTag());
      return s;
    }
    s->kind = Stmt::Kind::kSetBlock;
    TESSERA_ASSIGN_OR_RETURN(s->expr, Filters(nullptr));
    TESSERA_RETURN_IF_ERROR(EndOfTag());
    TESSERA_ASSIGN_OR_RETURN(s->body, Body({"endset"}));
    TESSERA_RETURN_IF_ERROR(Close());
    return s;
  }

  absl::Status Parameters(Stmt* s) {
    TESSERA_RETURN_IF_ERROR(ExpectOperator("("));
    while (!IsOperator(")")) {
      if (!s->parameters.empty()) TESSERA_RETURN_IF_ERROR(ExpectOperator(","));
      if (IsOperator(")")) break;
      Parameter p;
      TESSERA_ASSIGN_OR_RETURN(p.name, ExpectName());
      if (SkipOperator("=")) {
        TESSERA_ASSIGN_OR_RETURN(p.default_value, Expression());
      } else if (!s->parameters.empty() && s->parameters.back().default_value != nullptr) {
        return Error("non-default argument follows default argument");
      }
      s->parameters.push_back(std::move(p));
    }
    Next();
    return absl::OkStatus();
  }

  // A body that break and continue cannot leave.
  absl::StatusOr<StmtList> IsolatedBody(const std::vector<absl::string_view>& ends) {
    const int loops = loops_;
    loops_ = 0;
    absl::StatusOr<StmtList> body = Body(ends);
    loops_ = loops;
    return body;
  }

  absl::StatusOr<StmtPtr> Macro() {
    StmtPtr s = NewStmt(Stmt::Kind::kMacro);
    Next();
    TESSERA_ASSIGN_OR_RETURN(s->name, ExpectName());
    TESSERA_RETURN_IF_ERROR(Parameters(s.get()));
    TESSERA_RETURN_IF_ERROR(EndOfTag());
    TESSERA_ASSIGN_OR_RETURN(s->body, IsolatedBody({"endmacro"}));
    TESSERA_RETURN_IF_ERROR(Close());
    return s;
  }

  absl::StatusOr<StmtPtr> Call() {
    StmtPtr s = NewStmt(Stmt::Kind::kCallBlock);
    Next();
    if (IsOperator("(")) TESSERA_RETURN_IF_ERROR(Parameters(s.get()));
    TESSERA_ASSIGN_OR_RETURN(s->expr, Expression());
    if (s->expr->kind != Expr::Kind::kCall) return Error("expected a call");
    TESSERA_RETURN_IF_ERROR(EndOfTag());
    TESSERA_ASSIGN_OR_RETURN(s->body, IsolatedBody({"endcall"}));
    TESSERA_RETURN_IF_ERROR(Close());
    return s;
  }

  absl::StatusOr<StmtPtr> Filter() {
    StmtPtr s = NewStmt(Stmt::Kind::kFilterBlock);
    Next();
    TESSERA_ASSIGN_OR_RETURN(s->expr, OneFilter(nullptr));
    TESSERA_ASSIGN_OR_RETURN(s->expr, Filters(std::move(s->expr)));
    TESSERA_RETURN_IF_ERROR(EndOfTag());
    TESSERA_ASSIGN_OR_RETURN(s->body, Body({"endfilter"}));
    TESSERA_RETURN_IF_ERROR(Close());
    return s;
  }

  absl::StatusOr<StmtPtr> With() {
    StmtPtr s = NewStmt(Stmt::Kind::kWith);
    Next();
    while (Current().kind != Token::kBlockEnd) {
      if (!s->assignments.empty()) TESSERA_RETURN_IF_ERROR(ExpectOperator(","));
      Target t;
      TESSERA_ASSIGN_OR_RETURN(t.name, ExpectName());
      TESSERA_RETURN_IF_ERROR(ExpectOperator("="));
      TESSERA_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      s->assignments.emplace_back(std::move(t), std::move(value));
    }
    TESSERA_RETURN_IF_ERROR(EndOfTag());
    TESSERA_ASSIGN_OR_RETURN(s->body, Body({"endwith"}));
    TESSERA_RETURN_IF_ERROR(Close());
    return s;
  }

  int loops_ = 0;  // around the current statement
};

}  // namespace

absl::StatusOr<Template> ParseTemplate(absl::string_view source) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace tessera::jinja
