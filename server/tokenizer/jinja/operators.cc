// The operators of expressions, and slices.
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

absl::Status Overflow() { return TemplateError("an integer is too large"); }

absl::StatusOr<Value> IntegerBinary(absl::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) return Overflow();
    return Value::Int(result);
  }
  if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) return Overflow();
    return Value::Int(result);
  }
  if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) return Overflow();
    return Value::Int(result);
  }
  if (op == "**") {
    if (b < 0) return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
    result = 1;
    for (int64_t base = a; b > 0; b >>= 1) {
      if ((b & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return Overflow();
      if (b > 1 && __builtin_mul_overflow(base, base, &base)) return Overflow();
    }
    return Value::Int(result);
  }
  if (b == 0) return TemplateError("division by zero");
  if (op == "/") return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  if (a == INT64_MIN && b == -1) return op == "%" ? absl::StatusOr<Value>(Value::Int(0)) : Overflow();
  const int64_t quotient = a / b, remainder = a % b;
  const bool floor_down = remainder != 0 && (remainder < 0) != (b < 0);
  return Value::Int(op == "%" ? remainder + (floor_down ? b : 0) : quotient - (floor_down ? 1 : 0));
}

absl::StatusOr<Value> FloatBinary(absl::string_view op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") return Value::Float(std::pow(a, b));
  if (b == 0) return TemplateError("float division by zero");
  if (op == "/") return Value::Float(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (op == "%") return Value::Float(remainder);
  return Value::Float(std::round((a - remainder) / b));
}

}  // namespace

absl::StatusOr<Value> Interpreter::Binary(absl::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) return a.UndefinedError();
  if (a.is_string() && op == "%") {
    TESSERA_ASSIGN_OR_RETURN(Text text, PercentFormat(*a.text(), b));
    return MakeString(std::move(text));
  }
  if (b.is_undefined()) return b.UndefinedError();
  if (a.is_integral() && b.is_integral()) return IntegerBinary(op, a.AsInt(), b.AsInt());
  if (a.is_number() && b.is_number()) return FloatBinary(op, a.AsDouble(), b.AsDouble());
  const Sequence *x = a.sequence(), *y = b.sequence();
  if (op == "+") {
    if (a.is_string() && b.is_string()) {
      Text text = *a.text();
      text.Append(*b.text());
      return MakeString(std::move(text));
    }
    if (x != nullptr && y != nullptr && x->kind == y->kind && x->kind <= Sequence::Kind::kTuple) {
      std::vector<Value> items = x->items;
      items.insert(items.end(), y->items.begin(), y->items.end());
      TESSERA_RETURN_IF_ERROR(ChargeSteps(items.size()));
      return Value::List(std::move(items), x->kind);
    }
  }
  if (op == "*" && (a.is_integral() || b.is_integral())) {
    const Value& repeated = a.is_integral() ? b : a;
    const int64_t count = std::max<int64_t>(0, a.is_integral() ? a.AsInt() : b.AsInt());
    const Sequence* s = repeated.sequence();
    if (const Text* text = repeated.text()) {
      if (count > 0 && text->size() > limits_.string / static_cast<size_t>(count))
        return ChargeBytes(limits_.string + 1);
      Text out;
      for (int64_t i = 0; i < count && !text->empty(); ++i) out.Append(*text);
      return MakeString(std::move(out));
    }
    if (s != nullptr && s->kind <= Sequence::Kind::kTuple) {
      if (!s->items.empty() && count > limits_.steps / static_cast<int64_t>(s->items.size())) {
        return ChargeSteps(limits_.steps + 1);
      }
      TESSERA_RETURN_IF_ERROR(ChargeSteps(s->items.size() * count));
      std::vector<Value> items;
      for (int64_t i = 0; i < count; ++i) items.insert(items.end(), s->items.begin(), s->items.end());
      return Value::List(std::move(items), s->kind);
    }
  }
  return TemplateError(absl::StrCat("unsupported operand type(s) for ", op, ": '", a.type_name(), "' and '",
                                    b.type_name(), "'"));
}

absl::StatusOr<Value> Interpreter::EvaluateSlice(const Expr& e) {
  TESSERA_ASSIGN_OR_RETURN(const Value object, Evaluate(*e.args[0]));
  if (object.is_undefined()) return object.UndefinedError();
  std::optional<int64_t> bounds[3];
  for (int i = 0; i < 3; ++i) {
    if (e.args[i + 1] == nullptr) continue;
    TESSERA_ASSIGN_OR_RETURN(const Value bound, Evaluate(*e.args[i + 1]));
    if (bound.is_none()) continue;
    if (!bound.is_integral()) return TemplateError("slice indices must be integers or None");
    bounds[i] = bound.AsInt();
  }
  const Sequence* sequence = object.sequence();
  const Text* text = object.text();
  if (text == nullptr && (sequence == nullptr || sequence->kind > Sequence::Kind::kTuple)) {
    return TemplateError(absl::StrCat("'", object.type_name(), "' object is not subscriptable"));
  }
  std::vector<size_t> offsets;
  if (text != nullptr) offsets = CharacterOffsets(*text);
  const auto size = static_cast<int64_t>(text != nullptr ? offsets.size() - 1 : sequence->items.size());
  TESSERA_RETURN_IF_ERROR(ChargeSteps(static_cast<size_t>(size) / 16));
  const int64_t step = bounds[2].value_or(1);
  if (step == 0) return TemplateError("slice step cannot be zero");
  // As Python clips the bounds for either direction.
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto clip = [&](std::optional<int64_t> bound, int64_t absent) {
    if (!bound) return absent;
    const int64_t at = *bound < 0 ? (*bound < -size ? -1 - size : *bound) + size : *bound;
    return std::clamp(at, low, high);
  };
  const int64_t start = clip(bounds[0], step > 0 ? low : high), stop = clip(bounds[1], step > 0 ? high : low);
  if (text != nullptr && step == 1) {
    return start < stop ? MakeString(text->Substr(offsets[start], offsets[stop])) : Value::Str("");
  }
  Text out;
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (text != nullptr) {
      out.AppendPart(*text, offsets[i], offsets[i + 1]);
    } else {
      items.push_back(sequence->items[i]);
    }
    if (step > 0 ? step >= stop - i : step <= stop - i) break;  // before it could overflow
    i += step;
  }
  if (text != nullptr) return MakeString(std::move(out));
  return Value::List(std::move(items), sequence->kind);
}

}  // namespace tessera::jinja
