// Runs a parsed template.
#ifndef TESSERA_SERVER_TOKENIZER_JINJA_INTERPRETER_H_
#define TESSERA_SERVER_TOKENIZER_JINJA_INTERPRETER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/jinja/ast.h"
#include "server/tokenizer/jinja/value.h"

namespace tessera::jinja {

// What a template may spend; a real one stays a hundred times below.
struct Limits {
  int64_t steps = 5'000'000;         // expressions and statements evaluated, items visited
  int64_t bytes = int64_t{1} << 32;  // of strings made, over the whole run
  size_t string = size_t{64} << 20;  // bytes of one string
  int depth = 400;                   // of calls and nested expressions
};

// Marks the status of a raise_exception call, whose message is the template's own.
inline constexpr char kRaisedPayload[] = "tessera.jinja.raised";

// For one rendering, on one thread.
class Interpreter {
 public:
  // `variables` and the functions of Jinja are the global names. `now`: seconds since 1970, for strftime_now.
  Interpreter(const Template& source, const Dict& variables, int64_t now, const Limits& limits = {});
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // The rendered text. INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
  absl::StatusOr<Text> Run();

  // For the built-in filters, tests and functions.

  // Counts against the limits; every loop over values calls it.
  absl::Status ChargeSteps(size_t steps);
  // Counts a string about to be made.
  absl::Status ChargeBytes(size_t bytes);
  absl::StatusOr<Value> MakeString(Text text);
  absl::StatusOr<Value> Call(const Value& callee, const Arguments& arguments);
  absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value, const Arguments& arguments);
  absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value, const Arguments& arguments);
  // value[key], else value.key: undefined if there is neither.
  absl::StatusOr<Value> GetItem(const Value& value, const Value& key);
  // value.name, else value["name"].
  absl::StatusOr<Value> GetAttribute(const Value& value, absl::string_view name);
  // item in container
  absl::StatusOr<bool> Contains(const Value& container, const Value& item);
  // a + b
  absl::StatusOr<Value> Add(const Value& a, const Value& b) { return Binary("+", a, b); }
  int64_t now() const { return now_; }
  // Namespaces may refer to themselves; those made through here are emptied at the end of the run.
  Value NewNamespace(Dict attributes);

 private:
  struct Scope;
  using ScopePtr = std::shared_ptr<Scope>;
  enum class Flow { kNormal, kBreak, kContinue };
  class DepthGuard;

  absl::StatusOr<Flow> Execute(const StmtList& body, Text* out);
  absl::StatusOr<Flow> Execute(const Stmt& s, Text* out);
  absl::StatusOr<Flow> ExecuteFor(const Stmt& s, Text* out);
  // Runs `body` in a scope of its own.
  absl::StatusOr<Flow> ExecuteScoped(const StmtList& body, Text* out);
  absl::StatusOr<Text> Capture(const StmtList& body);
  absl::Status Assign(const Target& target, const Value& value);
  Value MakeMacro(const Stmt& s, std::string name);
  absl::StatusOr<Value> CallMacro(const Stmt& s, const std::string& name, const ScopePtr& defined_in,
                                  const Arguments& arguments);

  absl::StatusOr<Value> Evaluate(const Expr& e);
  absl::StatusOr<Value> EvaluateInner(const Expr& e);
  absl::StatusOr<Value> EvaluateCall(const Expr& e, const Value* caller);
  absl::StatusOr<Value> EvaluateCompare(const Expr& e);
  absl::StatusOr<Value> EvaluateSlice(const Expr& e);
  // A filter of a set or filter block, applied to the block's text.
  absl::StatusOr<Value> EvaluateFilter(const Expr& e, const Value* block);
  absl::StatusOr<Arguments> EvaluateArguments(const Expr& e, size_t first);
  absl::StatusOr<Value> Lookup(const std::string& name);
  absl::StatusOr<Value> Binary(absl::string_view op, const Value& a, const Value& b);

  const Template& template_;
  const int64_t now_;
  const Limits limits_;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  int depth_ = 0;
  ScopePtr globals_;
  ScopePtr scope_;
  // Kept to break cycles when the run is over.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<ScopePtr> captured_scopes_;
};

}  // namespace tessera::jinja

#endif  // TESSERA_SERVER_TOKENIZER_JINJA_INTERPRETER_H_
