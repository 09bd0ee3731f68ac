#include "server/tokenizer/jinja/interpreter.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/format.h"

namespace tessera::jinja {

struct Interpreter::Scope {
  ScopePtr parent;
  absl::flat_hash_map<std::string, Value> names;
};

class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Interpreter* in) : in_(in) { ++in_->depth_; }
  ~DepthGuard() { --in_->depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;
  absl::Status Check() const {
    if (in_->depth_ <= in_->limits_.depth) return absl::OkStatus();
    return absl::ResourceExhaustedError("the template recurses too deeply");
  }

 private:
  Interpreter* in_;
};

Interpreter::Interpreter(const Template& source, const Dict& variables, int64_t now, const Limits& limits)
    : template_(source), now_(now), limits_(limits), globals_(std::make_shared<Scope>()) {
  for (auto& [name, function] : GlobalFunctions()) globals_->names[name] = function;
  for (const Dict::Entry& e : variables.entries()) globals_->names[e.key.text()->bytes()] = e.value;
  scope_ = std::make_shared<Scope>();
  scope_->parent = globals_;
}

Interpreter::~Interpreter() {
  for (const auto& ns : namespaces_) ns->attributes.Clear();
  for (const ScopePtr& scope : captured_scopes_) scope->names.clear();
}

absl::Status Interpreter::ChargeSteps(size_t steps) {
  steps_ += static_cast<int64_t>(steps);
  if (steps_ <= limits_.steps && !VisitBudget::Exhausted()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the template takes more than ", limits_.steps, " steps"));
}

absl::Status Interpreter::ChargeBytes(size_t bytes) {
  bytes_ += static_cast<int64_t>(bytes);
  if (bytes <= limits_.string && bytes_ <= limits_.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError("the template makes too much text");
}

absl::StatusOr<Value> Interpreter::MakeString(Text text) {
  TESSERA_RETURN_IF_ERROR(ChargeBytes(text.size()));
  return Value::Str(std::move(text));
}

Value Interpreter::NewNamespace(Dict attributes) {
  auto ns = std::make_shared<Namespace>();
  ns->attributes = std::move(attributes);
  namespaces_.push_back(ns);
  return Value(Value::Data(ns));
}

absl::StatusOr<Text> Interpreter::Run() {
  const VisitBudget budget(limits_.steps);
  Text out;
  TESSERA_ASSIGN_OR_RETURN(const Flow flow, Execute(template_.body, &out));
  (void)flow;
  TESSERA_RETURN_IF_ERROR(ChargeSteps(0));  // the last walk may have run out of visits
  return out;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const StmtList& body, Text* out) {
  for (const auto& s : body) {
    TESSERA_RETURN_IF_ERROR(ChargeSteps(1));
    absl::StatusOr<Flow> flow = Execute(*s, out);
    if (!flow.ok()) {
      // The innermost statement says where; raise_exception's text stays as the template wrote it.
      const absl::Status& status = flow.status();
      if (status.code() != absl::StatusCode::kInvalidArgument ||
          absl::StartsWith(status.message(), "line ") || status.GetPayload(kRaisedPayload).has_value()) {
        return status;
      }
      return absl::InvalidArgumentError(absl::StrCat("line ", s->line, ": ", status.message()));
    }
    if (*flow != Flow::kNormal) return flow;
    if (out->size() > limits_.string) return absl::ResourceExhaustedError("the template makes too much text");
  }
  return Flow::kNormal;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteScoped(const StmtList& body, Text* out) {
  const ScopePtr outer = scope_;
  scope_ = std::make_shared<Scope>();
  scope_->parent = outer;
  absl::StatusOr<Flow> flow = Execute(body, out);
  scope_ = outer;
  return flow;
}

absl::StatusOr<Text> Interpreter::Capture(const StmtList& body) {
  Text text;
  TESSERA_ASSIGN_OR_RETURN(const Flow flow, ExecuteScoped(body, &text));
  (void)flow;
  TESSERA_RETURN_IF_ERROR(ChargeBytes(text.size()));
  return text;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Stmt& s, Text* out) {
  const DepthGuard guard(this);
  TESSERA_RETURN_IF_ERROR(guard.Check());
  switch (s.kind) {
    case Stmt::Kind::kText:
      out->Append(s.text);
      return Flow::kNormal;
    case Stmt::Kind::kOutput: {
      TESSERA_ASSIGN_OR_RETURN(const Value value, Evaluate(*s.expr));
      const Text text = ToText(value);
      TESSERA_RETURN_IF_ERROR(ChargeBytes(text.size()));
      out->Append(text);
      return Flow::kNormal;
    }
    case Stmt::Kind::kIf:
      for (const Stmt::Branch& branch : s.branches) {
        if (branch.condition != nullptr) {
          TESSERA_ASSIGN_OR_RETURN(const Value condition, Evaluate(*branch.condition));
          if (!condition.Truthy()) continue;
        }
        return Execute(branch.body, out);
      }
      return Flow::kNormal;
    case Stmt::Kind::kFor:
      return ExecuteFor(s, out);
    case Stmt::Kind::kSet: {
      TESSERA_ASSIGN_OR_RETURN(const Value value, Evaluate(*s.expr));
      TESSERA_RETURN_IF_ERROR(Assign(s.target, value));
      return Flow::kNormal;
    }
    case Stmt::Kind::kSetBlock:
    case Stmt::Kind::kFilterBlock: {
      TESSERA_ASSIGN_OR_RETURN(Text text, Capture(s.body));
      Value value = Value::Str(std::move(text));
      if (s.expr != nullptr) {
        const Value block = value;
        TESSERA_ASSIGN_OR_RETURN(value, EvaluateFilter(*s.expr, &block));
      }
      if (s.kind == Stmt::Kind::kSetBlock) {
        TESSERA_RETURN_IF_ERROR(Assign(s.target, value));
      } else {
        out->Append(ToText(value));
      }
      return Flow::kNormal;
    }
    case Stmt::Kind::kWith: {
      // The values are those outside of the block.
      std::vector<Value> values;
      for (const auto& [target, expr] : s.assignments) {
        TESSERA_ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
        values.push_back(std::move(value));
      }
      const ScopePtr outer = scope_;
      scope_ = std::make_shared<Scope>();
      scope_->parent = outer;
      for (size_t i = 0; i < values.size(); ++i) scope_->names[s.assignments[i].first.name] = values[i];
      absl::StatusOr<Flow> flow = Execute(s.body, out);
      scope_ = outer;
      return flow;
    }
    case Stmt::Kind::kMacro:
      scope_->names[s.name] = MakeMacro(s, s.name);
      return Flow::kNormal;
    case Stmt::Kind::kCallBlock: {
      const Value caller = MakeMacro(s, "caller");
      TESSERA_ASSIGN_OR_RETURN(const Value value, EvaluateCall(*s.expr, &caller));
      out->Append(ToText(value));
      return Flow::kNormal;
    }
    case Stmt::Kind::kScope: {
      TESSERA_ASSIGN_OR_RETURN(const Text text, Capture(s.body));
      out->Append(text);
      return Flow::kNormal;
    }
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return absl::InternalError("a statement of no kind");
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteFor(const Stmt& s, Text* out) {
  TESSERA_ASSIGN_OR_RETURN(const Value iterable, Evaluate(*s.expr));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const Sequence> items, Iterate(iterable));
  TESSERA_RETURN_IF_ERROR(ChargeSteps(items->items.size()));

  const ScopePtr outer = scope_;
  // What is set within one iteration is gone in the next, as is all of it behind the loop.
  const auto enter = [&](const Value& item) -> absl::Status {
    scope_ = std::make_shared<Scope>();
    scope_->parent = outer;
    return Assign(s.target, item);
  };
  if (s.condition != nullptr) {
    auto chosen = std::make_shared<Sequence>();
    for (const Value& item : items->items) {
      absl::Status entered = enter(item);
      absl::StatusOr<Value> condition =
          entered.ok() ? Evaluate(*s.condition) : absl::StatusOr<Value>(entered);
      scope_ = outer;
      if (!condition.ok()) return condition.status();
      if (condition->Truthy()) chosen->items.push_back(item);
    }
    chosen->depth = items->depth;
    items = std::move(chosen);
  }
  if (items->items.empty()) return ExecuteScoped(s.else_body, out);

  auto loop = std::make_shared<LoopState>();
  loop->items = items;
  for (; loop->index < items->items.size(); ++loop->index) {
    absl::Status entered = enter(items->items[loop->index]);
    scope_->names["loop"] = Value(Value::Data(loop));
    absl::StatusOr<Flow> flow = entered.ok() ? Execute(s.body, out) : absl::StatusOr<Flow>(entered);
    scope_ = outer;
    if (!flow.ok()) return flow;
    if (*flow == Flow::kBreak) break;
  }
  return Flow::kNormal;
}

absl::Status Interpreter::Assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const Sequence> items, Iterate(value));
    if (items->items.size() != target.parts.size()) {
      return TemplateError(
          absl::StrCat("cannot unpack ", items->items.size(), " values into ", target.parts.size()));
    }
    for (size_t i = 0; i < target.parts.size(); ++i) {
      TESSERA_RETURN_IF_ERROR(Assign(target.parts[i], items->items[i]));
    }
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    scope_->names[target.name] = value;
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const Value object, Lookup(target.name));
  if (object.ns() == nullptr) return TemplateError("cannot assign attribute on non-namespace object");
  if (absl::StartsWith(target.attribute, "_")) {
    return TemplateError(absl::StrCat("a namespace cannot have an attribute '", target.attribute, "'"));
  }
  object.ns()->attributes.Set(Value::Str(target.attribute), value);
  return absl::OkStatus();
}

Value Interpreter::MakeMacro(const Stmt& s, std::string name) {
  const ScopePtr defined_in = scope_;
  captured_scopes_.push_back(scope_);
  std::string shown = name;
  return Value::MakeFunction(std::move(shown),
                             [&s, defined_in, name = std::move(name)](Interpreter* in, const Arguments& a) {
                               return in->CallMacro(s, name, defined_in, a);
                             });
}

absl::StatusOr<Value> Interpreter::CallMacro(const Stmt& s, const std::string& name,
                                             const ScopePtr& defined_in, const Arguments& arguments) {
  const DepthGuard guard(this);
  TESSERA_RETURN_IF_ERROR(guard.Check());
  if (arguments.positional.size() > s.parameters.size()) {
    return TemplateError(
        absl::StrCat("macro '", name, "' takes not more than ", s.parameters.size(), " argument(s)"));
  }
  const ScopePtr outer = scope_;
  scope_ = std::make_shared<Scope>();
  scope_->parent = defined_in;
  const auto run = [&]() -> absl::StatusOr<Value> {
    std::vector<bool> given(s.parameters.size(), false);
    for (size_t i = 0; i < arguments.positional.size(); ++i) {
      scope_->names[s.parameters[i].name] = arguments.positional[i];
      given[i] = true;
    }
    for (const auto& [key, value] : arguments.named) {
      size_t i = 0;
      while (i < s.parameters.size() && s.parameters[i].name != key) ++i;
      if (i == s.parameters.size() && key == "caller") {
        scope_->names[key] = value;
        continue;
      }
      if (i == s.parameters.size()) {
        return TemplateError(absl::StrCat("macro '", name, "' takes no keyword argument '", key, "'"));
      }
      if (given[i])
        return TemplateError(absl::StrCat("macro '", name, "' got multiple values for argument '", key, "'"));
      scope_->names[key] = value;
      given[i] = true;
    }
    for (size_t i = 0; i < s.parameters.size(); ++i) {
      if (given[i]) continue;
      const Parameter& p = s.parameters[i];
      Value value = Value::MakeUndefined(absl::StrCat("parameter '", p.name, "' was not provided"));
      if (p.default_value != nullptr) {
        TESSERA_ASSIGN_OR_RETURN(value, Evaluate(*p.default_value));
      }
      scope_->names[p.name] = value;
    }
    Text text;
    TESSERA_ASSIGN_OR_RETURN(const Flow flow, Execute(s.body, &text));
    (void)flow;
    return MakeString(std::move(text));
  };
  absl::StatusOr<Value> result = run();
  scope_ = outer;
  return result;
}

absl::StatusOr<Value> Interpreter::Lookup(const std::string& name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const auto it = scope->names.find(name); it != scope->names.end()) return it->second;
  }
  return Value::MakeUndefined(absl::StrCat("'", name, "' is undefined"));
}

absl::StatusOr<Value> Interpreter::Evaluate(const Expr& e) {
  const DepthGuard guard(this);
  TESSERA_RETURN_IF_ERROR(guard.Check());
  TESSERA_RETURN_IF_ERROR(ChargeSteps(1));
  return EvaluateInner(e);
}

}  // namespace tessera::jinja
