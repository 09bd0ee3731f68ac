// The `pre_tokenizer` of tokenizer.json: cuts a text into the pieces within which the model may merge.
#ifndef TESSERA_SERVER_TOKENIZER_PRE_TOKENIZER_H_
#define TESSERA_SERVER_TOKENIZER_PRE_TOKENIZER_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/json_view.h"

namespace tessera {

struct Piece {
  absl::string_view text;
  // It begins where the whole input begins (some pre-tokenizers put a space only there).
  bool at_start = false;
};

struct Pieces {
  std::vector<Piece> list;
  // Holds the text of pieces that are not a part of the input.
  std::deque<std::string> storage;
};

// Immutable, thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts each piece further, in place. Empty pieces vanish.
  virtual absl::Status Apply(Pieces* pieces) const = 0;
  // True if the model sees bytes (spelled as GPT-2 spells them) and not characters.
  virtual bool byte_level() const { return false; }

  // Split, ByteLevel (last in a sequence only), Digits, Punctuation, Metaspace, Whitespace, WhitespaceSplit,
  // CharDelimiterSplit, Sequence. Null for null.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> FromJson(const JsonView& json);
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_PRE_TOKENIZER_H_
