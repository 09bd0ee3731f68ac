// GPT-2's spelling of bytes as printable characters, which the vocabularies of byte-level models use:
// printable Latin-1 stands for itself, every other byte for a character from U+0100 on (a space is U+0120,
// "Ġ").
#ifndef TESSERA_SERVER_TOKENIZER_BYTE_LEVEL_H_
#define TESSERA_SERVER_TOKENIZER_BYTE_LEVEL_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// The character that spells this byte.
char32_t ByteLevelCharacter(uint8_t byte);
// Spells out bytes.
std::string ByteLevelEncode(absl::string_view bytes);
// Reads a spelling into `bytes`; false, with `bytes` undefined, if `text` (valid UTF-8) has a character that
// spells no byte.
bool ByteLevelDecode(absl::string_view text, std::string* bytes);

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_BYTE_LEVEL_H_
