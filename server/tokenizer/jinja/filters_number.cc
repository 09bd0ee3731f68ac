// Filters on numbers.
#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/builtins.h"

namespace tessera::jinja {
namespace {

// The number at the start of a trimmed string, as int() and float() read it.
bool ParseDouble(absl::string_view text, double* out) {
  return absl::SimpleAtod(absl::StripAsciiWhitespace(text), out);
}

absl::StatusOr<Value> IntFilter(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("int", a, {"default", "base"}));
  if (v.is_undefined()) return v.UndefinedError();
  const Value absent = args[0].value_or(Value::Int(0));
  int64_t base = 10;
  if (args[1]) {
    TESSERA_ASSIGN_OR_RETURN(base, ToInteger(*args[1], "base"));
  }
  double d = 0;
  if (v.is_integral()) return Value::Int(v.AsInt());
  if (v.is_float()) {
    d = v.AsDouble();
  } else if (v.is_string()) {
    const absl::string_view text = absl::StripAsciiWhitespace(v.text()->view());
    int64_t i = 0;
    if (base == 10 ? absl::SimpleAtoi(text, &i) : base == 16 && absl::SimpleHexAtoi(text, &i))
      return Value::Int(i);
    if (base != 10 && base != 16) return TemplateError("only the bases 10 and 16 are supported");
    if (!ParseDouble(text, &d)) return absent;
  } else {
    return absent;
  }
  if (!(std::abs(d) < 9.2e18)) return absent;
  return Value::Int(static_cast<int64_t>(d));
}

absl::StatusOr<Value> FloatFilter(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("float", a, {"default"}));
  if (v.is_undefined()) return v.UndefinedError();
  double d = 0;
  if (v.is_number()) return Value::Float(v.AsDouble());
  if (v.is_string() && ParseDouble(v.text()->view(), &d)) return Value::Float(d);
  return args[0].value_or(Value::Float(0));
}

absl::StatusOr<Value> AbsFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("abs", a, {}).status());
  if (v.is_undefined()) return v.UndefinedError();
  if (!v.is_number()) return TemplateError(absl::StrCat("bad operand type for abs(): '", v.type_name(), "'"));
  if (v.is_float()) return Value::Float(std::abs(v.AsDouble()));
  if (v.AsInt() == INT64_MIN) return TemplateError("an integer is too large");
  return Value::Int(std::abs(v.AsInt()));
}

// Half to even, on the decimal value, as Python's round() has it for numbers of this size.
double RoundHalfEven(double x, int64_t digits) {
  if (!std::isfinite(x) || digits > 300) return x;
  if (digits < -300) return 0;
  if (digits <= 0) {
    const double scale = std::pow(10.0, static_cast<double>(-digits));
    return std::nearbyint(x / scale) * scale;
  }
  // The nearest number with that many decimals is what a correctly rounded print gives.
  double out = x;
  (void)absl::SimpleAtod(absl::StrFormat("%.*f", static_cast<int>(std::min<int64_t>(digits, 60)), x), &out);
  return out;
}

absl::StatusOr<Value> RoundFilter(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("round", a, {"precision", "method"}));
  if (v.is_undefined()) return v.UndefinedError();
  if (!v.is_number()) return TemplateError(absl::StrCat("type ", v.type_name(), " cannot be rounded"));
  int64_t precision = 0;
  if (args[0]) {
    TESSERA_ASSIGN_OR_RETURN(precision, ToInteger(*args[0], "precision"));
  }
  std::string method = "common";
  if (args[1]) {
    TESSERA_ASSIGN_OR_RETURN(const Text given, ExpectString(*args[1], "method"));
    method = given.bytes();
  }
  if (method == "common") {
    if (v.is_integral() && precision >= 0) return Value::Int(v.AsInt());
    const double rounded = RoundHalfEven(v.AsDouble(), precision);
    if (v.is_integral()) return Value::Int(static_cast<int64_t>(rounded));
    return Value::Float(rounded);
  }
  if (method != "ceil" && method != "floor") return TemplateError("method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v.AsDouble() * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

}  // namespace

void AddNumberFilters(FilterTable* table) {
  const std::pair<const char*, FilterFunction> filters[] = {
      {"abs", AbsFilter},
      {"float", FloatFilter},
      {"int", IntFilter},
      {"round", RoundFilter},
  };
  for (const auto& [name, filter] : filters) table->emplace(name, filter);
}

}  // namespace tessera::jinja
