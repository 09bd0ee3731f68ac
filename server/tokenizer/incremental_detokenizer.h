// Turns a growing list of token ids into text, for one sequence.
//
// Append returns the text that became certain: whole characters only, so every piece is valid UTF-8. Bytes
// that may still become a character are held back (at most 3). The concatenation of all pieces and of Flush
// equals Tokenizer::Decode of all ids, byte for byte, for any ids and however they are split over calls.
#ifndef TESSERA_SERVER_TOKENIZER_INCREMENTAL_DETOKENIZER_H_
#define TESSERA_SERVER_TOKENIZER_INCREMENTAL_DETOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera {

// Copyable (a copy continues independently, for forked sequences); not thread-safe.
class IncrementalDetokenizer {
 public:
  explicit IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                  bool skip_special_tokens = true);

  // Appends to `out` what becomes certain with these ids. Ids that name no token stand for nothing.
  void Append(int32_t id, std::string* out);
  void Append(absl::Span<const int32_t> ids, std::string* out);
  std::string Append(int32_t id);
  std::string Append(absl::Span<const int32_t> ids);

  // The end of the sequence: an incomplete tail becomes U+FFFD, as Decode would have it. After it the object
  // is as new.
  void Flush(std::string* out);
  std::string Flush();

  // True if bytes are held back.
  bool pending() const { return pending_size_ != 0; }

 private:
  // Takes bytes that may be parts of characters.
  void AppendBytes(absl::string_view bytes, std::string* out);
  // Whole characters, less what is to be stripped from the start of the text.
  void Emit(absl::string_view text, std::string* out);
  // U+FFFD for an ill-formed stretch of that many bytes.
  void EmitInvalid(size_t bytes, std::string* out);
  void FlushPending(std::string* out);

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_tokens_;
  bool first_ = true;   // no token has been taken yet
  int strip_left_ = 0;  // leading characters that may still be dropped
  char pending_[4] = {};
  size_t pending_size_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_INCREMENTAL_DETOKENIZER_H_
