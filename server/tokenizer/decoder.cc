#include "server/tokenizer/decoder.h"

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "server/status_macros.h"
#include "server/tokenizer/byte_level.h"
#include "server/tokenizer/pattern.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

constexpr int kMaxStrip = 1000;
constexpr absl::string_view kMetaspace = "\xE2\x96\x81";

// "<0x0A>", hexadecimal digits of either case.
bool IsByteToken(absl::string_view token, char* byte) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return false;
  const absl::string_view digits = token.substr(3, 2);
  if (!absl::ascii_isxdigit(digits[0]) || !absl::ascii_isxdigit(digits[1])) return false;
  *byte = absl::HexStringToBytes(digits)[0];
  return true;
}

void StripToken(const std::string& what, int left, int right, std::string* text) {
  while (left-- > 0 && absl::StartsWith(*text, what)) text->erase(0, what.size());
  while (right-- > 0 && absl::EndsWith(*text, what)) text->resize(text->size() - what.size());
}

}  // namespace

absl::StatusOr<Decoder> Decoder::FromJson(const JsonView& json) {
  Decoder decoder;
  if (json.is_null()) {
    decoder.joined_with_spaces_ = true;
    return decoder;
  }
  TESSERA_RETURN_IF_ERROR(decoder.Add(json));
  return decoder;
}

absl::Status Decoder::Add(const JsonView& json) {
  TESSERA_ASSIGN_OR_RETURN(const std::string kind, json.Kind());
  if (kind == "Sequence") {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, json["decoders"].Elements());
    for (const JsonView& element : elements) TESSERA_RETURN_IF_ERROR(Add(element));
    return absl::OkStatus();
  }
  if (kind == "Fuse") {
    fused_ = true;
    return absl::OkStatus();
  }
  if (kind == "Strip") {
    TESSERA_ASSIGN_OR_RETURN(std::string content, json["content"].String());
    if (unicode::CountCodePoints(content) != 1) return json["content"].Error("expected one character");
    TESSERA_ASSIGN_OR_RETURN(const int64_t left, json["start"].Int(0, kMaxStrip));
    TESSERA_ASSIGN_OR_RETURN(const int64_t right, json["stop"].Int(0, kMaxStrip));
    if (fused_) {
      if (right != 0) return json["stop"].Unsupported("stripping the end of the whole text");
      if (strip_count_ != 0) return json.Unsupported("a second Strip behind Fuse");
      strip_text_ = std::move(content);
      strip_count_ = static_cast<int>(left);
      return absl::OkStatus();
    }
    if (byte_fallback_) return json.Unsupported("Strip behind ByteFallback without Fuse between");
    steps_.push_back({Step::kStrip, std::move(content), "", static_cast<int>(left), static_cast<int>(right)});
    return absl::OkStatus();
  }
  if (fused_ || byte_fallback_) {
    return json.Unsupported(
        absl::StrCat("the decoder \"", kind, "\" behind ByteFallback, ByteLevel or Fuse"));
  }
  if (kind == "ByteLevel") {
    steps_.push_back({Step::kByteLevel, "", ""});
    byte_level_ = fused_ = true;
  } else if (kind == "ByteFallback") {
    steps_.push_back({Step::kByteFallback, "", ""});
    byte_fallback_ = true;
  } else if (kind == "Replace") {
    TESSERA_ASSIGN_OR_RETURN(Pattern pattern, PatternFromJson(json["pattern"]));
    if (pattern.literal.empty()) return json["pattern"].Unsupported("a regular expression in a decoder");
    TESSERA_ASSIGN_OR_RETURN(std::string content, json["content"].String());
    steps_.push_back({Step::kReplace, std::move(pattern.literal), std::move(content)});
  } else if (kind == "Metaspace") {
    TESSERA_ASSIGN_OR_RETURN(std::string replacement, json["replacement"].StringOr(kMetaspace));
    if (replacement.empty()) return json["replacement"].Error("the replacement is empty");
    TESSERA_ASSIGN_OR_RETURN(const bool add_prefix_space, json["add_prefix_space"].BoolOr(true));
    TESSERA_ASSIGN_OR_RETURN(const std::string scheme,
                             json["prepend_scheme"].StringOr(add_prefix_space ? "always" : "never"));
    Step step{Step::kMetaspace, std::move(replacement), " "};
    step.drop_first = scheme != "never";
    first_differs_ = first_differs_ || step.drop_first;
    steps_.push_back(std::move(step));
  } else {
    return json.Unsupported(absl::StrCat("the decoder \"", kind, "\""));
  }
  return absl::OkStatus();
}

Decoder Decoder::ForSentencePiece(Lead lead, std::string unk, std::string unk_surface) {
  Decoder decoder;
  decoder.sentencepiece_ = true;
  decoder.lead_ = lead;
  decoder.first_differs_ = lead != Lead::kKept;
  decoder.unk_ = std::move(unk);
  decoder.unk_surface_ = std::move(unk_surface);
  return decoder;
}

Decoder::Piece Decoder::DecodeSentencePiece(absl::string_view token, bool first) const {
  Piece piece;
  char byte;
  if (IsByteToken(token, &byte)) {
    piece.bytes.assign(1, byte);
    piece.is_byte = true;
    return piece;
  }
  if (token == unk_) {
    piece.bytes = unk_surface_;
    return piece;
  }
  const bool stripped = first && lead_ != Lead::kKept && absl::ConsumePrefix(&token, kMetaspace);
  piece.bytes = absl::StrReplaceAll(token, {{kMetaspace, " "}});
  piece.first_again = piece.bytes.empty() && !(stripped && lead_ == Lead::kOneSpace);
  return piece;
}

Decoder::Piece Decoder::Decode(absl::string_view token, bool first, bool added) const {
  if (sentencepiece_ && !added) return DecodeSentencePiece(token, first);
  Piece piece;
  piece.bytes.assign(token.data(), token.size());
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::kReplace:
        absl::StrReplaceAll({{step.from, step.to}}, &piece.bytes);
        break;
      case Step::kMetaspace:
        absl::StrReplaceAll({{step.from, first && step.drop_first ? "" : step.to}}, &piece.bytes);
        break;
      case Step::kStrip:
        StripToken(step.from, step.left, step.right, &piece.bytes);
        break;
      case Step::kByteFallback: {
        char byte;
        if (IsByteToken(piece.bytes, &byte)) {
          piece.bytes.assign(1, byte);
          piece.is_byte = true;
        }
        break;
      }
      case Step::kByteLevel: {
        std::string bytes;
        if (!added && ByteLevelDecode(piece.bytes, &bytes)) piece.bytes = std::move(bytes);
        break;
      }
    }
  }
  return piece;
}

}  // namespace tessera
