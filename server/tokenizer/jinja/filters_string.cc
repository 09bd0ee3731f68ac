// Filters on strings.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/characters.h"
#include "server/tokenizer/jinja/format.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxPadding = 10'000;

absl::StatusOr<Value> UpperFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("upper", a, {}).status());
  TESSERA_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  return in->MakeString(Upper(text));
}

absl::StatusOr<Value> LowerFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("lower", a, {}).status());
  TESSERA_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  return in->MakeString(Lower(text));
}

absl::StatusOr<Value> CapitalizeFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("capitalize", a, {}).status());
  TESSERA_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  return in->MakeString(Capitalize(text));
}

// Jinja's, which is not str.title: words begin behind blanks, hyphens and opening brackets.
absl::StatusOr<Value> TitleFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("title", a, {}).status());
  TESSERA_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
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
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("trim", a, {"chars"}));
  TESSERA_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  std::optional<std::string> characters;
  if (args[0] && !args[0]->is_none()) {
    TESSERA_ASSIGN_OR_RETURN(const Text given, ExpectString(*args[0], "chars"));
    characters = given.bytes();
  }
  return in->MakeString(Strip(text, characters, true, true));
}

absl::StatusOr<Value> ReplaceFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("replace", a, {"old", "new", "count"}));
  if (!args[0] || !args[1]) return TemplateError("replace takes what to replace and what with");
  TESSERA_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  TESSERA_ASSIGN_OR_RETURN(const Text from, ToString(in, *args[0]));
  TESSERA_ASSIGN_OR_RETURN(const Text to, ToString(in, *args[1]));
  int64_t count = -1;
  if (args[2] && !args[2]->is_none()) {
    TESSERA_ASSIGN_OR_RETURN(count, ToInteger(*args[2], "count"));
  }
  return Replace(in, text, from, to, count);
}

absl::StatusOr<Value> StringFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("string", a, {}).status());
  TESSERA_ASSIGN_OR_RETURN(Text text, ToString(in, v));
  return in->MakeString(std::move(text));
}

absl::StatusOr<Value> EscapeFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("escape", a, {}).status());
  TESSERA_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  Text escaped;
  AppendMapped(
      text,
      [](char32_t c, std::string* out) {
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
      },
      &escaped);
  return in->MakeString(std::move(escaped));
}

absl::StatusOr<Value> IndentFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("indent", a, {"width", "first", "blank"}));
  TESSERA_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  Text indention("    ", false);
  if (args[0] && args[0]->is_string()) {
    indention = *args[0]->text();
  } else if (args[0]) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t width, ToInteger(*args[0], "width"));
    if (width > kMaxPadding) return TemplateError("the indentation is too wide");
    indention = Text(std::string(std::max<int64_t>(width, 0), ' '), false);
  }
  const bool first = args[1] && args[1]->Truthy(), blank = args[2] && args[2]->Truthy();
  // With one more newline, an end of line at the very end is kept.
  Text closed = text;
  closed.Append("\n");
  const std::vector<Text> lines = SplitLines(closed, /*keep_ends=*/false);
  TESSERA_RETURN_IF_ERROR(in->ChargeBytes(text.size() + lines.size() * indention.size()));
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
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("center", a, {"width"}));
  TESSERA_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  int64_t width = 80;
  if (args[0]) {
    TESSERA_ASSIGN_OR_RETURN(width, ToInteger(*args[0], "width"));
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
  TESSERA_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
  if (!a.named.empty() && !a.positional.empty())
    return TemplateError("can't handle positional and keyword arguments at the same time");
  Value arguments;
  if (!a.named.empty()) {
    Dict dict;
    for (const auto& [name, value] : a.named) dict.Set(Value::Str(name), value);
    TESSERA_ASSIGN_OR_RETURN(arguments, Value::FromDict(std::move(dict)));
  } else {
    TESSERA_ASSIGN_OR_RETURN(arguments, Value::List(a.positional, Sequence::Kind::kTuple));
  }
  TESSERA_ASSIGN_OR_RETURN(Text out, PercentFormat(text, arguments));
  return in->MakeString(std::move(out));
}

absl::StatusOr<Value> WordCountFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("wordcount", a, {}).status());
  TESSERA_ASSIGN_OR_RETURN(const Text text, ToString(in, v));
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
  TESSERA_ASSIGN_OR_RETURN(const auto args,
                           Bind("tojson", a, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = args[0] && args[0]->Truthy();
  style.sort_keys = args[3] && args[3]->Truthy();
  if (args[1] && args[1]->is_string()) {
    style.indent = args[1]->text()->bytes();
  } else if (args[1] && !args[1]->is_none()) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t width, ToInteger(*args[1], "indent"));
    if (width > 100) return TemplateError("the indentation is too wide");
    style.indent = std::string(std::max<int64_t>(width, 0), ' ');
  }
  if (style.indent) style.item_separator.assign(1, ',');
  if (args[2] && !args[2]->is_none()) {
    const Sequence* pair = args[2]->sequence();
    if (pair == nullptr || pair->items.size() != 2)
      return TemplateError("separators must be a pair of strings");
    TESSERA_ASSIGN_OR_RETURN(const Text item, ExpectString(pair->items[0], "separators"));
    TESSERA_ASSIGN_OR_RETURN(const Text key, ExpectString(pair->items[1], "separators"));
    style.item_separator = item.bytes();
    style.key_separator = key.bytes();
  }
  TESSERA_ASSIGN_OR_RETURN(Text out, ToJson(v, style));
  return in->MakeString(std::move(out));
}

}  // namespace

void AddStringFilters(FilterTable* table) {
  const std::pair<const char*, FilterFunction> filters[] = {
      {"capitalize", CapitalizeFilter}, {"center", CenterFilter},      {"e", EscapeFilter},
      {"escape", EscapeFilter},         {"forceescape", EscapeFilter}, {"format", FormatFilter},
      {"indent", IndentFilter},         {"lower", LowerFilter},        {"replace", ReplaceFilter},
      {"safe", StringFilter},           {"string", StringFilter},      {"title", TitleFilter},
      {"tojson", ToJsonFilter},         {"trim", TrimFilter},          {"upper", UpperFilter},
      {"wordcount", WordCountFilter},
  };
  for (const auto& [name, filter] : filters) table->emplace(name, filter);
}

}  // namespace tessera::jinja
