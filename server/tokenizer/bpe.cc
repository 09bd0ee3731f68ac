#include "server/tokenizer/bpe.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "server/tokenizer/byte_level.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

constexpr uint32_t kNoRank = ~uint32_t{0};
constexpr int32_t kRemoved = -1;
// SentencePiece: a character that occurs in no piece.
constexpr int32_t kNoPiece = -2;
// Up to this many symbols, looking through all of them for the best merge beats a heap.
constexpr size_t kShortWord = 40;
constexpr size_t kKeptSymbols = 1 << 16;
constexpr absl::string_view kMetaspace = "\xE2\x96\x81";
// Unused pieces within unused pieces, as deep as SentencePiece takes them apart.
constexpr int kMaxUnusedDepth = 100;

}  // namespace

struct BpeModel::Symbol {
  int32_t id;  // kRemoved once merged into its left neighbour
  int32_t prev, next;
  // The merge with the next symbol, if they merge.
  uint32_t rank;
  int32_t merged;
};

class BpeModel::Scratch final : public TokenModel::Scratch {
 public:
  static constexpr size_t kSlots = 1 << 14;
  static constexpr size_t kMaxKey = 30, kMaxIds = 8;
  // One cache line; direct-mapped, a newer word takes the slot of an older one.
  struct alignas(64) Slot {
    uint8_t key_size = 0;
    uint8_t id_count = 0;
    char key[kMaxKey];
    int32_t ids[kMaxIds];
  };

  Slot* Find(absl::string_view word) {
    if (slots == nullptr) slots = std::make_unique<Slot[]>(kSlots);
    return &slots[absl::Hash<absl::string_view>()(word) & (kSlots - 1)];
  }

  void Trim() override {
    if (symbols.capacity() > kKeptSymbols) std::vector<Symbol>().swap(symbols);
    if (heap.capacity() > kKeptSymbols) std::vector<uint64_t>().swap(heap);
  }

  std::unique_ptr<Slot[]> slots;
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;  // rank << 32 | index of the left symbol
  // By an unused piece, the pair that it was last formed of.
  absl::flat_hash_map<int32_t, std::pair<int32_t, int32_t>> unused;
};

std::unique_ptr<TokenModel::Scratch> BpeModel::NewScratch() const { return std::make_unique<Scratch>(); }

const BpeModel::Merge* BpeModel::FindMerge(int32_t left, int32_t right) const {
  const uint64_t key = PairKey(left, right);
  for (uint64_t i = MixPair(key) & merge_mask_;; i = (i + 1) & merge_mask_) {
    if (merge_slots_[i].key == key) return &merge_slots_[i].merge;
    if (merge_slots_[i].key == kNoPair) return nullptr;
  }
}

void BpeModel::StartBytes(absl::string_view word, Scratch* scratch) const {
  for (char c : word) scratch->symbols.push_back({byte_ids_[static_cast<uint8_t>(c)], 0, 0, kNoRank, 0});
}

// As the tokenizers library does it, down to the order in which a pending unknown token comes out.
void BpeModel::StartCharacters(absl::string_view text, Scratch* scratch) const {
  bool pending_unk = false;
  const auto add = [&](int32_t id) { scratch->symbols.push_back({id, 0, 0, kNoRank, 0}); };
  for (size_t pos = 0; pos < text.size();) {
    const absl::string_view character = text.substr(pos, unicode::SequenceLength(text[pos]));
    pos += character.size();
    const auto it = vocabulary_.find(character);
    if (it != vocabulary_.end()) {
      if (pending_unk) add(*unk_id_);
      pending_unk = false;
      add(it->second);
      continue;
    }
    if (byte_fallback_) {
      int32_t ids[4];
      bool known = true;
      for (size_t i = 0; i < character.size(); ++i) {
        const auto byte = static_cast<uint8_t>(character[i]);
        if (byte_level_) {
          const auto token = vocabulary_.find(ByteFallbackToken(byte));
          ids[i] = token == vocabulary_.end() ? -1 : token->second;
        } else {
          ids[i] = byte_ids_[byte];
        }
        known = known && ids[i] >= 0;
      }
      if (known) {
        for (size_t i = 0; i < character.size(); ++i) add(ids[i]);
        continue;
      }
    }
    if (!unk_id_) continue;
    if (pending_unk && !fuse_unk_) add(*unk_id_);
    pending_unk = true;
  }
  if (pending_unk) add(*unk_id_);
}

void BpeModel::StartPieces(absl::string_view text, Scratch* scratch) const {
  scratch->unused.clear();
  for (size_t pos = 0; pos < text.size();) {
    const ByteTrie::Match whole = user_defined_.Longest(text, pos);
    if (whole.value >= 0) {
      scratch->symbols.push_back({whole.value, 0, 0, kNoRank, 0});
      pos += whole.length;
      continue;
    }
    const size_t length = unicode::SequenceLength(text[pos]);
    const auto it = characters_.find(text.substr(pos, length));
    scratch->symbols.push_back({it == characters_.end() ? kNoPiece : it->second, 0, 0, kNoRank, 0});
    pos += length;
  }
}

void BpeModel::MergeShort(Scratch* scratch) const {
  std::vector<Symbol>& s = scratch->symbols;
  size_t n = s.size();
  const auto set_merge = [&](size_t i) {
    const Merge* m = i + 1 < n ? FindMerge(s[i].id, s[i + 1].id) : nullptr;
    s[i].rank = m == nullptr ? kNoRank : m->rank;
    s[i].merged = m == nullptr ? 0 : m->merged;
    if (m != nullptr && has_unused_ && infos_[m->merged].kind == Piece::kUnused) {
      scratch->unused[m->merged] = {s[i].id, s[i + 1].id};
    }
  };
  for (size_t i = 0; i < n; ++i) set_merge(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (s[i].rank < s[best].rank) best = i;
    }
    if (s[best].rank == kNoRank) break;
    s[best].id = s[best].merged;
    std::copy(s.begin() + best + 2, s.begin() + n, s.begin() + best + 1);
    --n;
    if (best > 0) set_merge(best - 1);
    set_merge(best);
  }
  s.resize(n);
}

void BpeModel::MergeLong(Scratch* scratch) const {
  std::vector<Symbol>& s = scratch->symbols;
  std::vector<uint64_t>& heap = scratch->heap;
  const auto n = static_cast<int32_t>(s.size());
  heap.clear();
  const auto set_merge = [&](int32_t i) {
    const Merge* m = s[i].next < n ? FindMerge(s[i].id, s[s[i].next].id) : nullptr;
    s[i].rank = m == nullptr ? kNoRank : m->rank;
    s[i].merged = m == nullptr ? 0 : m->merged;
    if (m != nullptr && has_unused_ && infos_[m->merged].kind == Piece::kUnused) {
      scratch->unused[m->merged] = {s[i].id, s[s[i].next].id};
    }
    return m != nullptr;
  };
  const auto entry = [&](int32_t i) {
    return static_cast<uint64_t>(s[i].rank) << 32 | static_cast<uint32_t>(i);
  };
  for (int32_t i = 0; i < n; ++i) {
    s[i].prev = i - 1;
    s[i].next = i + 1;
  }
  for (int32_t i = 0; i < n; ++i) {
    if (set_merge(i)) heap.push_back(entry(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto i = static_cast<int32_t>(top & 0xFFFFFFFF);
    // Entries are not taken out when their pair changes; a stale one no longer has its symbol's rank.
    if (s[i].id == kRemoved || s[i].rank != top >> 32) continue;
    const int32_t right = s[i].next;
    s[i].id = s[i].merged;
    s[i].next = s[right].next;
    if (s[i].next < n) s[s[i].next].prev = i;
    s[right].id = kRemoved;
    const auto push = [&](int32_t k) {
      if (!set_merge(k)) return;
      heap.push_back(entry(k));
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    };
    if (s[i].prev >= 0) push(s[i].prev);
    push(i);
  }
  s.erase(std::remove_if(s.begin(), s.end(), [](const Symbol& x) { return x.id == kRemoved; }), s.end());
}

void BpeModel::AppendPieces(absl::string_view text, Scratch* scratch, std::vector<int32_t>* ids) const {
  size_t pos = 0;
  bool after_unknown = false;
  const auto append = [&](int32_t id, int depth, const auto& self) -> void {
    const bool known = id >= 0 && static_cast<size_t>(id) < infos_.size();
    const Piece::Kind kind = known ? infos_[id].kind : Piece::kNotInText;
    if (kind == Piece::kUnused && depth < kMaxUnusedDepth) {
      if (const auto it = scratch->unused.find(id); it != scratch->unused.end()) {
        const auto [left, right] = it->second;
        self(left, depth + 1, self);
        self(right, depth + 1, self);
        return;
      }
    }
    const size_t length = known ? infos_[id].length : unicode::SequenceLength(text[pos]);
    const absl::string_view part = text.substr(pos, length);
    pos += length;
    const bool found = kind == Piece::kNormal || kind == Piece::kUserDefined ||
                       (kind == Piece::kUnused && depth == kMaxUnusedDepth);
    if (found) {
      ids->push_back(id);
    } else if (byte_fallback_ && all_bytes_known_) {
      for (const char c : part) ids->push_back(byte_ids_[static_cast<uint8_t>(c)]);
    } else if (!after_unknown) {
      ids->push_back(*unk_id_);
    }
    after_unknown = !found;
  };
  for (const Symbol& symbol : scratch->symbols) append(symbol.id, 0, append);
}

absl::Status BpeModel::Encode(absl::string_view piece, size_t enough, TokenModel::Scratch* scratch,
                              std::vector<int32_t>* ids) const {
  auto* own = static_cast<Scratch*>(scratch);
  if (!words_begin_with_metaspace_) {
    EncodeWord(piece, own, ids);
    return absl::OkStatus();
  }
  for (size_t begin = 0; begin < piece.size() && ids->size() <= enough;) {
    // Behind the run of U+2581 that the word begins with, up to the next one.
    size_t end = begin;
    while (absl::StartsWith(piece.substr(end), kMetaspace)) end += kMetaspace.size();
    end = std::min(piece.find(kMetaspace, end), piece.size());
    EncodeWord(piece.substr(begin, end - begin), own, ids);
    begin = end;
  }
  return absl::OkStatus();
}

void BpeModel::EncodeWord(absl::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const {
  if (word.empty()) return;
  if (ignore_merges_) {
    const auto& words = byte_level_ ? whole_words_ : vocabulary_;
    if (const auto it = words.find(word); it != words.end()) {
      ids->push_back(it->second);
      return;
    }
  }
  Scratch::Slot* slot = nullptr;
  if (word.size() <= Scratch::kMaxKey) {
    slot = scratch->Find(word);
    if (slot->key_size == word.size() && std::memcmp(slot->key, word.data(), word.size()) == 0) {
      ids->insert(ids->end(), slot->ids, slot->ids + slot->id_count);
      return;
    }
  }
  scratch->symbols.clear();
  if (sentencepiece_) {
    StartPieces(word, scratch);
  } else if (!byte_level_) {
    StartCharacters(word, scratch);
  } else if (all_bytes_known_) {
    StartBytes(word, scratch);
  } else {
    StartCharacters(ByteLevelEncode(word), scratch);
  }
  if (scratch->symbols.size() <= kShortWord) {
    MergeShort(scratch);
  } else {
    MergeLong(scratch);
  }
  const size_t before = ids->size();
  if (sentencepiece_) {
    AppendPieces(word, scratch, ids);
  } else {
    for (const Symbol& symbol : scratch->symbols) ids->push_back(symbol.id);
  }
  const size_t count = ids->size() - before;
  if (slot != nullptr && count <= Scratch::kMaxIds) {
    slot->key_size = static_cast<uint8_t>(word.size());
    slot->id_count = static_cast<uint8_t>(count);
    std::memcpy(slot->key, word.data(), word.size());
    std::copy(ids->begin() + before, ids->end(), slot->ids);
  }
}

}  // namespace tessera
