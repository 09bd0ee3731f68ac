#include "server/tokenizer/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

// What the libraries take off the lowest score of a piece for an unknown character.
constexpr double kUnkPenalty = 10.0;
constexpr size_t kKeptNodes = 1 << 16;
// Beyond it the SentencePiece library counts sums in single precision from zero again, as their last digits get lost.
constexpr double kLargestSum = 100000.0;

// The best way to cut the text up to some byte: its last token and the sum of its scores.
struct Node {
  double sum;
  int32_t id;
  uint32_t length;  // of the last token; 0: no way has been found
};

struct UnigramScratch final : TokenModel::Scratch {
  std::vector<Node> nodes;
  void Trim() override {
    if (nodes.capacity() > kKeptNodes) std::vector<Node>().swap(nodes);
  }
};

constexpr int32_t kUnknown = -1;
// Bytes of a piece behind which its ids are appended as soon as they are certain.
constexpr size_t kAppendAtOnce = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<UnigramModel>> UnigramModel::FromJson(
    const JsonView& json, const absl::flat_hash_set<std::string>& never_in_text) {
  const JsonView vocab = json["vocab"];
  if (!vocab.json().is_array()) return vocab.Expected("an array");
  if (vocab.json().size() > static_cast<size_t>(kMaxTokenId)) return vocab.Error("too many tokens");
  std::vector<Piece> pieces;
  pieces.reserve(vocab.json().size());
  absl::flat_hash_set<absl::string_view> seen;
  Options options;
  double lowest = std::numeric_limits<double>::infinity();
  for (const nlohmann::json& entry : vocab.json()) {
    const auto error = [&](absl::string_view message) {
      return JsonView(entry, absl::StrCat(vocab.path(), "[", pieces.size(), "]")).Error(message);
    };
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      return error("expected [\"token\", score]");
    const std::string& text = entry[0].get_ref<const std::string&>();
    const double score = entry[1].get<double>();
    if (!std::isfinite(score)) return error("the score is not finite");
    if (!seen.insert(text).second) return error(absl::StrCat("the token \"", text, "\" is there twice"));
    lowest = std::min(lowest, score);
    pieces.push_back({text, score, !never_in_text.contains(text)});
  }
  int64_t unk_id = -1;
  if (!json["unk_id"].is_null()) {
    if (pieces.empty()) return vocab.Error("the vocabulary is empty");
    TESSERA_ASSIGN_OR_RETURN(unk_id, json["unk_id"].Int(0, static_cast<int64_t>(pieces.size()) - 1));
  }
  options.unk_score = lowest - kUnkPenalty;
  TESSERA_ASSIGN_OR_RETURN(options.byte_fallback, json["byte_fallback"].BoolOr(false));
  return Create(std::move(pieces), static_cast<int32_t>(unk_id), options);
}

std::unique_ptr<UnigramModel> UnigramModel::Create(std::vector<Piece> pieces, int32_t unk_id,
                                                   const Options& options) {
  auto model = std::make_unique<UnigramModel>();
  model->options_ = options;
  if (unk_id >= 0) model->unk_id_ = unk_id;
  size_t longest = 1;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (pieces[i].in_text && !pieces[i].text.empty()) {
      model->trie_.Insert(pieces[i].text, id);
      longest = std::max(longest, pieces[i].text.size());
    }
    model->scores_.push_back(pieces[i].score);
    model->vocabulary_.emplace(std::move(pieces[i].text), id);
  }
  bool all_bytes = options.byte_fallback;
  for (int b = 0; b < 256; ++b) {
    const auto it = model->vocabulary_.find(ByteFallbackToken(static_cast<uint8_t>(b)));
    model->byte_ids_[b] = it == model->vocabulary_.end() ? -1 : it->second;
    all_bytes = all_bytes && model->byte_ids_[b] >= 0;
  }
  if (all_bytes || !options.fuse_unk) model->max_token_bytes_ = std::max<size_t>(longest, 4);
  return model;
}

std::unique_ptr<TokenModel::Scratch> UnigramModel::NewScratch() const {
  return std::make_unique<UnigramScratch>();
}

void UnigramModel::AppendUnknown(absl::string_view text, std::vector<int32_t>* ids) const {
  if (options_.byte_fallback) {
    const size_t before = ids->size();
    bool known = true;
    for (const char c : text) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      known = known && id >= 0;
      ids->push_back(id);
    }
    if (known) return;
    ids->resize(before);
  }
  ids->push_back(*unk_id_);
}

void UnigramModel::AppendBestPath(absl::string_view piece, size_t begin, size_t end, const Scratch& scratch,
                                  std::vector<int32_t>* ids) const {
  const std::vector<Node>& nodes = static_cast<const UnigramScratch&>(scratch).nodes;
  // Backwards, so that what is appended is in the wrong order at first.
  const size_t before = ids->size();
  const auto append_unknown = [&](size_t first, size_t last) {
    const size_t start = ids->size();
    AppendUnknown(piece.substr(first, last - first), ids);
    std::reverse(ids->begin() + start, ids->end());
  };
  size_t unknown_end = 0;  // 0: no run of unknown characters is open
  for (size_t at = end; at > begin; at -= nodes[at].length) {
    const Node& node = nodes[at];
    if (IsUnknown(node.id) && options_.fuse_unk) {
      if (unknown_end == 0) unknown_end = at;
      continue;
    }
    if (unknown_end != 0) append_unknown(at, unknown_end);
    unknown_end = 0;
    if (IsUnknown(node.id)) {
      append_unknown(at - node.length, at);
    } else {
      ids->push_back(node.id);
    }
  }
  if (unknown_end != 0) append_unknown(begin, unknown_end);
  std::reverse(ids->begin() + before, ids->end());
}

template <typename Sum>
absl::Status UnigramModel::Search(absl::string_view piece, size_t enough, Scratch* scratch,
                                  std::vector<int32_t>* ids) const {
  std::vector<Node>& nodes = static_cast<UnigramScratch*>(scratch)->nodes;
  nodes.clear();
  size_t frontier = 0;  // how far ways have been found
  const auto offer = [&](size_t end, double sum, int32_t id, size_t length) {
    frontier = std::max(frontier, end);
    if (nodes.size() <= end) nodes.resize(end + 1, Node{0, kUnknown, 0});
    Node& node = nodes[end];
    const auto rounded = static_cast<Sum>(sum);
    if (node.length != 0 && !(rounded > node.sum)) return;
    node = {rounded, id, static_cast<uint32_t>(length)};
  };
  offer(0, 0, kUnknown, 0);
  size_t done = 0;  // the ids up to here are appended
  for (size_t pos = 0; pos < piece.size();) {
    // Where every way passes, and no run of unknown characters goes on, what comes later changes nothing before.
    if (frontier == pos && pos - done >= kAppendAtOnce && !IsUnknown(nodes[pos].id)) {
      AppendBestPath(piece, done, pos, *scratch, ids);
      done = pos;
      if (ids->size() > enough) return absl::OkStatus();
    }
    if (options_.single_precision && std::abs(nodes[pos].sum) > kLargestSum) {
      const double offset = nodes[pos].sum;
      for (size_t i = pos; i <= frontier; ++i) nodes[i].sum = static_cast<Sum>(nodes[i].sum - offset);
    }
    const double so_far = nodes[pos].sum;
    const size_t character = unicode::SequenceLength(piece[pos]);
    bool known = false;
    trie_.ForEachPrefix(piece, pos, [&](size_t length, int32_t id) {
      offer(pos + length, scores_[id] + so_far, id, length);
      known = known || length == character;
    });
    if (!known) {
      if (!unk_id_) {
        return absl::InvalidArgumentError(absl::StrCat("the model has neither a token for the character \"",
                                                       piece.substr(pos, character),
                                                       "\" nor one for unknown characters"));
      }
      offer(pos + character, static_cast<Sum>(options_.unk_score) + so_far, kUnknown, character);
    }
    pos += character;
  }
  AppendBestPath(piece, done, piece.size(), *scratch, ids);
  return absl::OkStatus();
}

absl::Status UnigramModel::Encode(absl::string_view piece, size_t enough, Scratch* scratch,
                                  std::vector<int32_t>* ids) const {
  return options_.single_precision ? Search<float>(piece, enough, scratch, ids)
                                   : Search<double>(piece, enough, scratch, ids);
}

}  // namespace tessera
