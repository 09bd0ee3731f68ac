// Jinja's filters, tests and global functions, and the methods of Python's types.
#ifndef TESSERA_SERVER_TOKENIZER_JINJA_BUILTINS_H_
#define TESSERA_SERVER_TOKENIZER_JINJA_BUILTINS_H_

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/jinja/interpreter.h"
#include "server/tokenizer/jinja/value.h"

namespace tessera::jinja {

using FilterFunction = absl::StatusOr<Value> (*)(Interpreter*, const Value&, const Arguments&);
using TestFunction = absl::StatusOr<bool> (*)(Interpreter*, const Value&, const Arguments&);
using FilterTable = absl::flat_hash_map<std::string, FilterFunction>;

// Null if there is no such filter, test.
FilterFunction FindFilter(absl::string_view name);
TestFunction FindTest(absl::string_view name);
void AddStringFilters(FilterTable* table);
void AddNumberFilters(FilterTable* table);
void AddSequenceFilters(FilterTable* table);

// The method `name` bound to `value`; undefined if its type has none. An error for methods that would change it,
// as in Jinja's immutable sandbox.
absl::StatusOr<Value> FindMethod(const Value& value, absl::string_view name);
// A method of str; null if there is none.
FilterFunction FindStringMethod(absl::string_view name);
// The same for those that ask what characters a string consists of.
FilterFunction FindStringPredicate(absl::string_view name);

// range, dict, namespace, joiner, cycler, raise_exception, strftime_now.
std::vector<std::pair<std::string, Value>> GlobalFunctions();
// time.strftime in UTC and the C locale. INVALID_ARGUMENT for a conversion that is not known.
absl::StatusOr<std::string> FormatTime(absl::string_view format, int64_t unix_seconds);

// The arguments by the parameters' names, in their order; an error names the function if there are too many, an
// unknown one, or one twice.
absl::StatusOr<std::vector<std::optional<Value>>> Bind(absl::string_view function, const Arguments& arguments,
                                                       std::initializer_list<const char*> parameters);
absl::StatusOr<int64_t> ToInteger(const Value& value, absl::string_view what);
// str(value), as filters take their input.
absl::StatusOr<Text> ToString(Interpreter* in, const Value& value);
// The argument if it is a string; an error that names `what` otherwise.
absl::StatusOr<Text> ExpectString(const Value& value, absl::string_view what);

// Of strings, trust kept.
Text Strip(const Text& text, const std::optional<std::string>& characters, bool left, bool right);
absl::StatusOr<Value> Replace(Interpreter* in, const Text& text, const Text& from, const Text& to,
                              int64_t count);
// str.splitlines.
std::vector<Text> SplitLines(const Text& text, bool keep_ends);
// What str.strip and str.split take for blanks: White_Space and the separators U+001C to U+001F.
bool IsPythonSpace(char32_t c);
// Has upper and lower case.
bool IsCased(char32_t c);
Text Lower(const Text& text);
Text Upper(const Text& text);
Text Capitalize(const Text& text);

}  // namespace tessera::jinja

#endif  // TESSERA_SERVER_TOKENIZER_JINJA_BUILTINS_H_
