// PCRE2 in Unicode mode, compiled to machine code, with the character classes of the tokenizers library.
#ifndef TESSERA_SERVER_TOKENIZER_REGEX_H_
#define TESSERA_SERVER_TOKENIZER_REGEX_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera {

// Letters, marks, decimal digits, letter numbers, connectors and circled letters, to be put into a class:
// what both Rust's regex library and Oniguruma call \w, each with some more.
#define TESSERA_REGEX_WORD_MEMBERS \
  R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})"
#define TESSERA_REGEX_RUST_WORD TESSERA_REGEX_WORD_MEMBERS R"(\x{200c}\x{200d})"
#define TESSERA_REGEX_ONIGURUMA_WORD TESSERA_REGEX_WORD_MEMBERS R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})"

// Immutable, thread-safe, cheap to copy.
class Regex {
 public:
  // INVALID_ARGUMENT with PCRE2's message and the offset if the pattern is not one.
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);
  // A pattern that matches this text literally.
  static absl::StatusOr<Regex> CompileLiteral(absl::string_view text);

  // Calls `match` for every non-overlapping match from the left, empty matches included, until it returns false.
  // `text` must be valid UTF-8. `match` may search other texts. RESOURCE_EXHAUSTED if the pattern runs into PCRE2's
  // limits on this text.
  absl::Status FindAll(absl::string_view text, absl::FunctionRef<bool(ByteRange)> match) const;
  // Whether there is a match anywhere in `text`.
  bool Matches(absl::string_view text) const;

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_REGEX_H_
