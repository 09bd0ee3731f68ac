#include "tests/ptx/parser/token_stream.h"

#include <bit>
#include <charconv>
#include <system_error>

namespace tessera::ptx {
namespace {

bool ParseDigits(std::string_view digits, int base, uint64_t* value) {
  *value = 0;
  if (digits.empty()) return false;
  for (const char c : digits) {
    int digit = 99;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    if (digit >= base) return false;
    if (*value > (~uint64_t{0} - digit) / base) return false;
    *value = *value * base + digit;
  }
  return true;
}

}  // namespace

bool ParseNumber(std::string_view text, uint64_t* bits, Type* type) {
  const char prefix = text.size() > 1 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
  if (prefix == 'f' || prefix == 'd') {
    *type = prefix == 'f' ? Type::kF32 : Type::kF64;
    return text.size() == (prefix == 'f' ? 10 : 18) && ParseDigits(text.substr(2), 16, bits);
  }
  if (prefix != 'x' && text.find_first_of(".eE") != text.npos) {
    double value;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return false;
    *type = Type::kF64;
    *bits = std::bit_cast<uint64_t>(value);
    return true;
  }
  *type = Type::kB64;
  if (!text.empty() && (text.back() | 0x20) == 'u') text.remove_suffix(1);
  if (prefix == 'x') return ParseDigits(text.substr(2), 16, bits);
  if (prefix == 'b') return ParseDigits(text.substr(2), 2, bits);
  if (prefix >= '0' && prefix <= '9') return ParseDigits(text.substr(1), 8, bits);
  return ParseDigits(text, 10, bits);
}

int64_t TokenStream::ExpectInteger(std::string_view name) {
  const bool negative = Accept("-");
  uint64_t bits;
  Type type;
  if (Peek().kind != Token::Kind::kNumber || !ParseNumber(Peek().text, &bits, &type) || type != Type::kB64) {
    Fail(Cat("expected an integer (", name, ") before '", Peek().text, "'"));
  }
  Next();
  return static_cast<int64_t>(negative ? -bits : bits);
}

}  // namespace tessera::ptx
