#include "server/tokenizer/jinja/format.h"

#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/tokenizer/jinja/characters.h"
#include "server/tokenizer/regex.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

bool IsPrintable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  // Other and separators, as Python's isprintable has it.
  static const Regex* const kUnprintable = new Regex(*Regex::Compile(R"([\p{C}\p{Z}])"));
  std::string character;
  unicode::AppendUtf8(c, &character);
  return !kUnprintable->Matches(character);
}

Text ReprString(const Text& text) {
  const bool single = text.bytes().find('\'') != std::string::npos;
  const bool twice = text.bytes().find('"') != std::string::npos;
  const char quote = single && !twice ? '"' : '\'';
  Text out;
  out.Append(absl::string_view(&quote, 1));
  AppendMapped(
      text,
      [quote](char32_t c, std::string* to) {
        if (c == static_cast<char32_t>(quote) || c == '\\') {
          to->push_back('\\');
          to->push_back(static_cast<char>(c));
        } else if (c == '\n') {
          *to += "\\n";
        } else if (c == '\r') {
          *to += "\\r";
        } else if (c == '\t') {
          *to += "\\t";
        } else if (IsPrintable(c)) {
          unicode::AppendUtf8(c, to);
        } else if (c < 0x100) {
          absl::StrAppend(to, "\\x", absl::Hex(static_cast<uint32_t>(c), absl::kZeroPad2));
        } else if (c < 0x10000) {
          absl::StrAppend(to, "\\u", absl::Hex(static_cast<uint32_t>(c), absl::kZeroPad4));
        } else {
          absl::StrAppend(to, "\\U", absl::Hex(static_cast<uint32_t>(c), absl::kZeroPad8));
        }
      },
      &out);
  out.Append(absl::string_view(&quote, 1));
  return out;
}

}  // namespace

std::string FormatFloat(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), d, std::chars_format::scientific).ptr;
  const absl::string_view text(buffer, end - buffer);  // [-]d[.ddd]e[+-]dd
  const bool negative = text[0] == '-';
  const size_t e = text.find('e');
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (absl::ascii_isdigit(c)) digits += c;
  }
  int exponent = 0;
  (void)absl::SimpleAtoi(text.substr(e + 1), &exponent);
  std::string out = negative ? "-" : "";
  const int n = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    absl::StrAppend(&out, digits.substr(0, 1), n > 1 ? "." : "", digits.substr(1), "e",
                    exponent < 0 ? "-" : "+", std::abs(exponent) < 10 ? "0" : "", std::abs(exponent));
  } else if (exponent < 0) {
    absl::StrAppend(&out, "0.", std::string(-exponent - 1, '0'), digits);
  } else if (n <= exponent + 1) {
    absl::StrAppend(&out, digits, std::string(exponent + 1 - n, '0'), ".0");
  } else {
    absl::StrAppend(&out, digits.substr(0, exponent + 1), ".", digits.substr(exponent + 1));
  }
  return out;
}

Text ToText(const Value& value) {
  if (const Text* text = value.text()) return *text;
  if (value.is_undefined()) return Text();
  return Repr(value);
}

Text Repr(const Value& value) {
  if (!VisitBudget::Spend()) return Text();
  if (value.is_undefined()) return Text("Undefined", false);
  if (value.is_none()) return Text("None", false);
  if (value.is_bool()) return Text(value.AsInt() != 0 ? "True" : "False", false);
  if (value.is_int()) return Text(absl::StrCat(value.AsInt()), false);
  if (value.is_float()) return Text(FormatFloat(value.AsDouble()), false);
  if (const Text* text = value.text()) return ReprString(*text);
  Text out;
  if (const Sequence* s = value.sequence()) {
    if (s->kind == Sequence::Kind::kGenerator) return Text("<generator object>", false);
    const bool tuple = s->kind == Sequence::Kind::kTuple, view = s->kind == Sequence::Kind::kView;
    out.Append(tuple ? "(" : view ? "dict_items([" : "[");
    for (size_t i = 0; i < s->items.size(); ++i) {
      if (i > 0) out.Append(", ");
      out.Append(Repr(s->items[i]));
    }
    out.Append(tuple && s->items.size() == 1 ? ",)" : tuple ? ")" : view ? "])" : "]");
    return out;
  }
  const Dict* dict = value.dict();
  if (value.ns() != nullptr) {
    out.Append("<Namespace ");
    dict = &value.ns()->attributes;
  }
  if (dict != nullptr) {
    out.Append("{");
    for (const Dict::Entry& e : dict->entries()) {
      if (&e != &dict->entries().front()) out.Append(", ");
      out.Append(Repr(e.key));
      out.Append(": ");
      // A namespace may hold itself.
      out.Append(e.value.ns() != nullptr ? Text("<Namespace>", false) : Repr(e.value));
    }
    out.Append(value.ns() != nullptr ? "}>" : "}");
    return out;
  }
  if (const Callable* c = value.callable()) return Text(absl::StrCat("<function ", c->name, ">"), false);
  return Text("<LoopContext>", false);
}

}  // namespace tessera::jinja
