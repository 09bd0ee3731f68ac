#include "server/tokenizer/pattern.h"

#include "absl/strings/str_cat.h"
#include "server/tokenizer/status_macros.h"

namespace tessera {

absl::StatusOr<Pattern> PatternFromJson(const JsonView& json) {
  const JsonView literal = json["String"], regex = json["Regex"];
  if (literal.is_null() == regex.is_null()) return json.Expected("{\"String\": ...} or {\"Regex\": ...}");
  if (!literal.is_null()) {
    TOKENIZER_ASSIGN_OR_RETURN(std::string text, literal.String());
    if (text.empty()) return literal.Error("the pattern is empty");
    absl::StatusOr<Regex> compiled = Regex::CompileLiteral(text);
    if (!compiled.ok()) return literal.Error(compiled.status().message());
    return Pattern{*std::move(compiled), std::move(text)};
  }
  TOKENIZER_ASSIGN_OR_RETURN(const std::string text, regex.String());
  // Oniguruma's class intersection and hexadecimal digit are something else in PCRE2, without an error.
  for (const char* other : {"&&", "\\h", "\\H", "\\R", "\\X", "\\O", "\\N", "\\K", "\\y", "\\Y"}) {
    if (text.find(other) != std::string::npos) {
      return regex.Unsupported(absl::StrCat("\"", other, "\" in a regular expression"));
    }
  }
  absl::StatusOr<Regex> compiled = Regex::Compile(text);
  if (!compiled.ok()) return regex.Error(compiled.status().message());
  return Pattern{*std::move(compiled), ""};
}

}  // namespace tessera
