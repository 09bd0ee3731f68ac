// Text to token ids and back, as `tokenizer.json` describes it (the format of the Hugging Face `tokenizers`
// library: normalizer, added tokens, pre-tokenizer, model, post-processor, decoder), or a SentencePiece file
// (`tokenizer.model`).
//
// A Tokenizer is immutable after Load and every method may be called from any number of threads at once.
#ifndef TESSERA_SERVER_TOKENIZER_TOKENIZER_H_
#define TESSERA_SERVER_TOKENIZER_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera {

class JsonView;

// The bytes [begin, end) of a text.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const ByteRange& other) const = default;
};

inline constexpr size_t kAnyNumberOfTokens = SIZE_MAX / 2;

struct EncodeOptions {
  // Adds what the post-processor adds around a single sequence (a BOS token, for many models). A text that
  // already begins with that BOS token (possible only with parse_special) does not get a second one.
  bool add_special_tokens = false;
  // Reads the spelling of a special token ("<|im_end|>") as that token. Off by default, so that text from a
  // user can never turn into control tokens: the characters are encoded as ordinary text. Added tokens that
  // the file does not mark as special are always recognised.
  bool parse_special = false;
  // A longer result is an error, or its first max_tokens ids; either way without encoding much more than that.
  size_t max_tokens = kAnyNumberOfTokens;
  bool truncate = false;
};

// Ids beyond this are refused: tables are indexed by them.
inline constexpr int32_t kMaxTokenId = (1 << 24) - 1;

class Tokenizer {
 public:
  // Reads `directory`/tokenizer.json, or else its tokenizer.model (SentencePiece, BPE or unigram), and where present
  // tokenizer_config.json and special_tokens_map.json (names of the BOS, EOS, ... tokens) and
  // generation_config.json (further EOS ids). NOT_FOUND if there is neither; INVALID_ARGUMENT naming file and JSON
  // path if one is malformed; UNIMPLEMENTED naming the JSON path and the kind if the tokenizer has a component that
  // is not supported. Nothing is ever skipped.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Load(const std::string& directory);

  // The same from the text of the files; `tokenizer_config_json` and `generation_config_json` may be empty.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Parse(
      absl::string_view tokenizer_json, absl::string_view tokenizer_config_json = "",
      absl::string_view generation_config_json = "");

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The same from the content of a SentencePiece file.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> ParseSentencePiece(
      absl::string_view tokenizer_model, absl::string_view tokenizer_config_json = "",
      absl::string_view generation_config_json = "");

  // INVALID_ARGUMENT, with the byte offset, if `text` is not valid UTF-8, or naming a character that the model has no
  // token for (unless it is cut off); OUT_OF_RANGE if the text has more than options.max_tokens tokens and they are
  // not to be truncated.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              const EncodeOptions& options = {}) const;

  // As Encode with parse_special, but special tokens are recognised only where they lie wholly within one of
  // `trusted` (sorted, disjoint, within the text). Every other byte is encoded as if the text were one piece,
  // so a text without special spellings in its untrusted part has the same ids as with parse_special.
  // This is how rendered chat templates are encoded: the template's own text is trusted, content is not.
  absl::StatusOr<std::vector<int32_t>> EncodeTrusted(absl::string_view text,
                                                     absl::Span<const ByteRange> trusted,
                                                     bool add_special_tokens = false,
                                                     size_t max_tokens = kAnyNumberOfTokens,
                                                     bool truncate = false) const;

  // The text of `ids`: valid UTF-8 always, bytes that form no character become U+FFFD. INVALID_ARGUMENT
  // naming position and id if an id is negative or not below vocab_size(). An id below it that names no token
  // (a hole in the vocabulary) stands for nothing.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids, bool skip_special_tokens = true) const;

  // One more than the highest id. A model's logits may be wider (padding); never sample beyond this.
  int32_t vocab_size() const;
  bool IsValidId(int32_t id) const { return id >= 0 && id < vocab_size(); }
  // A token marked special: left out by Decode with skip_special_tokens.
  bool IsSpecial(int32_t id) const;

  // The bytes that the token stands for inside a text: "Ġthe" is " the", "<0x0A>" is "\n"; may be a part of a
  // UTF-8 character. Empty for holes and invalid ids. Valid for the tokenizer's lifetime.
  absl::string_view TokenBytes(int32_t id) const;
  // The token as the file spells it ("Ġthe").
  absl::string_view TokenString(int32_t id) const;
  // The id of a token as the file spells it, added tokens included.
  std::optional<int32_t> TokenToId(absl::string_view token) const;

  std::optional<int32_t> bos_id() const;
  // The tokenizer's EOS token.
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;
  // Every id that ends a generation: eos_id() and generation_config.json's eos_token_id. Sorted.
  absl::Span<const int32_t> eos_ids() const;
  // Named special tokens by their tokenizer_config.json key, for chat templates: {"bos_token", "<s>"}, ...
  absl::Span<const std::pair<std::string, std::string>> named_tokens() const;

 private:
  friend class IncrementalDetokenizer;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Finish(std::unique_ptr<Impl> impl,
                                                                 const JsonView& config,
                                                                 absl::string_view generation_config_json);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_TOKENIZER_H_
