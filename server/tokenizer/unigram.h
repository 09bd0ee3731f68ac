// The unigram language model (T. Kudo, "Subword Regularization", 2018): of all ways to cut a text into pieces of the
// vocabulary, the one whose log-probabilities add up to the most.
#ifndef TESSERA_SERVER_TOKENIZER_UNIGRAM_H_
#define TESSERA_SERVER_TOKENIZER_UNIGRAM_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "server/tokenizer/byte_trie.h"
#include "server/tokenizer/json_view.h"
#include "server/tokenizer/model.h"

namespace tessera {

class UnigramModel final : public TokenModel {
 public:
  struct Piece {
    std::string text;
    double score = 0;
    // False: never found in a text (control tokens, bytes, unused pieces).
    bool in_text = true;
  };
  struct Options {
    // Whether sums are rounded to single precision at each character, which decides ties: so does the SentencePiece
    // library, while the tokenizers library keeps them in double precision.
    bool single_precision = false;
    // A run of unknown characters is one unknown token.
    bool fuse_unk = true;
    // Unknown characters are spelled in bytes, if the vocabulary has all those that they need.
    bool byte_fallback = false;
    // What an unknown character scores; far below every piece.
    double unk_score = 0;
  };

  // tokenizer.json's model of type "Unigram". `never_in_text`: spellings of special tokens, which no text may turn into.
  static absl::StatusOr<std::unique_ptr<UnigramModel>> FromJson(
      const JsonView& json, const absl::flat_hash_set<std::string>& never_in_text);
  // Ids are positions in `pieces`, whose texts are distinct; `unk_id` is one of them or -1.
  static std::unique_ptr<UnigramModel> Create(std::vector<Piece> pieces, int32_t unk_id,
                                              const Options& options);

  std::unique_ptr<Scratch> NewScratch() const override;
  // Linear in the length of the piece.
  absl::Status Encode(absl::string_view piece, size_t enough, Scratch* scratch,
                      std::vector<int32_t>* ids) const override;

 private:
  template <typename Sum>
  absl::Status Search(absl::string_view piece, size_t enough, Scratch* scratch,
                      std::vector<int32_t>* ids) const;
  // The ids of piece[begin, end) along the best path.
  void AppendBestPath(absl::string_view piece, size_t begin, size_t end, const Scratch& scratch,
                      std::vector<int32_t>* ids) const;
  // Whether a node's id stands for unknown text. The unknown token itself, spelled out in a text, is no better.
  bool IsUnknown(int32_t id) const { return id < 0 || (unk_id_ && id == *unk_id_); }
  // The ids of `text`, which the best path takes as unknown.
  void AppendUnknown(absl::string_view text, std::vector<int32_t>* ids) const;

  Options options_;
  std::vector<double> scores_;
  ByteTrie trie_;
  int32_t byte_ids_[256];  // -1: none
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_UNIGRAM_H_
