#include "server/tokenizer/bpe.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/tokenizer/byte_level.h"
#include "server/tokenizer/status_macros.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

constexpr uint64_t kNoPair = ~uint64_t{0};
constexpr uint32_t kNoRank = ~uint32_t{0};
constexpr int32_t kRemoved = -1;
// Up to this many symbols, looking through all of them for the best merge beats a heap.
constexpr size_t kShortWord = 40;
constexpr size_t kKeptSymbols = 1 << 16;

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t MixPair(uint64_t key) {
  key *= 0x9E3779B97F4A7C15u;
  return key ^ key >> 32;
}

// "<0x0A>"
std::string ByteFallbackToken(int byte) {
  return absl::StrCat("<0x", absl::AsciiStrToUpper(absl::StrCat(absl::Hex(byte, absl::kZeroPad2))), ">");
}

}  // namespace

struct BpeModel::Symbol {
  int32_t id;  // kRemoved once merged into its left neighbour
  int32_t prev, next;
  // The merge with the next symbol, if they merge.
  uint32_t rank;
  int32_t merged;
};

class BpeModel::Scratch {
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

  std::unique_ptr<Slot[]> slots;
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;  // rank << 32 | index of the left symbol
};

void BpeModel::ScratchDeleter::operator()(Scratch* scratch) const { delete scratch; }
BpeModel::ScratchPtr BpeModel::NewScratch() { return ScratchPtr(new Scratch); }

void BpeModel::TrimScratch(Scratch* scratch) {
  if (scratch->symbols.capacity() > kKeptSymbols) std::vector<Symbol>().swap(scratch->symbols);
  if (scratch->heap.capacity() > kKeptSymbols) std::vector<uint64_t>().swap(scratch->heap);
}

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::FromJson(const JsonView& json, bool byte_level) {
  auto model = std::make_unique<BpeModel>();
  model->byte_level_ = byte_level;
  if (!json["dropout"].is_null()) {
    const nlohmann::json& dropout = json["dropout"].json();
    if (!dropout.is_number()) return json["dropout"].Expected("a number or null");
    if (dropout.get<double>() != 0) return json["dropout"].Unsupported("a random choice of merges");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    TOKENIZER_ASSIGN_OR_RETURN(const std::string text, json[affix].StringOr(""));
    if (!text.empty()) return json[affix].Unsupported(absl::StrCat("the affix \"", text, "\""));
  }
  TOKENIZER_ASSIGN_OR_RETURN(model->byte_fallback_, json["byte_fallback"].BoolOr(false));
  TOKENIZER_ASSIGN_OR_RETURN(model->fuse_unk_, json["fuse_unk"].BoolOr(false));
  TOKENIZER_ASSIGN_OR_RETURN(model->ignore_merges_, json["ignore_merges"].BoolOr(false));
  TOKENIZER_RETURN_IF_ERROR(model->ReadVocabulary(json["vocab"]));
  TOKENIZER_RETURN_IF_ERROR(model->ReadMerges(json["merges"]));
  TOKENIZER_ASSIGN_OR_RETURN(const std::string unk, json["unk_token"].StringOr(""));
  if (!unk.empty()) {
    const auto it = model->vocabulary_.find(unk);
    if (it == model->vocabulary_.end()) {
      return json["unk_token"].Error(absl::StrCat("\"", unk, "\" is not in the vocabulary"));
    }
    model->unk_id_ = it->second;
  }
  return model;
}

absl::Status BpeModel::ReadVocabulary(const JsonView& json) {
  TOKENIZER_RETURN_IF_ERROR(json.ExpectObject());
  vocabulary_.reserve(json.json().size());
  absl::flat_hash_map<int32_t, absl::string_view> by_id;
  by_id.reserve(json.json().size());
  for (const auto& [token, id] : json.json().items()) {
    const auto value = JsonView(id, absl::StrCat(json.path(), "[\"", token, "\"]")).Int(0, kMaxTokenId);
    if (!value.ok()) return value.status();
    const auto [it, inserted] = vocabulary_.emplace(token, static_cast<int32_t>(*value));
    const auto [other, unique] = by_id.emplace(it->second, absl::string_view(token));
    if (!unique) {
      return json.Error(
          absl::StrCat("the tokens \"", other->second, "\" and \"", token, "\" have the same id ", *value));
    }
  }
  all_bytes_known_ = true;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    const auto it =
        vocabulary_.find(byte_level_ ? ByteLevelEncode(absl::string_view(&byte, 1)) : ByteFallbackToken(b));
    byte_ids_[b] = it == vocabulary_.end() ? -1 : it->second;
    all_bytes_known_ = all_bytes_known_ && byte_ids_[b] >= 0;
  }
  if (byte_level_ && ignore_merges_) {
    std::string bytes;
    for (const auto& [token, id] : vocabulary_) {
      if (ByteLevelDecode(token, &bytes)) whole_words_.emplace(bytes, id);
    }
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ReadMerges(const JsonView& json) {
  if (!json.json().is_array()) return json.Expected("an array");
  absl::flat_hash_map<uint64_t, Merge> merges;
  merges.reserve(json.json().size());
  uint32_t rank = 0;
  for (size_t i = 0; i < json.json().size(); ++i) {
    const nlohmann::json& entry = json.json()[i];
    const auto error = [&](absl::string_view message) {
      return JsonView(entry, absl::StrCat(json.path(), "[", i, "]")).Error(message);
    };
    std::string left, right;
    if (entry.is_string()) {
      const std::string& text = entry.get_ref<const std::string&>();
      if (i == 0 && absl::StartsWith(text, "#version")) continue;
      const std::vector<absl::string_view> parts = absl::StrSplit(text, ' ');
      if (parts.size() != 2)
        return error(absl::StrCat("expected two tokens with a space between, found \"", text, "\""));
      left = std::string(parts[0]);
      right = std::string(parts[1]);
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
      left = entry[0].get<std::string>();
      right = entry[1].get<std::string>();
    } else {
      return error("expected \"left right\" or [\"left\", \"right\"]");
    }
    int32_t ids[3];
    const std::string tokens[3] = {left, right, left + right};
    for (int k = 0; k < 3; ++k) {
      const auto it = vocabulary_.find(tokens[k]);
      if (it == vocabulary_.end())
        return error(absl::StrCat("the token \"", tokens[k], "\" is not in the vocabulary"));
      ids[k] = it->second;
    }
    // A pair that is listed twice counts where it stands last, as in a map that is filled in order.
    merges[PairKey(ids[0], ids[1])] = Merge{rank++, ids[2]};
  }
  BuildMergeTable(merges);
  return absl::OkStatus();
}

void BpeModel::BuildMergeTable(const absl::flat_hash_map<uint64_t, Merge>& merges) {
  size_t slots = 16;
  while (slots < merges.size() * 2) slots *= 2;
  merge_slots_.assign(slots, MergeSlot{kNoPair, {}});
  merge_mask_ = slots - 1;
  for (const auto& [key, merge] : merges) {
    uint64_t i = MixPair(key) & merge_mask_;
    while (merge_slots_[i].key != kNoPair) i = (i + 1) & merge_mask_;
    merge_slots_[i] = {key, merge};
  }
}

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

void BpeModel::MergeShort(Scratch* scratch) const {
  std::vector<Symbol>& s = scratch->symbols;
  size_t n = s.size();
  const auto set_merge = [&](size_t i) {
    const Merge* m = i + 1 < n ? FindMerge(s[i].id, s[i + 1].id) : nullptr;
    s[i].rank = m == nullptr ? kNoRank : m->rank;
    s[i].merged = m == nullptr ? 0 : m->merged;
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
    set_merge(best);
    if (best > 0) set_merge(best - 1);
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
    push(i);
    if (s[i].prev >= 0) push(s[i].prev);
  }
  s.erase(std::remove_if(s.begin(), s.end(), [](const Symbol& x) { return x.id == kRemoved; }), s.end());
}

void BpeModel::Encode(absl::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const {
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
  if (!byte_level_) {
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
  for (const Symbol& symbol : scratch->symbols) ids->push_back(symbol.id);
  const size_t count = ids->size() - before;
  if (slot != nullptr && count <= Scratch::kMaxIds) {
    slot->key_size = static_cast<uint8_t>(word.size());
    slot->id_count = static_cast<uint8_t>(count);
    std::memcpy(slot->key, word.data(), word.size());
    std::copy(ids->begin() + before, ids->end(), slot->ids);
  }
}

}  // namespace tessera
