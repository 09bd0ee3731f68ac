// What a Tokenizer is made of; for the .cc files of this folder.
#ifndef TESSERA_SERVER_TOKENIZER_TOKENIZER_IMPL_H_
#define TESSERA_SERVER_TOKENIZER_TOKENIZER_IMPL_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "server/tokenizer/added_tokens.h"
#include "server/tokenizer/decoder.h"
#include "server/tokenizer/model.h"
#include "server/tokenizer/normalizer.h"
#include "server/tokenizer/post_processor.h"
#include "server/tokenizer/pre_tokenizer.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera {

struct Tokenizer::Impl {
  // One entry for each id below vocab_size(); `spelling` empty for a hole.
  struct Token {
    std::string spelling;
    std::string bytes;
    bool exists = false;
    bool special = false;
    bool added = false;
    bool is_byte = false;
  };

  // From tokenizer.json.
  absl::Status Read(const JsonView& json);
  // From a SentencePiece file; `config` is tokenizer_config.json, or null.
  absl::Status ReadSentencePiece(absl::string_view file, const JsonView& config);
  // Fills `tokens` from the model, which is there, and these. `place` names them in errors.
  absl::Status AddTokens(const std::vector<AddedToken>& added, const JsonView& place);
  absl::Status ReadConfig(const JsonView& json);
  absl::Status ReadGenerationConfig(const JsonView& json);

  // What one call of Encode is about.
  struct Encoding {
    absl::Span<const ByteRange> trusted;
    size_t stop_at;  // no more ids than this are wanted
    bool truncate;   // these are, though; else none if there are more
    TokenModel::Scratch* scratch;
    std::vector<int32_t>* ids;
    bool stopped = false;
  };
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, absl::Span<const ByteRange> trusted,
                                              bool add_special_tokens, size_t max_tokens,
                                              bool truncate) const;
  // Encodes text between added tokens of the first kind, which begins at `offset` of the whole.
  absl::Status EncodeSegment(absl::string_view text, size_t offset, Encoding* encoding) const;

  std::unique_ptr<TokenModel::Scratch> BorrowScratch() const;
  void ReturnScratch(std::unique_ptr<TokenModel::Scratch> scratch) const;

  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  PostProcessor post_processor;
  Decoder decoder;
  AddedTokenMatcher raw_matcher;         // looks into the text as it is
  AddedTokenMatcher normalized_matcher;  // looks into the normalised text

  std::vector<Token> tokens;
  absl::flat_hash_map<std::string, int32_t> added_ids;
  std::vector<std::pair<std::string, std::string>> named_tokens;
  std::optional<int32_t> bos_id, eos_id, pad_id;
  std::vector<int32_t> eos_ids;

  // Each call of Encode takes one, so that the caches in it need no lock.
  mutable absl::Mutex mutex;
  mutable std::vector<std::unique_ptr<TokenModel::Scratch>> idle_scratch ABSL_GUARDED_BY(mutex);
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_TOKENIZER_IMPL_H_
