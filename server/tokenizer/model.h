// What turns a piece of text into ids: the `model` of tokenizer.json, or of a SentencePiece file.
#ifndef TESSERA_SERVER_TOKENIZER_MODEL_H_
#define TESSERA_SERVER_TOKENIZER_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Immutable, thread-safe; what changes during encoding is in Scratch.
class TokenModel {
 public:
  // Buffers and caches for one thread at a time. Of bounded size after Trim.
  class Scratch {
   public:
    virtual ~Scratch() = default;
    // Gives back the memory that an unusually long piece took.
    virtual void Trim() = 0;
  };

  virtual ~TokenModel() = default;
  virtual std::unique_ptr<Scratch> NewScratch() const = 0;

  // Appends the ids of one piece (valid UTF-8). `scratch` is one of NewScratch's. Once `ids` holds more than `enough` it
  // may stop, with the first of the piece's ids appended. INVALID_ARGUMENT if the piece has a character that the model
  // cannot express.
  virtual absl::Status Encode(absl::string_view piece, size_t enough, Scratch* scratch,
                              std::vector<int32_t>* ids) const = 0;

  // A piece of n bytes has at least n / max_token_bytes() tokens. 0: there is no such bound, as characters may vanish
  // or a token stand for a run of any length.
  size_t max_token_bytes() const { return max_token_bytes_; }

  // Ids by the tokens' spelling.
  const absl::flat_hash_map<std::string, int32_t>& vocabulary() const { return vocabulary_; }
  std::optional<int32_t> unk_id() const { return unk_id_; }

 protected:
  absl::flat_hash_map<std::string, int32_t> vocabulary_;
  std::optional<int32_t> unk_id_;
  size_t max_token_bytes_ = 0;
};

// "<0x0A>": how a vocabulary spells the token of a single byte.
std::string ByteFallbackToken(uint8_t byte);

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_MODEL_H_
