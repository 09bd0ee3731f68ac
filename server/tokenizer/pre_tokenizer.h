// The `pre_tokenizer` of tokenizer.json: cuts a text into the pieces within which the model may merge.
#ifndef TESSERA_SERVER_TOKENIZER_PRE_TOKENIZER_H_
#define TESSERA_SERVER_TOKENIZER_PRE_TOKENIZER_H_

#include <memory>

#include "absl/functional/function_ref.h"
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

// Takes one piece after the other; false: no more are wanted. Its argument is valid during the call alone.
using PieceSink = absl::FunctionRef<bool(const Piece&)>;

// Immutable, thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts `piece` and gives the parts to `sink` from left to right, none of them empty, as long as it wants more: so a
  // text of which only the beginning is wanted costs little more than that.
  virtual absl::Status Cut(const Piece& piece, PieceSink sink) const = 0;
  // True if the model sees bytes (spelled as GPT-2 spells them) and not characters.
  virtual bool byte_level() const { return false; }

  // Split, ByteLevel (last in a sequence only), Digits, Punctuation, Metaspace, Whitespace, WhitespaceSplit,
  // CharDelimiterSplit, Sequence. Null for null.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> FromJson(const JsonView& json);
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_PRE_TOKENIZER_H_
