// The `decoder` of tokenizer.json, compiled into: what bytes each token stands for, and how they are joined.
#ifndef TESSERA_SERVER_TOKENIZER_DECODER_H_
#define TESSERA_SERVER_TOKENIZER_DECODER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/json_view.h"

namespace tessera {

// Immutable, thread-safe.
class Decoder {
 public:
  // ByteLevel, Metaspace, Replace (literal), ByteFallback, Strip, Fuse, Sequence. Null for null: tokens are
  // then joined with spaces. UNIMPLEMENTED for orders of these that cannot be decoded token by token.
  static absl::StatusOr<Decoder> FromJson(const JsonView& json);

  // What becomes of the spaces that a text begins with.
  enum class Lead {
    kKept,
    kOneSpace,   // one is dropped
    kAllSpaces,  // one of each token is dropped, until there is text
  };
  // As the SentencePiece library decodes. The unknown token reads as `unk_surface`.
  static Decoder ForSentencePiece(Lead lead, std::string unk, std::string unk_surface);

  struct Piece {
    std::string bytes;
    // One byte of a character that several such tokens spell. All other pieces are whole characters, unless
    // byte_level().
    bool is_byte = false;
    // The next token is to be decoded as the first one, too.
    bool first_again = false;
  };
  // `first`: it is the first token of the sequence. `added`: an added token, whose content is not a spelling.
  Piece Decode(absl::string_view token, bool first, bool added) const;

  // Tokens are bytes that flow into each other: any of them may hold a part of a character, and an ill-formed
  // stretch becomes one U+FFFD. Otherwise only runs of is_byte pieces are, and each ill-formed byte becomes
  // one.
  bool byte_level() const { return byte_level_; }
  bool joined_with_spaces() const { return joined_with_spaces_; }
  // The first token of a sequence decodes otherwise than it does later on.
  bool first_differs() const { return first_differs_; }
  // Up to strip_count() times strip_text() is dropped from the start of the whole text.
  int strip_count() const { return strip_count_; }
  const std::string& strip_text() const { return strip_text_; }

 private:
  struct Step {
    enum Kind { kReplace, kStrip, kMetaspace, kByteFallback, kByteLevel } kind;
    std::string from, to;     // kReplace; kStrip and kMetaspace use `from`
    int left = 0, right = 0;  // kStrip: characters dropped at most
    bool drop_first = false;  // kMetaspace
  };
  absl::Status Add(const JsonView& json);
  Piece DecodeSentencePiece(absl::string_view token, bool first) const;

  std::vector<Step> steps_;
  bool sentencepiece_ = false;
  Lead lead_ = Lead::kKept;
  std::string unk_, unk_surface_;
  bool fused_ = false;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool joined_with_spaces_ = false;
  bool first_differs_ = false;
  int strip_count_ = 0;
  std::string strip_text_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_DECODER_H_
