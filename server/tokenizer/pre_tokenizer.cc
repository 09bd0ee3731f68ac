#include "server/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/status_macros.h"
#include "server/tokenizer/pattern.h"
#include "server/tokenizer/regex.h"

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
  TESSERA_ASSIGN_OR_RETURN(const std::string name, json.StringOr(absent));
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

class SplitPreTokenizer final : public PreTokenizer {
 public:
  SplitPreTokenizer(Regex pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  absl::Status Cut(const Piece& piece, PieceSink sink) const override {
    // False once the sink wants no more.
    const auto emit = [&](ByteRange r) {
      return r.begin >= r.end ||
             sink({piece.text.substr(r.begin, r.end - r.begin), piece.at_start && r.begin == 0});
    };
    size_t done = 0;
    if (behavior_ == Behavior::kIsolated) {  // by far the most frequent, and needs no list
      bool more = true;
      TESSERA_RETURN_IF_ERROR(pattern_.FindAll(piece.text, [&](ByteRange r) {
        more = emit({done, r.begin}) && emit(r);
        done = r.end;
        return more;
      }));
      if (more) emit({done, piece.text.size()});
      return absl::OkStatus();
    }
    std::vector<Stretch> stretches;
    TESSERA_RETURN_IF_ERROR(pattern_.FindAll(piece.text, [&](ByteRange r) {
      if (done != r.begin) stretches.push_back({{done, r.begin}, invert_});
      stretches.push_back({r, !invert_});
      done = r.end;
      return true;
    }));
    if (done != piece.text.size()) stretches.push_back({{done, piece.text.size()}, invert_});
    std::vector<ByteRange> ranges;
    Join(stretches, behavior_, &ranges);
    for (const ByteRange& r : ranges) {
      if (!emit(r)) break;
    }
    return absl::OkStatus();
  }

 private:
  Regex pattern_;
  Behavior behavior_;
  bool invert_;
};

class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::unique_ptr<PreTokenizer> split)
      : add_prefix_space_(add_prefix_space), split_(std::move(split)) {}

  absl::Status Cut(const Piece& piece, PieceSink sink) const override {
    Piece whole = piece;
    std::string prefixed;
    if (add_prefix_space_ && !absl::StartsWith(piece.text, " ")) {
      prefixed = absl::StrCat(" ", piece.text);
      whole.text = prefixed;
    }
    if (split_ != nullptr) return split_->Cut(whole, sink);
    sink(whole);
    return absl::OkStatus();
  }
  bool byte_level() const override { return true; }

 private:
  bool add_prefix_space_;
  std::unique_ptr<PreTokenizer> split_;
};

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  MetaspacePreTokenizer(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

  absl::Status Cut(const Piece& piece, PieceSink sink) const override {
    std::string text = absl::StrReplaceAll(piece.text, {{" ", replacement_}});
    const bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.at_start);
    if (wanted && !absl::StartsWith(text, replacement_)) text.insert(0, replacement_);
    // Each part begins with a replacement, but for the first.
    for (size_t begin = 0; begin < text.size();) {
      size_t end = split_ ? text.find(replacement_, begin == 0 && !absl::StartsWith(text, replacement_)
                                                        ? 0
                                                        : begin + replacement_.size())
                          : std::string::npos;
      end = std::min(end, text.size());
      if (!sink({absl::string_view(text).substr(begin, end - begin), piece.at_start && begin == 0})) break;
      begin = end;
    }
    return absl::OkStatus();
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool split_;
};

class SequencePreTokenizer final : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> parts)
      : parts_(std::move(parts)) {}

  absl::Status Cut(const Piece& piece, PieceSink sink) const override { return CutFrom(0, piece, sink); }
  bool byte_level() const override { return !parts_.empty() && parts_.back()->byte_level(); }

 private:
  absl::Status CutFrom(size_t k, const Piece& piece, PieceSink sink) const {
    if (k == parts_.size()) {
      sink(piece);
      return absl::OkStatus();
    }
    if (k + 1 == parts_.size()) return parts_[k]->Cut(piece, sink);
    absl::Status inner;
    bool more = true;
    const auto last_sink = [&](const Piece& p) { return more = sink(p); };
    absl::Status outer = parts_[k]->Cut(piece, [&](const Piece& p) {
      inner = CutFrom(k + 1, p, last_sink);
      return inner.ok() && more;
    });
    return inner.ok() ? outer : inner;
  }

  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

absl::StatusOr<std::unique_ptr<PreTokenizer>> BuiltIn(absl::string_view pattern, Behavior behavior,
                                                      bool invert = false) {
  TESSERA_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  return std::make_unique<SplitPreTokenizer>(std::move(regex), behavior, invert);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> MetaspaceFromJson(const JsonView& json) {
  using Prepend = MetaspacePreTokenizer::Prepend;
  TESSERA_ASSIGN_OR_RETURN(std::string replacement, json["replacement"].StringOr("\xE2\x96\x81"));
  if (replacement.empty()) return json["replacement"].Error("the replacement is empty");
  // Older files say add_prefix_space in place of prepend_scheme.
  TESSERA_ASSIGN_OR_RETURN(const bool add_prefix_space, json["add_prefix_space"].BoolOr(true));
  TESSERA_ASSIGN_OR_RETURN(const std::string scheme,
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
  TESSERA_ASSIGN_OR_RETURN(const bool split, json["split"].BoolOr(true));
  return std::make_unique<MetaspacePreTokenizer>(std::move(replacement), prepend, split);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> SequenceFromJson(const JsonView& json) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, json["pretokenizers"].Elements());
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (const JsonView& element : elements) {
    if (!parts.empty() && parts.back()->byte_level()) {
      return element.Unsupported("a pre-tokenizer behind ByteLevel");
    }
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> part, PreTokenizer::FromJson(element));
    if (part == nullptr) return element.Expected("a pre-tokenizer");
    parts.push_back(std::move(part));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::FromJson(const JsonView& json) {
  if (json.is_null()) return std::unique_ptr<PreTokenizer>();
  TESSERA_ASSIGN_OR_RETURN(const std::string kind, json.Kind());
  if (kind == "Split") {
    TESSERA_ASSIGN_OR_RETURN(Pattern pattern, PatternFromJson(json["pattern"]));
    TESSERA_ASSIGN_OR_RETURN(const Behavior behavior, BehaviorFromJson(json["behavior"], ""));
    TESSERA_ASSIGN_OR_RETURN(const bool invert, json["invert"].BoolOr(false));
    return std::make_unique<SplitPreTokenizer>(std::move(pattern.regex), behavior, invert);
  }
  if (kind == "ByteLevel") {
    TESSERA_ASSIGN_OR_RETURN(const bool add_prefix_space, json["add_prefix_space"].BoolOr(true));
    TESSERA_ASSIGN_OR_RETURN(const bool use_regex, json["use_regex"].BoolOr(true));
    std::unique_ptr<PreTokenizer> split;
    if (use_regex) {
      TESSERA_ASSIGN_OR_RETURN(split, BuiltIn(kByteLevelPattern, Behavior::kIsolated));
    }
    return std::make_unique<ByteLevelPreTokenizer>(add_prefix_space, std::move(split));
  }
  if (kind == "Digits") {
    TESSERA_ASSIGN_OR_RETURN(const bool individual, json["individual_digits"].BoolOr(false));
    return BuiltIn(R"(\p{N})", individual ? Behavior::kIsolated : Behavior::kContiguous);
  }
  if (kind == "Punctuation") {
    TESSERA_ASSIGN_OR_RETURN(const Behavior behavior, BehaviorFromJson(json["behavior"], "Isolated"));
    return BuiltIn(kPunctuationPattern, behavior);
  }
  if (kind == "CharDelimiterSplit") {
    TESSERA_ASSIGN_OR_RETURN(const std::string delimiter, json["delimiter"].String());
    if (delimiter.empty()) return json["delimiter"].Error("the delimiter is empty");
    TESSERA_ASSIGN_OR_RETURN(Regex regex, Regex::CompileLiteral(delimiter));
    return std::make_unique<SplitPreTokenizer>(std::move(regex), Behavior::kRemoved, false);
  }
  if (kind == "Whitespace") return BuiltIn(kWordsPattern, Behavior::kRemoved, /*invert=*/true);
  if (kind == "WhitespaceSplit") return BuiltIn(R"(\s+)", Behavior::kRemoved);
  if (kind == "Metaspace") return MetaspaceFromJson(json);
  if (kind == "Sequence") return SequenceFromJson(json);
  return json.Unsupported(absl::StrCat("the pre-tokenizer \"", kind, "\""));
}

}  // namespace tessera
