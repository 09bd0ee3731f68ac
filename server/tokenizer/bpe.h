// Byte-pair encoding as tokenizer.json's model of type "BPE" describes it.
#ifndef TESSERA_SERVER_TOKENIZER_BPE_H_
#define TESSERA_SERVER_TOKENIZER_BPE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/json_view.h"

namespace tessera {

// Immutable, thread-safe; what changes during encoding is in Scratch.
class BpeModel {
 public:
  // Buffers and the cache of words already encoded, for one thread at a time. Of bounded size.
  class Scratch;
  struct ScratchDeleter {
    void operator()(Scratch* scratch) const;
  };
  using ScratchPtr = std::unique_ptr<Scratch, ScratchDeleter>;

  // `byte_level`: words are bytes, and the vocabulary spells them as GPT-2 does.
  static absl::StatusOr<std::unique_ptr<BpeModel>> FromJson(const JsonView& json, bool byte_level);

  static ScratchPtr NewScratch();
  // Gives back the memory that an unusually long word took.
  static void TrimScratch(Scratch* scratch);

  // Appends the ids of one word (valid UTF-8). O(n log n) in its length at worst. Characters that the
  // vocabulary lacks become its unknown token, or nothing if it has none.
  void Encode(absl::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const;

  const absl::flat_hash_map<std::string, int32_t>& vocabulary() const { return vocabulary_; }
  std::optional<int32_t> unk_id() const { return unk_id_; }

 private:
  struct Merge {
    uint32_t rank;
    int32_t merged;
  };
  struct Symbol;

  absl::Status ReadVocabulary(const JsonView& json);
  absl::Status ReadMerges(const JsonView& json);
  void BuildMergeTable(const absl::flat_hash_map<uint64_t, Merge>& merges);
  // Null if these two never merge.
  const Merge* FindMerge(int32_t left, int32_t right) const;

  void StartBytes(absl::string_view word, Scratch* scratch) const;
  void StartCharacters(absl::string_view text, Scratch* scratch) const;
  void MergeShort(Scratch* scratch) const;
  void MergeLong(Scratch* scratch) const;

  absl::flat_hash_map<std::string, int32_t> vocabulary_;
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
  std::optional<int32_t> unk_id_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_BPE_H_
