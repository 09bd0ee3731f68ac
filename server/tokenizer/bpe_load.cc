// Making a BPE model from tokenizer.json, and from the pieces of a SentencePiece file.
#include <algorithm>
#include <functional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/status_macros.h"
#include "server/tokenizer/bpe.h"
#include "server/tokenizer/byte_level.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

// All ways to cut a piece in two are looked up.
constexpr size_t kMaxPieceBytes = 1024;
constexpr absl::string_view kMetaspace = "\xE2\x96\x81";

// Whether a token of these two has U+2581 behind another character just where they meet.
bool CrossesMetaspace(absl::string_view left, absl::string_view right) {
  return absl::StartsWith(right, kMetaspace) && !absl::EndsWith(left, kMetaspace);
}

// The same anywhere in a text.
bool HasInnerMetaspace(absl::string_view text) {
  size_t run = 0;
  while (absl::StartsWith(text.substr(run), kMetaspace)) run += kMetaspace.size();
  return absl::StrContains(text.substr(run), kMetaspace);
}

}  // namespace

std::string ByteFallbackToken(uint8_t byte) {
  return absl::StrCat("<0x", absl::AsciiStrToUpper(absl::StrCat(absl::Hex(byte, absl::kZeroPad2))), ">");
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
    TESSERA_ASSIGN_OR_RETURN(const std::string text, json[affix].StringOr(""));
    if (!text.empty()) return json[affix].Unsupported(absl::StrCat("the affix \"", text, "\""));
  }
  TESSERA_ASSIGN_OR_RETURN(model->byte_fallback_, json["byte_fallback"].BoolOr(false));
  TESSERA_ASSIGN_OR_RETURN(model->fuse_unk_, json["fuse_unk"].BoolOr(false));
  TESSERA_ASSIGN_OR_RETURN(model->ignore_merges_, json["ignore_merges"].BoolOr(false));
  TESSERA_RETURN_IF_ERROR(model->ReadVocabulary(json["vocab"]));
  TESSERA_RETURN_IF_ERROR(model->ReadMerges(json["merges"]));
  TESSERA_ASSIGN_OR_RETURN(const std::string unk, json["unk_token"].StringOr(""));
  if (!unk.empty()) {
    const auto it = model->vocabulary_.find(unk);
    if (it == model->vocabulary_.end()) {
      return json["unk_token"].Error(absl::StrCat("\"", unk, "\" is not in the vocabulary"));
    }
    model->unk_id_ = it->second;
  }
  model->BoundTokenLength();
  return model;
}

absl::Status BpeModel::ReadVocabulary(const JsonView& json) {
  TESSERA_RETURN_IF_ERROR(json.ExpectObject());
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
  FindByteTokens();
  if (byte_level_ && ignore_merges_) {
    std::string bytes;
    for (const auto& [token, id] : vocabulary_) {
      if (ByteLevelDecode(token, &bytes)) whole_words_.emplace(bytes, id);
    }
  }
  return absl::OkStatus();
}

void BpeModel::FindByteTokens() {
  all_bytes_known_ = true;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    const auto it = vocabulary_.find(byte_level_ ? ByteLevelEncode(absl::string_view(&byte, 1))
                                                 : ByteFallbackToken(static_cast<uint8_t>(b)));
    byte_ids_[b] = it == vocabulary_.end() ? -1 : it->second;
    all_bytes_known_ = all_bytes_known_ && byte_ids_[b] >= 0;
  }
}

absl::Status BpeModel::ReadMerges(const JsonView& json) {
  if (!json.json().is_array()) return json.Expected("an array");
  absl::flat_hash_map<uint64_t, Merge> merges;
  merges.reserve(json.json().size());
  uint32_t rank = 0;
  words_begin_with_metaspace_ = !byte_level_ && !ignore_merges_ && vocabulary_.contains(kMetaspace);
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
    if (CrossesMetaspace(left, right)) words_begin_with_metaspace_ = false;
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

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::FromPieces(std::vector<Piece> pieces, int32_t unk_id,
                                                               bool byte_fallback) {
  auto model = std::make_unique<BpeModel>();
  model->sentencepiece_ = true;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if ((pieces[i].kind != Piece::kNormal && pieces[i].kind != Piece::kUnused) ||
        pieces[i].text.size() <= kMaxPieceBytes)
      continue;
    return absl::InvalidArgumentError(absl::StrCat("piece ", i, ": found ", pieces[i].text.size(),
                                                   " bytes, expected at most ", kMaxPieceBytes));
  }
  model->fuse_unk_ = true;
  model->unk_id_ = unk_id;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const auto id = static_cast<int32_t>(i);
    model->vocabulary_.emplace(piece.text, id);
    model->infos_.push_back({static_cast<uint32_t>(piece.text.size()), piece.kind});
    model->has_unused_ = model->has_unused_ || piece.kind == Piece::kUnused;
    if (piece.kind == Piece::kUserDefined) model->user_defined_.Insert(piece.text, id);
    const bool character = piece.text.size() == unicode::SequenceLength(piece.text[0]);
    if (character && (piece.kind == Piece::kNormal || piece.kind == Piece::kUnused)) {
      model->characters_.emplace(piece.text, id);
    }
  }
  model->FindByteTokens();
  model->byte_fallback_ = byte_fallback;
  const auto space = model->vocabulary_.find(kMetaspace);
  model->words_begin_with_metaspace_ =
      space != model->vocabulary_.end() && pieces[space->second].kind == Piece::kNormal;
  for (const Piece& piece : pieces) {
    if (piece.kind != Piece::kNotInText && HasInnerMetaspace(piece.text))
      model->words_begin_with_metaspace_ = false;
  }
  absl::flat_hash_map<uint64_t, Merge> merges;
  model->AddPieceMerges(pieces, &merges);
  model->BuildMergeTable(merges);
  model->BoundTokenLength();
  return model;
}

void BpeModel::AddPieceMerges(const std::vector<Piece>& pieces,
                              absl::flat_hash_map<uint64_t, Merge>* merges) {
  const auto merges_into = [](const Piece& p) {
    return p.kind == Piece::kNormal || p.kind == Piece::kUnused;
  };
  // Equal scores have equal ranks: then the leftmost pair goes first.
  std::vector<float> scores;
  for (const Piece& p : pieces) {
    if (merges_into(p)) scores.push_back(p.score);
  }
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  const auto symbol = [&](absl::string_view text) -> int32_t {
    if (text.size() == unicode::SequenceLength(text[0])) {
      const auto [it, inserted] = characters_.emplace(std::string(text), static_cast<int32_t>(infos_.size()));
      if (inserted) infos_.push_back({static_cast<uint32_t>(text.size()), Piece::kNotInText});
      return it->second;
    }
    const auto it = vocabulary_.find(text);
    return it != vocabulary_.end() && merges_into(pieces[it->second]) ? it->second : -1;
  };
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!merges_into(pieces[i])) continue;
    const absl::string_view text = pieces[i].text;
    const auto rank = static_cast<uint32_t>(
        std::lower_bound(scores.begin(), scores.end(), pieces[i].score, std::greater<>()) - scores.begin());
    for (size_t cut = unicode::SequenceLength(text[0]); cut < text.size();
         cut += unicode::SequenceLength(text[cut])) {
      const int32_t left = symbol(text.substr(0, cut)), right = symbol(text.substr(cut));
      if (left >= 0 && right >= 0)
        merges->emplace(PairKey(left, right), Merge{rank, static_cast<int32_t>(i)});
    }
  }
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

void BpeModel::BoundTokenLength() {
  const bool nothing_lost =
      byte_level_ || byte_fallback_ ? all_bytes_known_ : unk_id_.has_value() && !fuse_unk_;
  if (!nothing_lost) return;
  max_token_bytes_ = 4;  // an unknown character
  for (const auto& [token, id] : vocabulary_) {
    max_token_bytes_ =
        std::max(max_token_bytes_, byte_level_ ? unicode::CountCodePoints(token) : token.size());
  }
}

}  // namespace tessera
