// Filters on strings and numbers, and what they share with the methods of str.
#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/format.h"
#include "server/tokenizer/status_macros.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxPadding = 10'000;

template <typename F>
Text MapCharacters(const Text& text, F f) {
  Text out;
  text.ForEachRun([&](absl::string_view run, bool untrusted) {
    std::string mapped;
    for (size_t pos = 0; pos < run.size();) f(unicode::DecodeAt(run, &pos), &mapped);
    out.Append(mapped, untrusted);
  });
  return out;
}

// A sigma at the end of a word has a lower case of its own.
void LowerInto(const Text& text, size_t begin, Text* out) {
  const absl::string_view all = text.view();
  size_t pos = begin, plain = begin;
  const auto flush = [&](size_t end) {
    out->Append(MapCharacters(text.Substr(plain, end), unicode::AppendLower));
    plain = end;
  };
  while (pos < all.size()) {
    const size_t start = pos;
    if (unicode::DecodeAt(all, &pos) != 0x3A3) continue;
    size_t before = start == 0 ? 0 : unicode::PreviousStart(all, start), after = pos;
    const bool letter_before = start > 0 && IsCased(unicode::DecodeAt(all, &before));
    const bool letter_after = pos < all.size() && IsCased(unicode::DecodeAt(all, &after));
    if (!letter_before || letter_after) continue;
    flush(start);
    const bool untrusted = !text.Substr(start, pos).untrusted().empty();
    out->Append("\xCF\x82", untrusted);
    plain = pos;
  }
  flush(all.size());
}

absl::StatusOr<Value> UpperFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_RETURN_IF_ERROR(Bind("upper", a, {}).status());
  TOKENIZER_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  return in->MakeString(Upper(text));
}

absl::StatusOr<Value> LowerFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_RETURN_IF_ERROR(Bind("lower", a, {}).status());
  TOKENIZER_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  return in->MakeString(Lower(text));
}

absl::StatusOr<Value> CapitalizeFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_RETURN_IF_ERROR(Bind("capitalize", a, {}).status());
  TOKENIZER_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  return in->MakeString(Capitalize(text));
}

// Jinja's, which is not str.title: words begin behind blanks, hyphens and opening brackets.
absl::StatusOr<Value> TitleFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_RETURN_IF_ERROR(Bind("title", a, {}).status());
  TOKENIZER_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  Text out;
  const absl::string_view all = text.view();
  const auto separates = [](char32_t c) {
    return IsPythonSpace(c) || (c < 0x80 && absl::StrContains("-({[<", static_cast<char>(c)));
  };
  for (size_t pos = 0; pos < all.size();) {
    size_t end = pos;
    const bool separator = separates(unicode::DecodeAt(all, &end));
    while (end < all.size()) {
      size_t next = end;
      if (separates(unicode::DecodeAt(all, &next)) != separator) break;
      end = next;
    }
    const size_t first_end = pos + unicode::SequenceLength(all[pos]);
    out.Append(Upper(text.Substr(pos, first_end)));
    out.Append(Lower(text.Substr(first_end, end)));
    pos = end;
  }
  return in->MakeString(std::move(out));
}

absl::StatusOr<Value> TrimFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_ASSIGN_OR_RETURN(const auto args, Bind("trim", a, {"chars"}));
  TOKENIZER_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  std::optional<std::string> characters;
  if (args[0] && !args[0]->is_none()) {
    TOKENIZER_ASSIGN_OR_RETURN(const Text given, ExpectString(*args[0], "chars"));
    characters = given.bytes();
  }
  return in->MakeString(Strip(text, characters, true, true));
}

absl::StatusOr<Value> ReplaceFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_ASSIGN_OR_RETURN(const auto args, Bind("replace", a, {"old", "new", "count"}));
  if (!args[0] || !args[1]) return TemplateError("replace takes what to replace and what with");
  TOKENIZER_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  TOKENIZER_ASSIGN_OR_RETURN(const Text from, ToString(in, *args[0]));
  TOKENIZER_ASSIGN_OR_RETURN(const Text to, ToString(in, *args[1]));
  int64_t count = -1;
  if (args[2] && !args[2]->is_none()) {
    TOKENIZER_ASSIGN_OR_RETURN(count, ToInteger(*args[2], "count"));
  }
  return Replace(in, text, from, to, count);
}

absl::StatusOr<Value> StringFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_RETURN_IF_ERROR(Bind("string", a, {}).status());
  TOKENIZER_ASSIGN_OR_RETURN(Text text, ToString(in, v));
  return in->MakeString(std::move(text));
}

absl::StatusOr<Value> EscapeFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_RETURN_IF_ERROR(Bind("escape", a, {}).status());
  TOKENIZER_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  return in->MakeString(MapCharacters(text, [](char32_t c, std::string* out) {
    switch (c) {
      case '&':
        *out += "&amp;";
        break;
      case '<':
        *out += "&lt;";
        break;
      case '>':
        *out += "&gt;";
        break;
      case '\'':
        *out += "&#39;";
        break;
      case '"':
        *out += "&#34;";
        break;
      default:
        unicode::AppendUtf8(c, out);
    }
  }));
}

absl::StatusOr<Value> IndentFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_ASSIGN_OR_RETURN(const auto args, Bind("indent", a, {"width", "first", "blank"}));
  TOKENIZER_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  Text indention("    ", false);
  if (args[0] && args[0]->is_string()) {
    indention = *args[0]->text();
  } else if (args[0]) {
    TOKENIZER_ASSIGN_OR_RETURN(const int64_t width, ToInteger(*args[0], "width"));
    if (width > kMaxPadding) return TemplateError("the indentation is too wide");
    indention = Text(std::string(std::max<int64_t>(width, 0), ' '), false);
  }
  const bool first = args[1] && args[1]->Truthy(), blank = args[2] && args[2]->Truthy();
  // With one more newline, an end of line at the very end is kept.
  Text closed = text;
  closed.Append("\n");
  const std::vector<Text> lines = SplitLines(closed, /*keep_ends=*/false);
  TOKENIZER_RETURN_IF_ERROR(in->ChargeBytes(text.size() + lines.size() * indention.size()));
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.Append("\n");
    // Other lines than the first are indented unless they are empty.
    if (i == 0 ? first : (blank || !lines[i].empty())) out.Append(indention);
    out.Append(lines[i]);
  }
  return in->MakeString(std::move(out));
}

absl::StatusOr<Value> CenterFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_ASSIGN_OR_RETURN(const auto args, Bind("center", a, {"width"}));
  TOKENIZER_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  int64_t width = 80;
  if (args[0]) {
    TOKENIZER_ASSIGN_OR_RETURN(width, ToInteger(*args[0], "width"));
  }
  if (width > kMaxPadding) return TemplateError("the width is too large");
  const int64_t missing = width - static_cast<int64_t>(unicode::CountCodePoints(text.view()));
  if (missing <= 0) return Value::Str(text);
  // As CPython divides an odd rest.
  const int64_t left = missing / 2 + (missing & width & 1);
  Text out(std::string(left, ' '), false);
  out.Append(text);
  out.Append(std::string(missing - left, ' '));
  return in->MakeString(std::move(out));
}

absl::StatusOr<Value> FormatFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  if (!a.named.empty() && !a.positional.empty())
    return TemplateError("can't handle positional and keyword arguments at the same time");
  Value arguments;
  if (!a.named.empty()) {
    Dict dict;
    for (const auto& [name, value] : a.named) dict.Set(Value::Str(name), value);
    TOKENIZER_ASSIGN_OR_RETURN(arguments, Value::FromDict(std::move(dict)));
  } else {
    TOKENIZER_ASSIGN_OR_RETURN(arguments, Value::List(a.positional, Sequence::Kind::kTuple));
  }
  TOKENIZER_ASSIGN_OR_RETURN(Text out, PercentFormat(text, arguments));
  return in->MakeString(std::move(out));
}

absl::StatusOr<Value> WordCountFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_RETURN_IF_ERROR(Bind("wordcount", a, {}).status());
  TOKENIZER_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  int64_t count = 0;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = unicode::DecodeAt(text.view(), &pos);
    const bool word =
        c >= 0x80 ? !unicode::IsWhitespace(c) : absl::ascii_isalnum(static_cast<uint8_t>(c)) || c == '_';
    count += word && !inside;
    inside = word;
  }
  return Value::Int(count);
}

absl::StatusOr<Value> ToJsonFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_ASSIGN_OR_RETURN(const auto args,
                             Bind("tojson", a, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = args[0] && args[0]->Truthy();
  style.sort_keys = args[3] && args[3]->Truthy();
  if (args[1] && args[1]->is_string()) {
    style.indent = args[1]->text()->bytes();
  } else if (args[1] && !args[1]->is_none()) {
    TOKENIZER_ASSIGN_OR_RETURN(const int64_t width, ToInteger(*args[1], "indent"));
    if (width > 100) return TemplateError("the indentation is too wide");
    style.indent = std::string(std::max<int64_t>(width, 0), ' ');
  }
  if (style.indent) style.item_separator.assign(1, ',');
  if (args[2] && !args[2]->is_none()) {
    const Sequence* pair = args[2]->sequence();
    if (pair == nullptr || pair->items.size() != 2)
      return TemplateError("separators must be a pair of strings");
    TOKENIZER_ASSIGN_OR_RETURN(const Text item, ExpectString(pair->items[0], "separators"));
    TOKENIZER_ASSIGN_OR_RETURN(const Text key, ExpectString(pair->items[1], "separators"));
    style.item_separator = item.bytes();
    style.key_separator = key.bytes();
  }
  TOKENIZER_ASSIGN_OR_RETURN(Text out, ToJson(v, style));
  return in->MakeString(std::move(out));
}

// The number at the start of a trimmed string, as int() and float() read it.
bool ParseDouble(absl::string_view text, double* out) {
  return absl::SimpleAtod(absl::StripAsciiWhitespace(text), out);
}

absl::StatusOr<Value> IntFilter(Interpreter*, const Value& v, const Arguments& a) {
  TOKENIZER_ASSIGN_OR_RETURN(const auto args, Bind("int", a, {"default", "base"}));
  if (v.is_undefined()) return v.UndefinedError();
  const Value absent = args[0].value_or(Value::Int(0));
  int64_t base = 10;
  if (args[1]) {
    TOKENIZER_ASSIGN_OR_RETURN(base, ToInteger(*args[1], "base"));
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
  TOKENIZER_ASSIGN_OR_RETURN(const auto args, Bind("float", a, {"default"}));
  if (v.is_undefined()) return v.UndefinedError();
  double d = 0;
  if (v.is_number()) return Value::Float(v.AsDouble());
  if (v.is_string() && ParseDouble(v.text()->view(), &d)) return Value::Float(d);
  return args[0].value_or(Value::Float(0));
}

absl::StatusOr<Value> AbsFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TOKENIZER_RETURN_IF_ERROR(Bind("abs", a, {}).status());
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
  TOKENIZER_ASSIGN_OR_RETURN(const auto args, Bind("round", a, {"precision", "method"}));
  if (v.is_undefined()) return v.UndefinedError();
  if (!v.is_number()) return TemplateError(absl::StrCat("type ", v.type_name(), " cannot be rounded"));
  int64_t precision = 0;
  if (args[0]) {
    TOKENIZER_ASSIGN_OR_RETURN(precision, ToInteger(*args[0], "precision"));
  }
  std::string method = "common";
  if (args[1]) {
    TOKENIZER_ASSIGN_OR_RETURN(const Text given, ExpectString(*args[1], "method"));
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

absl::StatusOr<std::vector<std::optional<Value>>> Bind(absl::string_view function, const Arguments& arguments,
                                                       std::initializer_list<const char*> parameters) {
  std::vector<std::optional<Value>> out(parameters.size());
  if (arguments.positional.size() > parameters.size()) {
    return TemplateError(absl::StrCat(function, "() takes at most ", parameters.size(), " arguments, ",
                                      arguments.positional.size(), " were given"));
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), out.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto it = std::find(parameters.begin(), parameters.end(), name);
    if (it == parameters.end()) {
      return TemplateError(absl::StrCat(function, "() got an unexpected keyword argument '", name, "'"));
    }
    std::optional<Value>& slot = out[it - parameters.begin()];
    if (slot)
      return TemplateError(absl::StrCat(function, "() got multiple values for argument '", name, "'"));
    slot = value;
  }
  return out;
}

absl::StatusOr<int64_t> ToInteger(const Value& value, absl::string_view what) {
  if (value.is_undefined()) return value.UndefinedError();
  if (!value.is_integral())
    return TemplateError(absl::StrCat(what, " must be an integer, not ", value.type_name()));
  return value.AsInt();
}

absl::StatusOr<Text> ToString(Interpreter* in, const Value& value) {
  Text text = ToText(value);
  TOKENIZER_RETURN_IF_ERROR(in->ChargeSteps(text.size() / 16));
  return text;
}

absl::StatusOr<Text> ExpectString(const Value& value, absl::string_view what) {
  if (value.is_undefined()) return value.UndefinedError();
  if (!value.is_string()) return TemplateError(absl::StrCat(what, " must be str, not ", value.type_name()));
  return *value.text();
}

Text Strip(const Text& text, const std::optional<std::string>& characters, bool left, bool right) {
  const absl::string_view all = text.view();
  const auto drops = [&](size_t begin, size_t end) {
    if (characters) return absl::StrContains(*characters, all.substr(begin, end - begin));
    size_t pos = begin;
    return IsPythonSpace(unicode::DecodeAt(all, &pos));
  };
  size_t begin = 0, end = all.size();
  while (left && begin < end) {
    const size_t next = begin + unicode::SequenceLength(all[begin]);
    if (!drops(begin, next)) break;
    begin = next;
  }
  while (right && end > begin) {
    const size_t start = unicode::PreviousStart(all, end);
    if (!drops(start, end)) break;
    end = start;
  }
  return text.Substr(begin, end);
}

bool IsPythonSpace(char32_t c) { return unicode::IsWhitespace(c) || (c >= 0x1C && c <= 0x1F); }

bool IsCased(char32_t c) {
  std::string upper, lower, self;
  unicode::AppendUpper(c, &upper);
  unicode::AppendLower(c, &lower);
  unicode::AppendUtf8(c, &self);
  return upper != self || lower != self;
}

std::vector<Text> SplitLines(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = unicode::DecodeAt(text.view(), &pos);
    const bool ends =
        (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && pos < text.size() && text.bytes()[pos] == '\n') ++pos;
    lines.push_back(text.Substr(begin, keep_ends ? pos : start));
    begin = pos;
  }
  if (begin < text.size()) lines.push_back(text.Substr(begin, text.size()));
  return lines;
}

absl::StatusOr<Value> Replace(Interpreter* in, const Text& text, const Text& from, const Text& to,
                              int64_t count) {
  std::vector<size_t> found;
  const auto room = [&] { return count < 0 || static_cast<int64_t>(found.size()) < count; };
  if (from.empty()) {
    // Between all characters and at both ends.
    for (size_t pos = 0; room() && pos <= text.size();) {
      found.push_back(pos);
      pos += pos < text.size() ? unicode::SequenceLength(text.bytes()[pos]) : 1;
    }
  } else {
    for (size_t pos = text.bytes().find(from.bytes()); room() && pos != std::string::npos;
         pos = text.bytes().find(from.bytes(), pos + from.size())) {
      found.push_back(pos);
    }
  }
  TOKENIZER_RETURN_IF_ERROR(in->ChargeSteps(found.size()));
  TOKENIZER_RETURN_IF_ERROR(in->ChargeBytes(text.size() + found.size() * to.size()));
  Text out;
  size_t done = 0;
  for (const size_t at : found) {
    out.AppendPart(text, done, at);
    out.Append(to);
    done = at + from.size();
  }
  out.AppendPart(text, done, text.size());
  return Value::Str(std::move(out));
}

Text Upper(const Text& text) { return MapCharacters(text, unicode::AppendUpper); }

Text Lower(const Text& text) {
  Text out;
  LowerInto(text, 0, &out);
  return out;
}

Text Capitalize(const Text& text) {
  if (text.empty()) return text;
  const size_t first = unicode::SequenceLength(text.bytes()[0]);
  Text out = MapCharacters(text.Substr(0, first), unicode::AppendTitle);
  LowerInto(text, first, &out);
  return out;
}

void AddStringFilters(FilterTable* table) {
  const std::pair<const char*, FilterFunction> filters[] = {
      {"abs", AbsFilter},
      {"capitalize", CapitalizeFilter},
      {"center", CenterFilter},
      {"e", EscapeFilter},
      {"escape", EscapeFilter},
      {"float", FloatFilter},
      {"forceescape", EscapeFilter},
      {"format", FormatFilter},
      {"indent", IndentFilter},
      {"int", IntFilter},
      {"lower", LowerFilter},
      {"replace", ReplaceFilter},
      {"round", RoundFilter},
      {"safe", StringFilter},
      {"string", StringFilter},
      {"title", TitleFilter},
      {"tojson", ToJsonFilter},
      {"trim", TrimFilter},
      {"upper", UpperFilter},
      {"wordcount", WordCountFilter},
  };
  for (const auto& [name, filter] : filters) table->emplace(name, filter);
}

}  // namespace tessera::jinja
