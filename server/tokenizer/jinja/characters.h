// A text's characters.
#ifndef TESSERA_SERVER_TOKENIZER_JINJA_CHARACTERS_H_
#define TESSERA_SERVER_TOKENIZER_JINJA_CHARACTERS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/tokenizer/jinja/text.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {

// The offsets of a text's characters, and its end.
inline std::vector<size_t> CharacterOffsets(const Text& text) {
  std::vector<size_t> out;
  for (size_t pos = 0; pos < text.size(); pos += unicode::SequenceLength(text.bytes()[pos])) out.push_back(pos);
  out.push_back(text.size());
  return out;
}

// Appends what `map(character, std::string* to)` writes for each character of `text`, trust kept.
template <typename F>
void AppendMapped(const Text& text, F map, Text* out) {
  text.ForEachRun([&](absl::string_view run, bool untrusted) {
    std::string mapped;
    for (size_t pos = 0; pos < run.size();) map(unicode::DecodeAt(run, &pos), &mapped);
    out->Append(mapped, untrusted);
  });
}

}  // namespace tessera::jinja

#endif  // TESSERA_SERVER_TOKENIZER_JINJA_CHARACTERS_H_
