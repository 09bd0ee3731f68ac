#include "server/tokenizer/pattern.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/status_macros.h"

namespace tessera {
namespace {

constexpr absl::string_view kWord = TESSERA_REGEX_ONIGURUMA_WORD;

// Oniguruma's syntax to PCRE2's, where the same characters mean something else.
absl::StatusOr<std::string> Translate(const JsonView& json, absl::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const absl::string_view two = pattern.substr(i, 2);
    if (c == '\\' && two.size() == 2) {
      ++i;
      const char e = two[1];
      if (e == 'w') {
        absl::StrAppend(&out, in_class ? "" : "[", kWord, in_class ? "" : "]");
      } else if (e == 'W' && !in_class) {
        absl::StrAppend(&out, "[^", kWord, "]");
      } else if (e == 'b' && !in_class) {
        absl::StrAppend(&out, "(?:(?<=[", kWord, "])(?![", kWord, "])|(?<![", kWord, "])(?=[", kWord, "]))");
      } else if (absl::StrContains("WBhHRXONKyYGQ", absl::string_view(&e, 1)) || (e == 'S' && in_class)) {
        return json.Unsupported(
            absl::StrCat("\"", two, "\"", in_class ? " in a class" : "", " of a regular expression"));
      } else {
        absl::StrAppend(&out, two);
      }
      continue;
    }
    if (in_class && (c == '[' || two == "&&")) {
      return json.Unsupported("a class within a class of a regular expression");
    }
    if (c == '[' && !in_class) {
      in_class = true;
      out += c;
      // A bracket that comes first is a member.
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') {
        out += "\\]";
        ++i;
      }
      continue;
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace

absl::StatusOr<Pattern> PatternFromJson(const JsonView& json) {
  const JsonView literal = json["String"], regex = json["Regex"];
  if (literal.is_null() == regex.is_null()) return json.Expected("{\"String\": ...} or {\"Regex\": ...}");
  if (!literal.is_null()) {
    TESSERA_ASSIGN_OR_RETURN(std::string text, literal.String());
    if (text.empty()) return literal.Error("the pattern is empty");
    absl::StatusOr<Regex> compiled = Regex::CompileLiteral(text);
    if (!compiled.ok()) return literal.Error(compiled.status().message());
    return Pattern{*std::move(compiled), std::move(text)};
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string text, regex.String());
  TESSERA_ASSIGN_OR_RETURN(const std::string translated, Translate(regex, text));
  absl::StatusOr<Regex> compiled = Regex::Compile(translated);
  if (!compiled.ok()) return regex.Error(compiled.status().message());
  return Pattern{*std::move(compiled), ""};
}

}  // namespace tessera
