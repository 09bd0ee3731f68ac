// UTF-8 and the parts of Unicode that tokenizers need. Strings passed in must be valid UTF-8 unless said
// otherwise.
#ifndef TESSERA_SERVER_TOKENIZER_UNICODE_H_
#define TESSERA_SERVER_TOKENIZER_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera::unicode {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;
inline constexpr absl::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

// The length of the character that starts with this byte.
inline size_t SequenceLength(char lead) {
  const auto b = static_cast<uint8_t>(lead);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

// Decodes the character at text[*pos] and moves *pos behind it.
char32_t DecodeAt(absl::string_view text, size_t* pos);
// The start of the character that ends before text[pos]; pos > 0.
size_t PreviousStart(absl::string_view text, size_t pos);
void AppendUtf8(char32_t code_point, std::string* out);
size_t CountCodePoints(absl::string_view text);

// What the bytes at `data` are, as the start of a UTF-8 sequence (Unicode table 3-7, so no surrogates, no
// overlong forms).
struct SequenceCheck {
  enum Kind { kComplete, kInvalid, kIncomplete };
  Kind kind;
  // kComplete: bytes of the character. kInvalid: bytes of the maximal ill-formed part, which one U+FFFD
  // stands for. kIncomplete: all `size` bytes, which are the start of a character.
  size_t length;
};
SequenceCheck CheckSequence(const char* data, size_t size);

// The offset of the first byte that is not part of valid UTF-8, or npos. Any bytes.
size_t FindInvalid(absl::string_view bytes);
// Any bytes to valid UTF-8: each maximal ill-formed part becomes U+FFFD.
std::string ReplaceInvalid(absl::string_view bytes);

// The White_Space property.
bool IsWhitespace(char32_t c);

char32_t ToLower(char32_t c);
// Full case mappings of one character, without regard to its neighbours.
void AppendLower(char32_t c, std::string* out);
void AppendUpper(char32_t c, std::string* out);
void AppendTitle(char32_t c, std::string* out);

std::string Nfc(absl::string_view text);
std::string Nfd(absl::string_view text);
std::string Nfkc(absl::string_view text);
std::string Nfkd(absl::string_view text);
uint8_t CombiningClass(char32_t c);

// Replaces, in place, the characters that PCRE2 would put into another class than the tokenizers library does
// by ones of the same length that it puts right; see unicode_tables.h. Returns false, with `out` untouched,
// if the text has none.
bool SubstituteStandIns(absl::string_view text, std::string* out);

}  // namespace tessera::unicode

#endif  // TESSERA_SERVER_TOKENIZER_UNICODE_H_
