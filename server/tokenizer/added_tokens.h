// The `added_tokens` of tokenizer.json: strings that are found in a text before it is cut and merged.
#ifndef TESSERA_SERVER_TOKENIZER_ADDED_TOKENS_H_
#define TESSERA_SERVER_TOKENIZER_ADDED_TOKENS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/json_view.h"
#include "server/tokenizer/normalizer.h"
#include "server/tokenizer/regex.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera {

struct AddedToken {
  int32_t id;
  std::string content;
  bool special;      // recognised only where the caller trusts the text; skipped by Decode
  bool single_word;  // not if a word character is next to it
  bool lstrip;       // takes the whitespace before it
  bool rstrip;       // takes the whitespace behind it
  bool normalized;   // looked for in the normalised text
};

absl::StatusOr<std::vector<AddedToken>> AddedTokensFromJson(const JsonView& json);

// A part of a text: an added token, or text between them.
struct Segment {
  ByteRange range;
  std::optional<int32_t> id;
};

// Finds a set of added tokens; at each position the longest one wins. Immutable, thread-safe.
class AddedTokenMatcher {
 public:
  // Takes the tokens whose `normalized` is this; their content goes through `normalizer` (may be null) first.
  static absl::StatusOr<AddedTokenMatcher> Create(const std::vector<AddedToken>& tokens, bool normalized,
                                                  const Normalizer* normalizer);

  bool empty() const { return tokens_.empty(); }

  // Cuts `text` into segments that cover it. Special tokens for whose bytes `is_trusted` is false stay text.
  std::vector<Segment> Split(absl::string_view text, absl::FunctionRef<bool(ByteRange)> is_trusted) const;

 private:
  // The longest token that starts at text[pos], as an index into tokens_; -1 if none does.
  int Longest(absl::string_view text, size_t pos) const;

  std::vector<AddedToken> tokens_;  // content as it is looked for
  // A trie: node n's child for byte b is at key n << 8 | b. first_ has the root's children.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int> token_at_;  // by node: the token that ends there, or -1
  uint32_t first_[256] = {};
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_ADDED_TOKENS_H_
