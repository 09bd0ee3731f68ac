// The `added_tokens` of tokenizer.json: strings that are found in a text before it is cut and merged.
#ifndef TESSERA_SERVER_TOKENIZER_ADDED_TOKENS_H_
#define TESSERA_SERVER_TOKENIZER_ADDED_TOKENS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/byte_trie.h"
#include "server/tokenizer/json_view.h"
#include "server/tokenizer/normalizer.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // recognised only where the caller trusts the text; skipped by Decode
  bool single_word = false;  // not if a word character is next to it
  bool lstrip = false;       // takes the whitespace before it
  bool rstrip = false;       // takes the whitespace behind it
  bool normalized = false;   // looked for in the normalised text
};

absl::StatusOr<std::vector<AddedToken>> AddedTokensFromJson(const JsonView& json);

// Merges tokenizer_config.json's `added_tokens_decoder` (an object of tokens by id, or null) into `tokens`: those with a
// known id get its flags, others are new. The unknown token is left as it is.
absl::Status MergeAddedTokens(const JsonView& json, int32_t unk_id, std::vector<AddedToken>* tokens);

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

  // Cuts `text` into segments that cover it and gives them to `sink`, from left to right, until that returns false.
  // Special tokens for whose bytes `is_trusted` is false stay text.
  void Split(absl::string_view text, absl::FunctionRef<bool(ByteRange)> is_trusted,
             absl::FunctionRef<bool(const Segment&)> sink) const;

 private:
  std::vector<AddedToken> tokens_;  // content as it is looked for
  ByteTrie trie_;                   // of indices into tokens_
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_ADDED_TOKENS_H_
