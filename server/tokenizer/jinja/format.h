// Values as text, as Python writes them.
#ifndef TESSERA_SERVER_TOKENIZER_JINJA_FORMAT_H_
#define TESSERA_SERVER_TOKENIZER_JINJA_FORMAT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tokenizer/jinja/value.h"

namespace tessera::jinja {

// str(value); nothing for undefined.
Text ToText(const Value& value);
// repr(value).
Text Repr(const Value& value);
// repr(float): the shortest digits that read back as the same number.
std::string FormatFloat(double d);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // the unit of indentation
  std::string item_separator = ", ", key_separator = ": ";
};
// json.dumps(value). INVALID_ARGUMENT for what JSON has no form for.
absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style);

// format % arguments: %s %r %d %i %f %e %g %x %X %o %c %%, with flags, width and precision.
absl::StatusOr<Text> PercentFormat(const Text& format, const Value& arguments);
// format.format(...): {} {0} {name}, without attributes or format specifications.
absl::StatusOr<Text> BraceFormat(const Text& format, const Arguments& arguments);

}  // namespace tessera::jinja

#endif  // TESSERA_SERVER_TOKENIZER_JINJA_FORMAT_H_
