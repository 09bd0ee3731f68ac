// Reading a tokenizer from a SentencePiece file. The library of that name is not used: it aborts on some files and reads
// beyond the arrays of others, it knows nothing of which parts of a text are trusted, and its models are those of
// tokenizer.json anyway.
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/status_macros.h"
#include "server/tokenizer/bpe.h"
#include "server/tokenizer/sentencepiece.pb.h"
#include "server/tokenizer/sentencepiece_normalizer.h"
#include "server/tokenizer/tokenizer_impl.h"
#include "server/tokenizer/unicode.h"
#include "server/tokenizer/unigram.h"

namespace tessera {
namespace {

using Proto = sentencepiece::Model;

// What the library takes off the lowest score for an unknown character.
constexpr float kUnkPenalty = 10.0f;

// "IQ== 0": the other kind of file that goes by the name of tokenizer.model.
bool LooksLikeTiktoken(absl::string_view file) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(file.substr(0, std::min(file.find('\n'), file.size())), ' ');
  std::string bytes;
  int64_t rank;
  return words.size() == 2 && absl::Base64Unescape(words[0], &bytes) && absl::SimpleAtoi(words[1], &rank);
}

absl::Status PieceError(int id, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("piece ", id, ": ", message));
}

// Fails unless the pieces can be a vocabulary; gives the id of the unknown piece.
absl::StatusOr<int32_t> CheckPieces(const Proto& proto) {
  if (proto.pieces_size() > kMaxTokenId) {
    return absl::InvalidArgumentError(
        absl::StrCat("found ", proto.pieces_size(), " pieces, expected at most ", kMaxTokenId));
  }
  int32_t unk_id = -1;
  absl::flat_hash_map<absl::string_view, int> seen;
  for (int i = 0; i < proto.pieces_size(); ++i) {
    const Proto::Piece& piece = proto.pieces(i);
    if (piece.piece().empty()) return PieceError(i, "it is empty");
    if (unicode::FindInvalid(piece.piece()) != absl::string_view::npos)
      return PieceError(i, "not valid UTF-8");
    if (!std::isfinite(piece.score())) return PieceError(i, "its score is not finite");
    if (const auto [it, inserted] = seen.emplace(piece.piece(), i); !inserted) {
      return PieceError(i, absl::StrCat("\"", piece.piece(), "\" is piece ", it->second, " too"));
    }
    if (piece.type() != Proto::Piece::UNKNOWN) continue;
    if (unk_id >= 0) return PieceError(i, absl::StrCat("piece ", unk_id, " is of type UNKNOWN too"));
    unk_id = i;
  }
  if (unk_id < 0) return absl::InvalidArgumentError("no piece is of type UNKNOWN");
  if (proto.trainer().byte_fallback()) {
    for (int b = 0; b < 256; ++b) {
      const auto it = seen.find(ByteFallbackToken(static_cast<uint8_t>(b)));
      if (it == seen.end() || proto.pieces(it->second).type() != Proto::Piece::BYTE) {
        return absl::InvalidArgumentError(
            absl::StrCat("byte_fallback is set, but no piece of type BYTE is \"",
                         ByteFallbackToken(static_cast<uint8_t>(b)), "\""));
      }
    }
  }
  return unk_id;
}

std::unique_ptr<TokenModel> MakeUnigram(const Proto& proto, int32_t unk_id) {
  float lowest = std::numeric_limits<float>::max();
  for (const Proto::Piece& p : proto.pieces()) {
    if (p.type() == Proto::Piece::NORMAL) lowest = std::min(lowest, p.score());
  }
  std::vector<UnigramModel::Piece> pieces;
  for (const Proto::Piece& p : proto.pieces()) {
    UnigramModel::Piece piece{p.piece(), p.score(), p.type() == Proto::Piece::NORMAL};
    if (p.type() == Proto::Piece::USER_DEFINED) {
      // More than any way to cut it into pieces, whose scores are logarithms of probabilities.
      piece.score = static_cast<float>(0.1 * static_cast<double>(p.piece().size() - 1));
      piece.in_text = true;
    }
    pieces.push_back(std::move(piece));
  }
  UnigramModel::Options options;
  options.single_precision = true;
  options.byte_fallback = proto.trainer().byte_fallback();
  options.unk_score = lowest - kUnkPenalty;
  return UnigramModel::Create(std::move(pieces), unk_id, options);
}

absl::StatusOr<std::unique_ptr<TokenModel>> MakeBpe(const Proto& proto, int32_t unk_id) {
  std::vector<BpeModel::Piece> pieces;
  for (const Proto::Piece& p : proto.pieces()) {
    BpeModel::Piece piece{p.piece(), p.score(), BpeModel::Piece::kNotInText};
    if (p.type() == Proto::Piece::NORMAL) piece.kind = BpeModel::Piece::kNormal;
    if (p.type() == Proto::Piece::USER_DEFINED) piece.kind = BpeModel::Piece::kUserDefined;
    if (p.type() == Proto::Piece::UNUSED) piece.kind = BpeModel::Piece::kUnused;
    pieces.push_back(std::move(piece));
  }
  return BpeModel::FromPieces(std::move(pieces), unk_id, proto.trainer().byte_fallback());
}

}  // namespace

absl::Status Tokenizer::Impl::ReadSentencePiece(absl::string_view file, const JsonView& config) {
  Proto proto;
  const bool parsed = proto.ParseFromArray(file.data(), static_cast<int>(file.size()));
  if (!parsed || proto.pieces().empty()) {
    if (LooksLikeTiktoken(file)) {
      return absl::UnimplementedError(
          "a vocabulary in tiktoken's format is not supported; expected a SentencePiece model, or a "
          "tokenizer.json");
    }
    return absl::InvalidArgumentError("not a SentencePiece model");
  }
  TESSERA_ASSIGN_OR_RETURN(const int32_t unk_id, CheckPieces(proto));
  switch (proto.trainer().model_type()) {
    case Proto::Trainer::UNIGRAM:
      model = MakeUnigram(proto, unk_id);
      break;
    case Proto::Trainer::BPE: {
      TESSERA_ASSIGN_OR_RETURN(model, MakeBpe(proto, unk_id));
      break;
    }
    default:
      return absl::UnimplementedError(
          absl::StrCat("the model type ", Proto::Trainer::ModelType_Name(proto.trainer().model_type()),
                       " is not supported; expected UNIGRAM or BPE"));
  }
  if (!proto.denormalizer().precompiled_charsmap().empty()) {
    return absl::UnimplementedError("a denormalizer is not supported");
  }

  SentencePieceNormalization normalization;
  TESSERA_ASSIGN_OR_RETURN(normalization.charsmap,
                           Charsmap::Parse(proto.normalizer().precompiled_charsmap()));
  for (int i = 0; i < proto.pieces_size(); ++i) {
    if (proto.pieces(i).type() == Proto::Piece::USER_DEFINED)
      normalization.user_defined.Insert(proto.pieces(i).piece(), i);
  }
  normalization.remove_extra_whitespaces = proto.normalizer().remove_extra_whitespaces();
  normalization.add_dummy_prefix = proto.normalizer().add_dummy_prefix();
  normalization.escape_whitespaces = proto.normalizer().escape_whitespaces();
  normalization.whitespace_as_suffix = proto.trainer().treat_whitespace_as_suffix();
  TESSERA_ASSIGN_OR_RETURN(const bool legacy, config["legacy"].BoolOr(true));
  normalization.prefix_at_start_only = !legacy;
  const Decoder::Lead lead = proto.normalizer().remove_extra_whitespaces() ? Decoder::Lead::kAllSpaces
                             : proto.normalizer().add_dummy_prefix()       ? Decoder::Lead::kOneSpace
                                                                           : Decoder::Lead::kKept;
  normalizer = MakeSentencePieceNormalizer(std::move(normalization));
  decoder = Decoder::ForSentencePiece(lead, proto.pieces(unk_id).piece(), proto.trainer().unk_surface());

  std::vector<AddedToken> added;
  for (int i = 0; i < proto.pieces_size(); ++i) {
    if (proto.pieces(i).type() != Proto::Piece::CONTROL) continue;
    added.push_back({.id = i, .content = proto.pieces(i).piece(), .special = true});
  }
  TESSERA_RETURN_IF_ERROR(MergeAddedTokens(config["added_tokens_decoder"], unk_id, &added));
  TESSERA_RETURN_IF_ERROR(AddTokens(added, config["added_tokens_decoder"]));

  const auto control = [&](int32_t id) {
    return id >= 0 && id < proto.pieces_size() && proto.pieces(id).type() == Proto::Piece::CONTROL;
  };
  const Proto::Trainer& trainer = proto.trainer();
  TESSERA_ASSIGN_OR_RETURN(const bool add_bos, config["add_bos_token"].BoolOr(true));
  TESSERA_ASSIGN_OR_RETURN(const bool add_eos, config["add_eos_token"].BoolOr(false));
  // tokenizer_config.json may name others.
  if (control(trainer.bos_id())) bos_id = trainer.bos_id();
  if (control(trainer.eos_id())) eos_id = trainer.eos_id();
  if (control(trainer.pad_id())) pad_id = trainer.pad_id();
  if (add_bos && bos_id) post_processor.before = {*bos_id};
  if (add_eos && eos_id) post_processor.after = {*eos_id};
  return absl::OkStatus();
}

}  // namespace tessera
