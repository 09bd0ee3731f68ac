// SentencePiece's "precompiled charsmap": rules that replace one string by another, as a double-array trie (J. Aoe, 1989,
// in the layout of darts-clone) whose values are offsets of zero-terminated replacements.
#ifndef TESSERA_SERVER_TOKENIZER_CHARSMAP_H_
#define TESSERA_SERVER_TOKENIZER_CHARSMAP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Immutable, thread-safe. Any bytes may be loaded: a trie that leads out of its array matches nothing there.
class Charsmap {
 public:
  // INVALID_ARGUMENT if `blob` (uint32 size of the trie, the trie, the replacements) is not well formed; every
  // replacement must be valid UTF-8. An empty blob has no rules.
  static absl::StatusOr<Charsmap> Parse(absl::string_view blob);

  bool empty() const { return units_.empty(); }

  struct Match {
    size_t length;  // bytes of the text
    absl::string_view replacement;
  };
  // The shortest or the longest rule for the start of `text`.
  std::optional<Match> Shortest(absl::string_view text) const { return Find(text, /*longest=*/false); }
  std::optional<Match> Longest(absl::string_view text) const { return Find(text, /*longest=*/true); }

 private:
  std::optional<Match> Find(absl::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_CHARSMAP_H_
