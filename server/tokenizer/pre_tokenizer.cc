#include "server/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/tokenizer/pattern.h"
#include "server/tokenizer/regex.h"
#include "server/tokenizer/status_macros.h"

namespace tessera {
namespace {

// GPT-2's, which ByteLevel has built in.
constexpr absl::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kWordsPattern =
    "[" TESSERA_REGEX_RUST_WORD R"(]+|[^\s)" TESSERA_REGEX_RUST_WORD "]+";
constexpr absl::string_view kPunctuationPattern = R"([!-/:-@\[-`{-~\p{P}])";

// What becomes of the matches.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

absl::StatusOr<Behavior> BehaviorFromJson(const JsonView& json, absl::string_view absent) {
  TOKENIZER_ASSIGN_OR_RETURN(const std::string name, json.StringOr(absent));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return json.Unsupported(absl::StrCat("the behavior \"", name, "\""));
}

// A stretch of the text that matches, or that lies between matches.
struct Stretch {
  ByteRange range;
  bool is_match;
};

void Join(const std::vector<Stretch>& stretches, Behavior behavior, std::vector<ByteRange>* out) {
  bool previous = false;
  switch (behavior) {
    case Behavior::kRemoved:
      for (const Stretch& s : stretches) {
        if (!s.is_match) out->push_back(s.range);
      }
      return;
    case Behavior::kIsolated:
      for (const Stretch& s : stretches) out->push_back(s.range);
      return;
    case Behavior::kMergedWithPrevious:
      for (const Stretch& s : stretches) {
        if (s.is_match && !previous && !out->empty()) {
          out->back().end = s.range.end;
        } else {
          out->push_back(s.range);
        }
        previous = s.is_match;
      }
      return;
    case Behavior::kMergedWithNext:
      for (auto s = stretches.rbegin(); s != stretches.rend(); ++s) {
        if (s->is_match && !previous && !out->empty()) {
          out->back().begin = s->range.begin;
        } else {
          out->push_back(s->range);
        }
        previous = s->is_match;
      }
      std::reverse(out->begin(), out->end());
      return;
    case Behavior::kContiguous:
      for (const Stretch& s : stretches) {
        if (s.is_match == previous && !out->empty()) {
          out->back().end = s.range.end;
        } else {
          out->push_back(s.range);
        }
        previous = s.is_match;
      }
      return;
  }
}

class Splitter {
 public:
  Splitter(Regex pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  absl::Status Split(const Piece& piece, std::vector<Piece>* out) const {
    const auto emit = [&](ByteRange r) {
      if (r.begin < r.end) {
        out->push_back({piece.text.substr(r.begin, r.end - r.begin), piece.at_start && r.begin == 0});
      }
    };
    size_t done = 0;
    if (behavior_ == Behavior::kIsolated) {  // by far the most frequent, and needs no list
      TOKENIZER_RETURN_IF_ERROR(pattern_.FindAll(piece.text, [&](ByteRange r) {
        emit({done, r.begin});
        emit(r);
        done = r.end;
      }));
      emit({done, piece.text.size()});
      return absl::OkStatus();
    }
    std::vector<Stretch> stretches;
    TOKENIZER_RETURN_IF_ERROR(pattern_.FindAll(piece.text, [&](ByteRange r) {
      if (done != r.begin) stretches.push_back({{done, r.begin}, invert_});
      stretches.push_back({r, !invert_});
      done = r.end;
    }));
    if (done != piece.text.size()) stretches.push_back({{done, piece.text.size()}, invert_});
    std::vector<ByteRange> ranges;
    Join(stretches, behavior_, &ranges);
    for (const ByteRange& r : ranges) emit(r);
    return absl::OkStatus();
  }

 private:
  Regex pattern_;
  Behavior behavior_;
  bool invert_;
};

class SplitPreTokenizer final : public PreTokenizer {
 public:
  explicit SplitPreTokenizer(Splitter splitter) : splitter_(std::move(splitter)) {}
  absl::Status Apply(Pieces* pieces) const override {
    std::vector<Piece> out;
    out.reserve(pieces->list.size() * 2);
    for (const Piece& piece : pieces->list) TOKENIZER_RETURN_IF_ERROR(splitter_.Split(piece, &out));
    pieces->list = std::move(out);
    return absl::OkStatus();
  }

 private:
  Splitter splitter_;
};

class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::unique_ptr<Splitter> splitter)
      : add_prefix_space_(add_prefix_space), splitter_(std::move(splitter)) {}

  absl::Status Apply(Pieces* pieces) const override {
    if (add_prefix_space_) {
      for (Piece& piece : pieces->list) {
        if (absl::StartsWith(piece.text, " ")) continue;
        piece.text = pieces->storage.emplace_back(absl::StrCat(" ", piece.text));
      }
    }
    if (splitter_ == nullptr) return absl::OkStatus();
    std::vector<Piece> out;
    for (const Piece& piece : pieces->list) TOKENIZER_RETURN_IF_ERROR(splitter_->Split(piece, &out));
    pieces->list = std::move(out);
    return absl::OkStatus();
  }
  bool byte_level() const override { return true; }

 private:
  bool add_prefix_space_;
  std::unique_ptr<Splitter> splitter_;
};

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  MetaspacePreTokenizer(std::string replacement, Prepend prepend, std::unique_ptr<Splitter> splitter)
      : replacement_(std::move(replacement)), prepend_(prepend), splitter_(std::move(splitter)) {}

  absl::Status Apply(Pieces* pieces) const override {
    std::vector<Piece> out;
    for (Piece piece : pieces->list) {
      std::string text = absl::StrReplaceAll(piece.text, {{" ", replacement_}});
      const bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.at_start);
      if (wanted && !absl::StartsWith(text, replacement_)) text.insert(0, replacement_);
      piece.text = pieces->storage.emplace_back(std::move(text));
      if (splitter_ == nullptr) {
        out.push_back(piece);
      } else {
        TOKENIZER_RETURN_IF_ERROR(splitter_->Split(piece, &out));
      }
    }
    pieces->list = std::move(out);
    return absl::OkStatus();
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  std::unique_ptr<Splitter> splitter_;
};

class SequencePreTokenizer final : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> parts)
      : parts_(std::move(parts)) {}
  absl::Status Apply(Pieces* pieces) const override {
    for (const auto& part : parts_) TOKENIZER_RETURN_IF_ERROR(part->Apply(pieces));
    return absl::OkStatus();
  }
  bool byte_level() const override { return !parts_.empty() && parts_.back()->byte_level(); }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

absl::StatusOr<Splitter> BuiltIn(absl::string_view pattern, Behavior behavior, bool invert = false) {
  TOKENIZER_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  return Splitter(std::move(regex), behavior, invert);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> MetaspaceFromJson(const JsonView& json) {
  using Prepend = MetaspacePreTokenizer::Prepend;
  TOKENIZER_ASSIGN_OR_RETURN(std::string replacement, json["replacement"].StringOr("\xE2\x96\x81"));
  if (replacement.empty()) return json["replacement"].Error("the replacement is empty");
  // Older files say add_prefix_space in place of prepend_scheme.
  TOKENIZER_ASSIGN_OR_RETURN(const bool add_prefix_space, json["add_prefix_space"].BoolOr(true));
  TOKENIZER_ASSIGN_OR_RETURN(const std::string scheme,
                             json["prepend_scheme"].StringOr(add_prefix_space ? "always" : "never"));
  Prepend prepend;
  if (scheme == "always") {
    prepend = Prepend::kAlways;
  } else if (scheme == "first") {
    prepend = Prepend::kFirst;
  } else if (scheme == "never") {
    prepend = Prepend::kNever;
  } else {
    return json["prepend_scheme"].Unsupported(absl::StrCat("the scheme \"", scheme, "\""));
  }
  TOKENIZER_ASSIGN_OR_RETURN(const bool split, json["split"].BoolOr(true));
  std::unique_ptr<Splitter> splitter;
  if (split) {
    absl::StatusOr<Regex> regex = Regex::CompileLiteral(replacement);
    if (!regex.ok()) return json["replacement"].Error(regex.status().message());
    splitter = std::make_unique<Splitter>(*std::move(regex), Behavior::kMergedWithNext, false);
  }
  return std::make_unique<MetaspacePreTokenizer>(std::move(replacement), prepend, std::move(splitter));
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> SequenceFromJson(const JsonView& json) {
  TOKENIZER_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, json["pretokenizers"].Elements());
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (const JsonView& element : elements) {
    if (!parts.empty() && parts.back()->byte_level()) {
      return element.Unsupported("a pre-tokenizer behind ByteLevel");
    }
    TOKENIZER_ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> part, PreTokenizer::FromJson(element));
    if (part == nullptr) return element.Expected("a pre-tokenizer");
    parts.push_back(std::move(part));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(parts));
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> FromSplitter(absl::StatusOr<Splitter> splitter) {
  if (!splitter.ok()) return splitter.status();
  return std::make_unique<SplitPreTokenizer>(*std::move(splitter));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::FromJson(const JsonView& json) {
  if (json.is_null()) return std::unique_ptr<PreTokenizer>();
  TOKENIZER_ASSIGN_OR_RETURN(const std::string kind, json.Kind());
  if (kind == "Split") {
    TOKENIZER_ASSIGN_OR_RETURN(Pattern pattern, PatternFromJson(json["pattern"]));
    TOKENIZER_ASSIGN_OR_RETURN(const Behavior behavior, BehaviorFromJson(json["behavior"], ""));
    TOKENIZER_ASSIGN_OR_RETURN(const bool invert, json["invert"].BoolOr(false));
    return FromSplitter(Splitter(std::move(pattern.regex), behavior, invert));
  }
  if (kind == "ByteLevel") {
    TOKENIZER_ASSIGN_OR_RETURN(const bool add_prefix_space, json["add_prefix_space"].BoolOr(true));
    TOKENIZER_ASSIGN_OR_RETURN(const bool use_regex, json["use_regex"].BoolOr(true));
    std::unique_ptr<Splitter> splitter;
    if (use_regex) {
      TOKENIZER_ASSIGN_OR_RETURN(Splitter gpt2, BuiltIn(kByteLevelPattern, Behavior::kIsolated));
      splitter = std::make_unique<Splitter>(std::move(gpt2));
    }
    return std::make_unique<ByteLevelPreTokenizer>(add_prefix_space, std::move(splitter));
  }
  if (kind == "Digits") {
    TOKENIZER_ASSIGN_OR_RETURN(const bool individual, json["individual_digits"].BoolOr(false));
    return FromSplitter(BuiltIn(R"(\p{N})", individual ? Behavior::kIsolated : Behavior::kContiguous));
  }
  if (kind == "Punctuation") {
    TOKENIZER_ASSIGN_OR_RETURN(const Behavior behavior, BehaviorFromJson(json["behavior"], "Isolated"));
    return FromSplitter(BuiltIn(kPunctuationPattern, behavior));
  }
  if (kind == "CharDelimiterSplit") {
    TOKENIZER_ASSIGN_OR_RETURN(const std::string delimiter, json["delimiter"].String());
    if (delimiter.empty()) return json["delimiter"].Error("the delimiter is empty");
    TOKENIZER_ASSIGN_OR_RETURN(Regex regex, Regex::CompileLiteral(delimiter));
    return FromSplitter(Splitter(std::move(regex), Behavior::kRemoved, false));
  }
  if (kind == "Whitespace") return FromSplitter(BuiltIn(kWordsPattern, Behavior::kRemoved, /*invert=*/true));
  if (kind == "WhitespaceSplit") return FromSplitter(BuiltIn(R"(\s+)", Behavior::kRemoved));
  if (kind == "Metaspace") return MetaspaceFromJson(json);
  if (kind == "Sequence") return SequenceFromJson(json);
  return json.Unsupported(absl::StrCat("the pre-tokenizer \"", kind, "\""));
}

}  // namespace tessera
