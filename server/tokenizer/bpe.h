// Byte-pair encoding, as tokenizer.json's model of type "BPE" describes it and as SentencePiece does it.
#ifndef TESSERA_SERVER_TOKENIZER_BPE_H_
#define TESSERA_SERVER_TOKENIZER_BPE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/byte_trie.h"
#include "server/tokenizer/json_view.h"
#include "server/tokenizer/model.h"

namespace tessera {

class BpeModel final : public TokenModel {
 public:
  // `byte_level`: words are bytes, and the vocabulary spells them as GPT-2 does.
  static absl::StatusOr<std::unique_ptr<BpeModel>> FromJson(const JsonView& json, bool byte_level);

  // A token of a SentencePiece model.
  struct Piece {
    enum Kind {
      kNormal,
      kUserDefined,  // always found whole, never merged with anything
      kUnused,       // merged as others are, but taken apart again in the end
      kNotInText,    // unknown, control and byte tokens
    };
    std::string text;  // not empty, valid UTF-8; distinct
    float score = 0;   // neighbours that form the piece of the highest score merge first
    Kind kind = kNormal;
  };
  // Ids are positions in `pieces`. Characters of no piece become bytes if there are all of those and byte_fallback is
  // set, else one `unk_id` for each run of them.
  static absl::StatusOr<std::unique_ptr<BpeModel>> FromPieces(std::vector<Piece> pieces, int32_t unk_id,
                                                              bool byte_fallback);

  std::unique_ptr<TokenModel::Scratch> NewScratch() const override;

  // O(n log n) in the length of a word at worst. Characters that the vocabulary lacks become its unknown token, or
  // nothing if it has none.
  absl::Status Encode(absl::string_view piece, size_t enough, TokenModel::Scratch* scratch,
                      std::vector<int32_t>* ids) const override;

 private:
  struct Merge {
    uint32_t rank;  // lower ones first
    int32_t merged;
  };
  struct Symbol;
  class Scratch;
  // By id, for SentencePiece; ids beyond the vocabulary stand for single characters that are no piece themselves but
  // occur in pieces.
  struct PieceInfo {
    uint32_t length;
    Piece::Kind kind;
  };

  // bpe_load.cc
  absl::Status ReadVocabulary(const JsonView& json);
  absl::Status ReadMerges(const JsonView& json);
  void FindByteTokens();
  void AddPieceMerges(const std::vector<Piece>& pieces, absl::flat_hash_map<uint64_t, Merge>* merges);
  void BuildMergeTable(const absl::flat_hash_map<uint64_t, Merge>& merges);
  void BoundTokenLength();

  // Null if these two never merge.
  const Merge* FindMerge(int32_t left, int32_t right) const;

  // Encodes what no merge reaches beyond.
  void EncodeWord(absl::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const;
  void StartBytes(absl::string_view word, Scratch* scratch) const;
  void StartCharacters(absl::string_view text, Scratch* scratch) const;
  void StartPieces(absl::string_view text, Scratch* scratch) const;
  void MergeShort(Scratch* scratch) const;
  void MergeLong(Scratch* scratch) const;
  void AppendPieces(absl::string_view text, Scratch* scratch, std::vector<int32_t>* ids) const;

  // byte_level_ only: the vocabulary by the bytes that a token stands for, for ignore_merges_.
  absl::flat_hash_map<std::string, int32_t> whole_words_;
  // An open-addressed table of pairs: a power of two of slots, empty ones with key kNoPair.
  struct MergeSlot {
    uint64_t key;
    Merge merge;
  };
  std::vector<MergeSlot> merge_slots_;
  uint64_t merge_mask_ = 0;

  int32_t byte_ids_[256];  // byte_level_: the token of a byte; else its byte-fallback token. -1: none.
  bool byte_level_ = false;
  bool all_bytes_known_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
  // No token has U+2581 behind another character, so that a text may be cut before each run of them.
  bool words_begin_with_metaspace_ = false;

  bool sentencepiece_ = false;
  bool has_unused_ = false;
  std::vector<PieceInfo> infos_;
  absl::flat_hash_map<std::string, int32_t> characters_;  // the symbols to begin with
  ByteTrie user_defined_;
};

inline constexpr uint64_t kNoPair = ~uint64_t{0};

inline uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

inline uint64_t MixPair(uint64_t key) {
  key *= 0x9E3779B97F4A7C15u;
  return key ^ key >> 32;
}

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_BPE_H_
