// The half of the interpreter that evaluates expressions.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/characters.h"
#include "server/tokenizer/jinja/format.h"
#include "server/tokenizer/jinja/interpreter.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

// 'dict object' has no attribute 'x'
Value Missing(const Value& object, const Value& key) {
  const std::string type = object.is_none() ? "None" : absl::StrCat(object.type_name(), " object");
  const Text name = Repr(key);
  return Value::MakeUndefined(key.is_string() ? absl::StrCat("'", type, "' has no attribute ", name.bytes())
                                              : absl::StrCat(type, " has no element ", name.bytes()));
}

Value LoopAttribute(const Value& value, absl::string_view name) {
  LoopState* loop = value.loop();
  const auto size = static_cast<int64_t>(loop->items->items.size());
  const auto index = static_cast<int64_t>(loop->index);
  if (name == "index") return Value::Int(index + 1);
  if (name == "index0") return Value::Int(index);
  if (name == "revindex") return Value::Int(size - index);
  if (name == "revindex0") return Value::Int(size - index - 1);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "last") return Value::Bool(index + 1 == size);
  if (name == "length") return Value::Int(size);
  // Only recursive loops, which are not supported, go deeper.
  if (name == "depth") return Value::Int(1);
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem") {
    return index > 0 ? loop->items->items[index - 1] : Value::MakeUndefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < size ? loop->items->items[index + 1] : Value::MakeUndefined("there is no next item");
  }
  if (name == "cycle") {
    return Value::MakeFunction("cycle", [index](Interpreter*, const Arguments& a) -> absl::StatusOr<Value> {
      if (a.positional.empty()) return TemplateError("no items for cycling given");
      return a.positional[index % a.positional.size()];
    });
  }
  if (name == "changed") {
    // Holds the loop, which does not hold it.
    return Value::MakeFunction("changed", [value](Interpreter*, const Arguments& a) -> absl::StatusOr<Value> {
      LoopState* state = value.loop();
      const bool same =
          state->has_changed && std::equal(state->last_changed.begin(), state->last_changed.end(),
                                           a.positional.begin(), a.positional.end(), Equal);
      state->last_changed = a.positional;
      state->has_changed = true;
      return Value::Bool(!same);
    });
  }
  return Missing(value, Value::Str(name));
}

bool Index(int64_t index, size_t size, size_t* out) {
  const auto n = static_cast<int64_t>(size);
  if (index < -n || index >= n) return false;
  *out = static_cast<size_t>(index < 0 ? index + n : index);
  return true;
}

}  // namespace

absl::StatusOr<Value> Interpreter::GetItem(const Value& value, const Value& key) {
  if (value.is_undefined()) return value.UndefinedError();
  size_t index = 0;
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->Find(key)) return *found;
  } else if (const Sequence* s = value.sequence()) {
    if (s->kind <= Sequence::Kind::kTuple && key.is_integral() &&
        Index(key.AsInt(), s->items.size(), &index)) {
      return s->items[index];
    }
  } else if (const Text* text = value.text(); text != nullptr && key.is_integral()) {
    TESSERA_RETURN_IF_ERROR(ChargeSteps(text->size() / 16));
    const std::vector<size_t> offsets = CharacterOffsets(*text);
    if (Index(key.AsInt(), offsets.size() - 1, &index))
      return Value::Str(text->Substr(offsets[index], offsets[index + 1]));
  }
  if (key.is_string()) {
    if (value.loop() != nullptr) return LoopAttribute(value, key.text()->view());
    if (value.ns() != nullptr) {
      if (const Value* found = value.ns()->attributes.Find(key)) return *found;
    }
    TESSERA_ASSIGN_OR_RETURN(Value method, FindMethod(value, key.text()->view()));
    if (!method.is_undefined()) return method;
  }
  return Missing(value, key);
}

absl::StatusOr<Value> Interpreter::GetAttribute(const Value& value, absl::string_view name) {
  if (value.is_undefined()) return value.UndefinedError();
  if (value.loop() != nullptr) return LoopAttribute(value, name);
  // A method goes before a key: `message.items` is the method.
  TESSERA_ASSIGN_OR_RETURN(Value method, FindMethod(value, name));
  if (!method.is_undefined()) return method;
  const Dict* dict = value.ns() != nullptr ? &value.ns()->attributes : value.dict();
  if (dict != nullptr) {
    if (const Value* found = dict->Find(name)) return *found;
  }
  return Missing(value, Value::Str(name));
}

absl::StatusOr<Value> Interpreter::Call(const Value& callee, const Arguments& arguments) {
  if (callee.is_undefined()) return callee.UndefinedError();
  if (callee.callable() == nullptr)
    return TemplateError(absl::StrCat("'", callee.type_name(), "' object is not callable"));
  return callee.callable()->function(this, arguments);
}

absl::StatusOr<Value> Interpreter::ApplyFilter(absl::string_view name, const Value& value,
                                               const Arguments& arguments) {
  const FilterFunction filter = FindFilter(name);
  if (filter == nullptr) return TemplateError(absl::StrCat("No filter named '", name, "'."));
  return filter(this, value, arguments);
}

absl::StatusOr<bool> Interpreter::ApplyTest(absl::string_view name, const Value& value,
                                            const Arguments& arguments) {
  const TestFunction test = FindTest(name);
  if (test == nullptr) return TemplateError(absl::StrCat("No test named '", name, "'."));
  return test(this, value, arguments);
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const Expr& e, size_t first) {
  Arguments out;
  for (size_t i = first; i < e.args.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(Value value, Evaluate(*e.args[i]));
    out.positional.push_back(std::move(value));
  }
  for (const NamedExpr& named : e.named) {
    TESSERA_ASSIGN_OR_RETURN(Value value, Evaluate(*named.value));
    if (named.name == "*") {
      TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const Sequence> items, Iterate(value));
      TESSERA_RETURN_IF_ERROR(ChargeSteps(items->items.size()));
      out.positional.insert(out.positional.end(), items->items.begin(), items->items.end());
    } else if (named.name == "**") {
      if (value.dict() == nullptr)
        return TemplateError(absl::StrCat("argument after ** must be a mapping, not ", value.type_name()));
      TESSERA_RETURN_IF_ERROR(ChargeSteps(value.dict()->entries().size()));
      for (const Dict::Entry& entry : value.dict()->entries()) {
        if (!entry.key.is_string()) return TemplateError("keywords must be strings");
        out.named.emplace_back(entry.key.text()->bytes(), entry.value);
      }
    } else {
      out.named.emplace_back(named.name, std::move(value));
    }
  }
  return out;
}

absl::StatusOr<Value> Interpreter::EvaluateCall(const Expr& e, const Value* caller) {
  TESSERA_ASSIGN_OR_RETURN(const Value callee, Evaluate(*e.args[0]));
  TESSERA_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(e, 1));
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  return Call(callee, arguments);
}

absl::StatusOr<Value> Interpreter::EvaluateFilter(const Expr& e, const Value* block) {
  if (e.kind != Expr::Kind::kFilter) return Evaluate(e);
  Value input;
  if (e.args[0] == nullptr) {
    input = *block;
  } else {
    TESSERA_ASSIGN_OR_RETURN(input, EvaluateFilter(*e.args[0], block));
  }
  TESSERA_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(e, 1));
  return ApplyFilter(e.name, input, arguments);
}

absl::StatusOr<Value> Interpreter::EvaluateInner(const Expr& e) {
  const auto operand = [&](size_t i) { return Evaluate(*e.args[i]); };
  switch (e.kind) {
    case Expr::Kind::kConstant:
      return e.constant;
    case Expr::Kind::kName:
      return Lookup(e.name);
    case Expr::Kind::kList:
    case Expr::Kind::kTuple: {
      TESSERA_ASSIGN_OR_RETURN(Arguments items, EvaluateArguments(e, 0));
      return Value::List(std::move(items.positional),
                         e.kind == Expr::Kind::kList ? Sequence::Kind::kList : Sequence::Kind::kTuple);
    }
    case Expr::Kind::kDict: {
      Dict dict;
      for (size_t i = 0; i + 1 < e.args.size(); i += 2) {
        TESSERA_ASSIGN_OR_RETURN(const Value key, operand(i));
        TESSERA_ASSIGN_OR_RETURN(const Value value, operand(i + 1));
        if (!dict.Set(key, value))
          return TemplateError(absl::StrCat("unhashable type: '", key.type_name(), "'"));
      }
      return Value::FromDict(std::move(dict));
    }
    case Expr::Kind::kAttribute: {
      TESSERA_ASSIGN_OR_RETURN(const Value object, operand(0));
      return GetAttribute(object, e.name);
    }
    case Expr::Kind::kItem: {
      TESSERA_ASSIGN_OR_RETURN(const Value object, operand(0));
      TESSERA_ASSIGN_OR_RETURN(const Value key, operand(1));
      return GetItem(object, key);
    }
    case Expr::Kind::kSlice:
      return EvaluateSlice(e);
    case Expr::Kind::kCall:
      return EvaluateCall(e, nullptr);
    case Expr::Kind::kFilter:
      return EvaluateFilter(e, nullptr);
    case Expr::Kind::kTest: {
      TESSERA_ASSIGN_OR_RETURN(const Value value, operand(0));
      TESSERA_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(e, 1));
      TESSERA_ASSIGN_OR_RETURN(const bool result, ApplyTest(e.name, value, arguments));
      return Value::Bool(result);
    }
    case Expr::Kind::kCondition: {
      TESSERA_ASSIGN_OR_RETURN(const Value condition, operand(1));
      if (condition.Truthy()) return operand(0);
      if (e.args[2] != nullptr) return operand(2);
      return Value::MakeUndefined(
          "the inline if-expression evaluated to false and no else section was defined.");
    }
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr:
      for (size_t i = 0; i + 1 < e.args.size(); ++i) {
        TESSERA_ASSIGN_OR_RETURN(Value value, operand(i));
        if (value.Truthy() == (e.kind == Expr::Kind::kOr)) return value;
      }
      return operand(e.args.size() - 1);
    case Expr::Kind::kNot: {
      TESSERA_ASSIGN_OR_RETURN(const Value value, operand(0));
      return Value::Bool(!value.Truthy());
    }
    case Expr::Kind::kCompare:
      return EvaluateCompare(e);
    case Expr::Kind::kBinary: {
      TESSERA_ASSIGN_OR_RETURN(const Value a, operand(0));
      TESSERA_ASSIGN_OR_RETURN(const Value b, operand(1));
      return Binary(e.name, a, b);
    }
    case Expr::Kind::kConcat: {
      Text text;
      for (size_t i = 0; i < e.args.size(); ++i) {
        TESSERA_ASSIGN_OR_RETURN(const Value part, operand(i));
        text.Append(ToText(part));
      }
      return MakeString(std::move(text));
    }
    case Expr::Kind::kNegative:
    case Expr::Kind::kPositive: {
      TESSERA_ASSIGN_OR_RETURN(const Value value, operand(0));
      if (value.is_undefined()) return value.UndefinedError();
      if (!value.is_number())
        return TemplateError(absl::StrCat("bad operand type for unary operator: '", value.type_name(), "'"));
      if (value.is_float())
        return Value::Float(e.kind == Expr::Kind::kNegative ? -value.AsDouble() : value.AsDouble());
      if (e.kind == Expr::Kind::kPositive) return Value::Int(value.AsInt());
      return Binary("-", Value::Int(0), value);
    }
  }
  return absl::InternalError("an expression of no kind");
}

absl::StatusOr<Value> Interpreter::EvaluateCompare(const Expr& e) {
  TESSERA_ASSIGN_OR_RETURN(Value left, Evaluate(*e.args[0]));
  for (size_t i = 0; i < e.operators.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(Value right, Evaluate(*e.args[i + 1]));
    const std::string& op = e.operators[i];
    bool result = false;
    if (op == "==" || op == "!=") {
      result = Equal(left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      TESSERA_ASSIGN_OR_RETURN(result, Contains(right, left));
      result = result == (op == "in");
    } else if (op == "<" || op == ">") {
      TESSERA_ASSIGN_OR_RETURN(result, op == "<" ? Less(left, right) : Less(right, left));
    } else {
      TESSERA_ASSIGN_OR_RETURN(result, op == "<=" ? Less(left, right) : Less(right, left));
      result = result || Equal(left, right);
    }
    if (!result) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<bool> Interpreter::Contains(const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    if (item.is_undefined()) return item.UndefinedError();
    if (!item.is_string()) {
      return TemplateError(
          absl::StrCat("'in <string>' requires string as left operand, not ", item.type_name()));
    }
    TESSERA_RETURN_IF_ERROR(ChargeSteps(text->size() / 16));
    return absl::StrContains(text->view(), item.text()->view());
  }
  if (const Dict* dict = container.dict()) return dict->Find(item) != nullptr;
  if (container.sequence() == nullptr && !container.is_undefined()) {
    return TemplateError(absl::StrCat("argument of type '", container.type_name(), "' is not iterable"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const Sequence> items, Iterate(container));
  TESSERA_RETURN_IF_ERROR(ChargeSteps(items->items.size()));
  return std::any_of(items->items.begin(), items->items.end(),
                     [&](const Value& v) { return Equal(v, item); });
}

}  // namespace tessera::jinja
