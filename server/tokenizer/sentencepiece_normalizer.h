// What a SentencePiece model does to a text before it cuts it into pieces.
#ifndef TESSERA_SERVER_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_
#define TESSERA_SERVER_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_

#include <memory>

#include "server/tokenizer/byte_trie.h"
#include "server/tokenizer/charsmap.h"
#include "server/tokenizer/normalizer.h"

namespace tessera {

struct SentencePieceNormalization {
  Charsmap charsmap;
  // Symbols that are taken as they are.
  ByteTrie user_defined;
  // Spaces at both ends are dropped, runs of them are one.
  bool remove_extra_whitespaces = true;
  // A text begins with a space (ends with one, if whitespace_as_suffix).
  bool add_dummy_prefix = true;
  // Not so if it comes behind a special token.
  bool prefix_at_start_only = false;
  bool whitespace_as_suffix = false;
  // Spaces become U+2581.
  bool escape_whitespaces = true;
};

std::unique_ptr<Normalizer> MakeSentencePieceNormalizer(SentencePieceNormalization options);

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_
