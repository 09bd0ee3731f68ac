#include "server/tokenizer/jinja/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/tokenizer/regex.h"
#include "server/tokenizer/status_macros.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

constexpr int kMaxWidth = 1000;

bool IsPrintable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  // Other and separators, as Python's isprintable has it.
  static const Regex* const kUnprintable = new Regex(*Regex::Compile(R"([\p{C}\p{Z}])"));
  std::string character;
  unicode::AppendUtf8(c, &character);
  bool found = false;
  return kUnprintable->FindAll(character, [&](ByteRange) { found = true; }).ok() && !found;
}

// Writes each character of `text` through `escape(c, out)`, trust kept.
template <typename F>
void AppendEscaped(const Text& text, F escape, Text* out) {
  text.ForEachRun([&](absl::string_view run, bool untrusted) {
    std::string escaped;
    for (size_t pos = 0; pos < run.size();) escape(unicode::DecodeAt(run, &pos), &escaped);
    out->Append(escaped, untrusted);
  });
}

Text ReprString(const Text& text) {
  const bool single = text.bytes().find('\'') != std::string::npos;
  const bool twice = text.bytes().find('"') != std::string::npos;
  const char quote = single && !twice ? '"' : '\'';
  Text out;
  out.Append(absl::string_view(&quote, 1));
  AppendEscaped(
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

void JsonString(const Text& text, bool ensure_ascii, Text* out) {
  out->Append("\"");
  AppendEscaped(
      text,
      [ensure_ascii](char32_t c, std::string* to) {
        const auto hex = [to](uint32_t unit) {
          absl::StrAppend(to, "\\u", absl::Hex(unit, absl::kZeroPad4));
        };
        static constexpr absl::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
        if (const size_t k = c < 0x80 ? kFrom.find(static_cast<char>(c)) : absl::string_view::npos;
            k != absl::string_view::npos) {
          to->push_back('\\');
          to->push_back(kTo[k]);
        } else if (c < 0x20 || (ensure_ascii && c > 0x7E && c < 0x10000)) {
          hex(c);
        } else if (ensure_ascii && c >= 0x10000) {
          hex(0xD800 + ((c - 0x10000) >> 10));
          hex(0xDC00 + ((c - 0x10000) & 0x3FF));
        } else {
          unicode::AppendUtf8(c, to);
        }
      },
      out);
  out->Append("\"");
}

std::string JsonNumber(const Value& value) {
  if (value.is_bool()) return value.AsInt() != 0 ? "true" : "false";
  if (value.is_int()) return absl::StrCat(value.AsInt());
  const double d = value.AsDouble();
  if (std::isnan(d)) return "NaN";
  if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
  return FormatFloat(d);
}

absl::Status JsonValue(const Value& value, const JsonStyle& style, int level, Text* out) {
  if (!VisitBudget::Spend()) return absl::ResourceExhaustedError("the template prints too many nested values");
  if (value.is_none()) {
    out->Append("null");
    return absl::OkStatus();
  }
  if (value.is_number()) {
    out->Append(JsonNumber(value));
    return absl::OkStatus();
  }
  if (const Text* text = value.text()) {
    JsonString(*text, style.ensure_ascii, out);
    return absl::OkStatus();
  }
  const auto new_line = [&](int depth) {
    if (!style.indent) return;
    out->Append("\n");
    for (int i = 0; i < depth; ++i) out->Append(*style.indent);
  };
  if (const Sequence* s = value.sequence(); s != nullptr && s->kind <= Sequence::Kind::kTuple) {
    if (s->items.empty()) {
      out->Append("[]");
      return absl::OkStatus();
    }
    out->Append("[");
    for (size_t i = 0; i < s->items.size(); ++i) {
      if (i > 0) out->Append(style.item_separator);
      new_line(level + 1);
      TOKENIZER_RETURN_IF_ERROR(JsonValue(s->items[i], style, level + 1, out));
    }
    new_line(level);
    out->Append("]");
    return absl::OkStatus();
  }
  if (const Dict* d = value.dict()) {
    if (d->size() == 0) {
      out->Append("{}");
      return absl::OkStatus();
    }
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& e : d->entries()) entries.push_back(&e);
    if (style.sort_keys) {
      absl::Status failed;
      std::stable_sort(entries.begin(), entries.end(), [&](const Dict::Entry* a, const Dict::Entry* b) {
        const absl::StatusOr<bool> less = Less(a->key, b->key);
        if (!less.ok()) failed = less.status();
        return less.ok() && *less;
      });
      TOKENIZER_RETURN_IF_ERROR(failed);
    }
    out->Append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out->Append(style.item_separator);
      new_line(level + 1);
      const Value& key = entries[i]->key;
      if (key.is_string()) {
        JsonString(*key.text(), style.ensure_ascii, out);
      } else if (key.is_number() || key.is_none()) {
        out->Append(absl::StrCat("\"", key.is_none() ? "null" : JsonNumber(key), "\""));
      } else {
        return TemplateError(
            absl::StrCat("keys must be str, int, float, bool or None, not ", key.type_name()));
      }
      out->Append(style.key_separator);
      TOKENIZER_RETURN_IF_ERROR(JsonValue(entries[i]->value, style, level + 1, out));
    }
    new_line(level);
    out->Append("}");
    return absl::OkStatus();
  }
  return TemplateError(absl::StrCat("Object of type ", value.type_name(), " is not JSON serializable"));
}

// One conversion of a %-format: %[flags][width][.precision]letter
struct Conversion {
  bool left = false, zero = false, plus = false, space = false, alternate = false;
  int width = 0;
  int precision = -1;
  char letter = 0;
};

absl::StatusOr<Text> Convert(const Conversion& c, const Value& value) {
  Text out;
  std::string number;
  switch (c.letter) {
    case 's':
    case 'r':
    case 'a': {
      Text text = c.letter == 's' ? ToText(value) : Repr(value);
      if (c.precision >= 0) {
        size_t end = 0;
        for (int i = 0; i < c.precision && end < text.size(); ++i)
          end += unicode::SequenceLength(text.bytes()[end]);
        text = text.Substr(0, end);
      }
      out = std::move(text);
      break;
    }
    case 'c':
      if (value.is_integral()) {
        const int64_t point = value.AsInt();
        if (point < 0 || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
          return TemplateError("%c arg not in range");
        unicode::AppendUtf8(static_cast<char32_t>(point), &number);
        out.Append(number);
      } else if (value.is_string() && unicode::CountCodePoints(value.text()->view()) == 1) {
        out = *value.text();
      } else {
        return TemplateError("%c requires int or char");
      }
      break;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      const bool decimal = c.letter == 'd' || c.letter == 'i' || c.letter == 'u';
      if (!value.is_number() || (!decimal && !value.is_integral())) {
        return TemplateError(absl::StrCat("%", absl::string_view(&c.letter, 1),
                                          " format: a number is required, not ", value.type_name()));
      }
      if (value.is_float() && !(std::abs(value.AsDouble()) < 9e18))
        return TemplateError("the number is too large");
      const int64_t i = value.is_float() ? static_cast<int64_t>(value.AsDouble()) : value.AsInt();
      const uint64_t magnitude = i < 0 ? 0 - static_cast<uint64_t>(i) : static_cast<uint64_t>(i);
      char digits[32];
      const int base = decimal ? 10 : c.letter == 'o' ? 8 : 16;
      number.assign(digits, std::to_chars(digits, digits + sizeof(digits), magnitude, base).ptr);
      if (c.letter == 'X') absl::AsciiStrToUpper(&number);
      if (static_cast<int>(number.size()) < c.precision) number.insert(0, c.precision - number.size(), '0');
      std::string sign = i < 0 ? "-" : c.plus ? "+" : c.space ? " " : "";
      if (c.alternate && !decimal) absl::StrAppend(&sign, "0", absl::string_view(&c.letter, 1));
      if (c.zero && !c.left && static_cast<int>(sign.size() + number.size()) < c.width) {
        number.insert(0, c.width - sign.size() - number.size(), '0');
      }
      out.Append(sign);
      out.Append(number);
      break;
    }
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G': {
      if (!value.is_number())
        return TemplateError(absl::StrCat("must be real number, not ", value.type_name()));
      const double d = value.AsDouble();
      const int precision = c.precision < 0 ? 6 : c.precision;
      const double magnitude = std::abs(d);
      switch (c.letter) {
        case 'f':
        case 'F':
          number = absl::StrFormat("%.*f", precision, magnitude);
          break;
        case 'e':
          number = absl::StrFormat("%.*e", precision, magnitude);
          break;
        case 'E':
          number = absl::StrFormat("%.*E", precision, magnitude);
          break;
        case 'g':
          number = absl::StrFormat("%.*g", precision, magnitude);
          break;
        default:
          number = absl::StrFormat("%.*G", precision, magnitude);
      }
      const std::string sign = std::signbit(d) ? "-" : c.plus ? "+" : c.space ? " " : "";
      if (c.zero && !c.left && static_cast<int>(sign.size() + number.size()) < c.width) {
        number.insert(0, c.width - sign.size() - number.size(), '0');
      }
      out.Append(sign);
      out.Append(number);
      break;
    }
    default:
      return TemplateError(
          absl::StrCat("unsupported format character '", absl::string_view(&c.letter, 1), "'"));
  }
  const int missing = c.width - static_cast<int>(unicode::CountCodePoints(out.view()));
  if (missing <= 0) return out;
  const std::string pad(missing, ' ');
  if (c.left) {
    out.Append(pad);
    return out;
  }
  Text padded(pad, false);
  padded.Append(out);
  return padded;
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

absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style) {
  Text out;
  TOKENIZER_RETURN_IF_ERROR(JsonValue(value, style, 0, &out));
  return out;
}

absl::StatusOr<Text> PercentFormat(const Text& format, const Value& arguments) {
  const Sequence* tuple = arguments.sequence();
  if (tuple != nullptr && tuple->kind != Sequence::Kind::kTuple) tuple = nullptr;
  size_t used = 0;
  Text out;
  const std::string& f = format.bytes();
  for (size_t pos = 0; pos < f.size();) {
    const size_t percent = std::min(f.find('%', pos), f.size());
    out.AppendPart(format, pos, percent);
    if (percent == f.size()) break;
    pos = percent + 1;
    if (pos < f.size() && f[pos] == '%') {
      out.Append("%");
      ++pos;
      continue;
    }
    const Value* argument = nullptr;
    if (pos < f.size() && f[pos] == '(') {
      const size_t close = f.find(')', pos);
      if (close == std::string::npos) return TemplateError("incomplete format key");
      if (arguments.dict() == nullptr) return TemplateError("format requires a mapping");
      const std::string key = f.substr(pos + 1, close - pos - 1);
      argument = arguments.dict()->Find(key);
      if (argument == nullptr) return TemplateError(absl::StrCat("KeyError: '", key, "'"));
      pos = close + 1;
    }
    Conversion c;
    for (; pos < f.size() && absl::string_view("-+ 0#").find(f[pos]) != absl::string_view::npos; ++pos) {
      if (f[pos] == '-') c.left = true;
      if (f[pos] == '+') c.plus = true;
      if (f[pos] == ' ') c.space = true;
      if (f[pos] == '0') c.zero = true;
      if (f[pos] == '#') c.alternate = true;
    }
    const auto number = [&] {
      int n = 0;
      for (; pos < f.size() && absl::ascii_isdigit(f[pos]); ++pos)
        n = std::min(n * 10 + (f[pos] - '0'), kMaxWidth + 1);
      return n;
    };
    c.width = number();
    if (pos < f.size() && f[pos] == '.') {
      ++pos;
      c.precision = number();
    }
    if (c.width > kMaxWidth || c.precision > kMaxWidth)
      return TemplateError("a format asks for too much room");
    if (pos >= f.size()) return TemplateError("incomplete format");
    c.letter = f[pos++];
    if (argument == nullptr) {
      const size_t available = tuple != nullptr ? tuple->items.size() : 1;
      if (used >= available) return TemplateError("not enough arguments for format string");
      argument = tuple != nullptr ? &tuple->items[used] : &arguments;
      ++used;
    }
    TOKENIZER_ASSIGN_OR_RETURN(const Text converted, Convert(c, *argument));
    out.Append(converted);
  }
  const size_t available = tuple != nullptr ? tuple->items.size() : arguments.dict() != nullptr ? 0 : 1;
  if (used < available) return TemplateError("not all arguments converted during string formatting");
  return out;
}

absl::StatusOr<Text> BraceFormat(const Text& format, const Arguments& arguments) {
  Text out;
  size_t automatic = 0;
  const std::string& f = format.bytes();
  for (size_t pos = 0; pos < f.size();) {
    const size_t brace = std::min(f.find_first_of("{}", pos), f.size());
    out.AppendPart(format, pos, brace);
    if (brace == f.size()) break;
    pos = brace + 1;
    if (pos < f.size() && f[pos] == f[brace]) {
      out.AppendPart(format, pos, pos + 1);
      ++pos;
      continue;
    }
    const size_t close = f.find('}', pos);
    if (f[brace] == '}' || close == std::string::npos)
      return TemplateError("Single '}' or '{' encountered in format string");
    const std::string field = f.substr(pos, close - pos);
    pos = close + 1;
    const Value* argument = nullptr;
    size_t index = 0;
    if (field.empty() || absl::SimpleAtoi(field, &index)) {
      if (field.empty()) index = automatic++;
      if (index < arguments.positional.size()) argument = &arguments.positional[index];
    } else {
      if (field.find_first_of(".[:!") != std::string::npos) {
        return TemplateError(absl::StrCat("the format field '{", field, "}' is not supported"));
      }
      for (const auto& [name, value] : arguments.named) {
        if (name == field) argument = &value;
      }
    }
    if (argument == nullptr)
      return TemplateError(absl::StrCat("no argument for the format field '{", field, "}'"));
    out.Append(ToText(*argument));
  }
  return out;
}

}  // namespace tessera::jinja
