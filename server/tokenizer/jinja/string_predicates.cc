// The methods of str that ask what characters it consists of.
#include <algorithm>

#include "server/status_macros.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/regex.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

using Result = absl::StatusOr<Value>;

const Regex& Letters() {
  static const Regex* const kRegex = new Regex(*Regex::Compile(R"(\p{L})"));
  return *kRegex;
}
const Regex& LettersAndNumbers() {
  static const Regex* const kRegex = new Regex(*Regex::Compile(R"([\p{L}\p{N}])"));
  return *kRegex;
}
const Regex& Numbers() {
  static const Regex* const kRegex = new Regex(*Regex::Compile(R"(\p{N})"));
  return *kRegex;
}
const Regex& Decimals() {
  static const Regex* const kRegex = new Regex(*Regex::Compile(R"(\p{Nd})"));
  return *kRegex;
}
const Regex& Digits() {
  static const Regex* const kRegex =
      new Regex(*Regex::Compile(R"([\p{Nd}\x{b2}\x{b3}\x{b9}\x{2070}\x{2074}-\x{2079}\x{2080}-\x{2089}])"));
  return *kRegex;
}

template <const Regex& (*kClass)()>
Result IsAll(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("a method of str", a, {}).status());
  const absl::string_view text = v.text()->view();
  for (size_t pos = 0; pos < text.size();) {
    const size_t length = unicode::SequenceLength(text[pos]);
    if (!kClass().Matches(text.substr(pos, length))) return Value::Bool(false);
    pos += length;
  }
  return Value::Bool(!text.empty());
}

Result IsSpace(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("isspace", a, {}).status());
  return Value::Bool(!v.text()->empty() && Strip(*v.text(), std::nullopt, true, false).empty());
}

Result IsAscii(Interpreter*, const Value& v, const Arguments&) {
  const std::string& s = v.text()->bytes();
  return Value::Bool(std::all_of(s.begin(), s.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }));
}

Result IsUpper(Interpreter*, const Value& v, const Arguments&) {
  return Value::Bool(Upper(*v.text()).bytes() == v.text()->bytes() &&
                     Lower(*v.text()).bytes() != v.text()->bytes());
}

Result IsLower(Interpreter*, const Value& v, const Arguments&) {
  return Value::Bool(Lower(*v.text()).bytes() == v.text()->bytes() &&
                     Upper(*v.text()).bytes() != v.text()->bytes());
}

}  // namespace

FilterFunction FindStringPredicate(absl::string_view name) {
  static const FilterTable* const kPredicates = new FilterTable({
      {"isalnum", IsAll<LettersAndNumbers>},
      {"isalpha", IsAll<Letters>},
      {"isascii", IsAscii},
      {"isdecimal", IsAll<Decimals>},
      {"isdigit", IsAll<Digits>},
      {"islower", IsLower},
      {"isnumeric", IsAll<Numbers>},
      {"isspace", IsSpace},
      {"isupper", IsUpper},
  });
  const auto it = kPredicates->find(name);
  return it == kPredicates->end() ? nullptr : it->second;
}

}  // namespace tessera::jinja
