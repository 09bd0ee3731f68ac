// The methods of list, tuple and dict, and the lookup of methods.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/format.h"

namespace tessera::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Result Keys(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("keys", a, {}).status());
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(v.dict()->size()));
  std::vector<Value> out;
  for (const Dict::Entry& e : v.dict()->entries()) out.push_back(e.key);
  return Value::List(std::move(out), Sequence::Kind::kView);
}

Result Values(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("values", a, {}).status());
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(v.dict()->size()));
  std::vector<Value> out;
  for (const Dict::Entry& e : v.dict()->entries()) out.push_back(e.value);
  return Value::List(std::move(out), Sequence::Kind::kView);
}

Result Items(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("items", a, {}).status());
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(v.dict()->size()));
  std::vector<Value> out;
  for (const Dict::Entry& e : v.dict()->entries()) {
    TESSERA_ASSIGN_OR_RETURN(Value pair, Value::List({e.key, e.value}, Sequence::Kind::kTuple));
    out.push_back(std::move(pair));
  }
  return Value::List(std::move(out), Sequence::Kind::kView);
}

Result Get(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("get", a, {"key", "default"}));
  if (!args[0]) return TemplateError("get expected at least 1 argument, got 0");
  const Value* found = v.dict()->Find(*args[0]);
  return found != nullptr ? *found : args[1].value_or(Value::MakeNone());
}

Result Copy(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("copy", a, {}).status());
  return v;  // it cannot be changed, so it is its own copy
}

Result IndexOf(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("index", a, {"value"}));
  if (!args[0]) return TemplateError("index expected at least 1 argument, got 0");
  const std::vector<Value>& items = v.sequence()->items;
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(items.size()));
  const auto it =
      std::find_if(items.begin(), items.end(), [&](const Value& x) { return Equal(x, *args[0]); });
  if (it == items.end()) return TemplateError(absl::StrCat(Repr(*args[0]).bytes(), " is not in list"));
  return Value::Int(it - items.begin());
}

Result CountOf(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("count", a, {"value"}));
  if (!args[0]) return TemplateError("count expected at least 1 argument, got 0");
  const std::vector<Value>& items = v.sequence()->items;
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(items.size()));
  return Value::Int(
      std::count_if(items.begin(), items.end(), [&](const Value& x) { return Equal(x, *args[0]); }));
}

Value BindMethod(absl::string_view name, FilterFunction method, const Value& self) {
  return Value::MakeFunction(
      std::string(name.data(), name.size()),
      [method, self](Interpreter* in, const Arguments& a) { return method(in, self, a); });
}

}  // namespace

absl::StatusOr<Value> FindMethod(const Value& value, absl::string_view name) {
  static const FilterTable* const kDict =
      new FilterTable({{"copy", Copy}, {"get", Get}, {"items", Items}, {"keys", Keys}, {"values", Values}});
  static const FilterTable* const kList =
      new FilterTable({{"copy", Copy}, {"count", CountOf}, {"index", IndexOf}});
  static constexpr absl::string_view kDictMutators[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr absl::string_view kListMutators[] = {"append", "clear",  "extend",  "insert",
                                                        "pop",    "remove", "reverse", "sort"};
  const auto mutates = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };

  FilterFunction method = nullptr;
  bool unsafe = false;
  const Sequence* s = value.sequence();
  if (value.is_string()) {
    method = FindStringMethod(name);
  } else if (value.dict() != nullptr) {
    const auto it = kDict->find(name);
    if (it != kDict->end()) method = it->second;
    unsafe = mutates(kDictMutators);
  } else if (s != nullptr && s->kind <= Sequence::Kind::kTuple) {
    const auto it = kList->find(name);
    if (it != kList->end() && (s->kind == Sequence::Kind::kList || name != "copy")) method = it->second;
    unsafe = s->kind == Sequence::Kind::kList && mutates(kListMutators);
  }
  if (unsafe)
    return TemplateError(
        absl::StrCat("access to attribute '", name, "' of '", value.type_name(), "' object is unsafe."));
  return method == nullptr ? Value() : BindMethod(name, method, value);
}

}  // namespace tessera::jinja
