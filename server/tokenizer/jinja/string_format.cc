// Python's two ways to format a string: format % arguments and format.format(...).
#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/format.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

constexpr int kMaxWidth = 1000;

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
    TESSERA_ASSIGN_OR_RETURN(const Text converted, Convert(c, *argument));
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
