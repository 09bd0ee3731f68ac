// Jinja's tests: `value is name(arguments)`.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/format.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

using Result = absl::StatusOr<bool>;

absl::StatusOr<Value> OneArgument(absl::string_view test, const Arguments& a) {
  if (a.positional.size() != 1 || !a.named.empty())
    return TemplateError(absl::StrCat("the test '", test, "' takes one argument"));
  return a.positional[0];
}

bool IsList(const Value& v) {
  return v.sequence() != nullptr && v.sequence()->kind <= Sequence::Kind::kTuple;
}

// All letters, of which there are some, are of this case.
Result IsCase(const Value& v, Text (*convert)(const Text&), Text (*other)(const Text&)) {
  const Text text = ToText(v);
  return convert(text).bytes() == text.bytes() && other(text).bytes() != text.bytes();
}

Result Modulo(const Value& v, const Value& divisor, int64_t* out) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t a, ToInteger(v, "the number"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t b, ToInteger(divisor, "the divisor"));
  if (b == 0) return TemplateError("integer modulo by zero");
  *out = b == -1 ? 0 : a % b;
  return true;
}

Result Divisible(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const Value divisor, OneArgument("divisibleby", a));
  int64_t rest = 0;
  TESSERA_RETURN_IF_ERROR(Modulo(v, divisor, &rest).status());
  return rest == 0;
}

Result Parity(const Value& v, bool odd) {
  int64_t rest = 0;
  TESSERA_RETURN_IF_ERROR(Modulo(v, Value::Int(2), &rest).status());
  return (rest != 0) == odd;
}

Result Equals(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const Value other, OneArgument("eq", a));
  return Equal(v, other);
}

Result NotEquals(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const Value other, OneArgument("ne", a));
  return !Equal(v, other);
}

Result LessThan(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const Value other, OneArgument("lt", a));
  return Less(v, other);
}

Result GreaterThan(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const Value other, OneArgument("gt", a));
  return Less(other, v);
}

Result LessOrEqual(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const Value other, OneArgument("le", a));
  TESSERA_ASSIGN_OR_RETURN(const bool less, Less(v, other));
  return less || Equal(v, other);
}

Result GreaterOrEqual(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const Value other, OneArgument("ge", a));
  TESSERA_ASSIGN_OR_RETURN(const bool less, Less(other, v));
  return less || Equal(v, other);
}

Result In(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const Value container, OneArgument("in", a));
  return in->Contains(container, v);
}

Result SameAs(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const Value other, OneArgument("sameas", a));
  // Identity means something for the singletons; numbers and strings are the same if they are of one type.
  return v.data().index() == other.data().index() && Equal(v, other);
}

Result IsFilter(Interpreter*, const Value& v, const Arguments&) {
  return v.is_string() && FindFilter(v.text()->view()) != nullptr;
}

Result IsTest(Interpreter*, const Value& v, const Arguments&) {
  return v.is_string() && FindTest(v.text()->view()) != nullptr;
}

using Table = absl::flat_hash_map<std::string, TestFunction>;
using A = Arguments;

const Table* MakeTable() {
  const auto add = [](Table* t, std::initializer_list<const char*> names, TestFunction f) {
    for (const char* name : names) t->emplace(name, f);
  };
  auto* t = new Table;
  add(t, {"defined"}, [](Interpreter*, const Value& v, const A&) -> Result { return !v.is_undefined(); });
  add(t, {"undefined"}, [](Interpreter*, const Value& v, const A&) -> Result { return v.is_undefined(); });
  add(t, {"none"}, [](Interpreter*, const Value& v, const A&) -> Result { return v.is_none(); });
  add(t, {"boolean"}, [](Interpreter*, const Value& v, const A&) -> Result { return v.is_bool(); });
  add(t, {"true"},
      [](Interpreter*, const Value& v, const A&) -> Result { return v.is_bool() && v.AsInt() == 1; });
  add(t, {"false"},
      [](Interpreter*, const Value& v, const A&) -> Result { return v.is_bool() && v.AsInt() == 0; });
  add(t, {"integer"}, [](Interpreter*, const Value& v, const A&) -> Result { return v.is_int(); });
  add(t, {"float"}, [](Interpreter*, const Value& v, const A&) -> Result { return v.is_float(); });
  add(t, {"number"}, [](Interpreter*, const Value& v, const A&) -> Result { return v.is_number(); });
  add(t, {"string"}, [](Interpreter*, const Value& v, const A&) -> Result { return v.is_string(); });
  add(t, {"mapping"}, [](Interpreter*, const Value& v, const A&) -> Result { return v.dict() != nullptr; });
  add(t, {"sequence"}, [](Interpreter*, const Value& v, const A&) -> Result {
    return v.is_string() || v.dict() != nullptr || IsList(v) || v.is_undefined();
  });
  add(t, {"iterable"}, [](Interpreter*, const Value& v, const A&) -> Result {
    return v.is_string() || v.dict() != nullptr || v.sequence() != nullptr || v.is_undefined() ||
           v.loop() != nullptr;
  });
  add(t, {"callable"},
      [](Interpreter*, const Value& v, const A&) -> Result { return v.callable() != nullptr; });
  add(t, {"escaped"}, [](Interpreter*, const Value&, const A&) -> Result { return false; });
  add(t, {"lower"}, [](Interpreter*, const Value& v, const A&) { return IsCase(v, Lower, Upper); });
  add(t, {"upper"}, [](Interpreter*, const Value& v, const A&) { return IsCase(v, Upper, Lower); });
  add(t, {"odd"}, [](Interpreter*, const Value& v, const A&) { return Parity(v, true); });
  add(t, {"even"}, [](Interpreter*, const Value& v, const A&) { return Parity(v, false); });
  add(t, {"divisibleby"}, Divisible);
  add(t, {"eq", "equalto", "=="}, Equals);
  add(t, {"ne", "!="}, NotEquals);
  add(t, {"lt", "lessthan", "<"}, LessThan);
  add(t, {"gt", "greaterthan", ">"}, GreaterThan);
  add(t, {"le", "<="}, LessOrEqual);
  add(t, {"ge", ">="}, GreaterOrEqual);
  add(t, {"in"}, In);
  add(t, {"sameas"}, SameAs);
  add(t, {"filter"}, IsFilter);
  add(t, {"test"}, IsTest);
  return t;
}

}  // namespace

TestFunction FindTest(absl::string_view name) {
  static const Table* const kTests = MakeTable();
  const auto it = kTests->find(name);
  return it == kTests->end() ? nullptr : it->second;
}

}  // namespace tessera::jinja
