// What filters and methods share: their arguments, and operations on strings.
#include "server/tokenizer/jinja/builtins.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/characters.h"
#include "server/tokenizer/jinja/format.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

// A sigma at the end of a word has a lower case of its own.
void LowerInto(const Text& text, size_t begin, Text* out) {
  const absl::string_view all = text.view();
  size_t pos = begin, plain = begin;
  const auto flush = [&](size_t end) {
    AppendMapped(text.Substr(plain, end), unicode::AppendLower, out);
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
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(text.size() / 16));
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
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(found.size()));
  TESSERA_RETURN_IF_ERROR(in->ChargeBytes(text.size() + found.size() * to.size()));
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

Text Upper(const Text& text) {
  Text out;
  AppendMapped(text, unicode::AppendUpper, &out);
  return out;
}

Text Lower(const Text& text) {
  Text out;
  LowerInto(text, 0, &out);
  return out;
}

Text Capitalize(const Text& text) {
  if (text.empty()) return text;
  const size_t first = unicode::SequenceLength(text.bytes()[0]);
  Text out;
  AppendMapped(text.Substr(0, first), unicode::AppendTitle, &out);
  LowerInto(text, first, &out);
  return out;
}

}  // namespace tessera::jinja
