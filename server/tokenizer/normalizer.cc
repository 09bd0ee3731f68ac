#include "server/tokenizer/normalizer.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/status_macros.h"
#include "server/tokenizer/charsmap.h"
#include "server/tokenizer/pattern.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

// Wraps a function that cannot fail.
template <typename F>
class SimpleNormalizer final : public Normalizer {
 public:
  explicit SimpleNormalizer(F f) : f_(std::move(f)) {}
  absl::Status Normalize(bool, std::string* text) const override {
    f_(text);
    return absl::OkStatus();
  }

 private:
  F f_;
};

template <typename F>
std::unique_ptr<Normalizer> Simple(F f) {
  return std::make_unique<SimpleNormalizer<F>>(std::move(f));
}

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(Regex pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  absl::Status Normalize(bool, std::string* text) const override {
    std::string out;
    size_t done = 0;
    TESSERA_RETURN_IF_ERROR(pattern_.FindAll(*text, [&](ByteRange r) {
      out.append(*text, done, r.begin - done);
      out += content_;
      done = r.end;
      return true;
    }));
    out.append(*text, done, std::string::npos);
    *text = std::move(out);
    return absl::OkStatus();
  }

 private:
  Regex pattern_;
  std::string content_;
};

// Rules of a charsmap as the tokenizers library applies them: to a whole grapheme cluster if that is short and there is
// a rule for its start, else to each of its characters. The shortest rule wins.
class PrecompiledNormalizer final : public Normalizer {
 public:
  PrecompiledNormalizer(Charsmap map, Regex clusters)
      : map_(std::move(map)), clusters_(std::move(clusters)) {}

  absl::Status Normalize(bool, std::string* text) const override {
    std::string out;
    out.reserve(text->size());
    TESSERA_RETURN_IF_ERROR(clusters_.FindAll(*text, [&](ByteRange r) {
      const absl::string_view cluster = absl::string_view(*text).substr(r.begin, r.end - r.begin);
      if (cluster.size() < kShortCluster) {
        if (const auto match = map_.Shortest(cluster)) {
          absl::StrAppend(&out, match->replacement);
          return true;
        }
      }
      for (size_t pos = 0; pos < cluster.size();) {
        const absl::string_view character = cluster.substr(pos, unicode::SequenceLength(cluster[pos]));
        const auto match = map_.Shortest(character);
        absl::StrAppend(&out, match ? match->replacement : character);
        pos += character.size();
      }
      return true;
    }));
    *text = std::move(out);
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kShortCluster = 6;
  Charsmap map_;
  Regex clusters_;
};

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  absl::Status Normalize(bool at_start, std::string* text) const override {
    for (const auto& part : parts_) TESSERA_RETURN_IF_ERROR(part->Normalize(at_start, text));
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

void Lowercase(std::string* text) {
  std::string out;
  out.reserve(text->size());
  for (size_t pos = 0; pos < text->size();) {
    unicode::AppendLower(unicode::DecodeAt(*text, &pos), &out);
  }
  *text = std::move(out);
}

void StripWhitespace(bool left, bool right, std::string* text) {
  size_t begin = 0, end = text->size();
  for (size_t pos = 0; left && pos < end; begin = pos) {
    if (!unicode::IsWhitespace(unicode::DecodeAt(*text, &pos))) break;
  }
  while (right && end > begin) {
    const size_t start = unicode::PreviousStart(*text, end);
    size_t pos = start;
    if (!unicode::IsWhitespace(unicode::DecodeAt(*text, &pos))) break;
    end = start;
  }
  *text = text->substr(begin, end - begin);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> Normalizer::FromJson(const JsonView& json) {
  if (json.is_null()) return std::unique_ptr<Normalizer>();
  TESSERA_ASSIGN_OR_RETURN(const std::string kind, json.Kind());
  if (kind == "NFC") return Simple([](std::string* t) { *t = unicode::Nfc(*t); });
  if (kind == "NFD") return Simple([](std::string* t) { *t = unicode::Nfd(*t); });
  if (kind == "NFKC") return Simple([](std::string* t) { *t = unicode::Nfkc(*t); });
  if (kind == "NFKD") return Simple([](std::string* t) { *t = unicode::Nfkd(*t); });
  if (kind == "Precompiled") {
    const JsonView map_json = json["precompiled_charsmap"];
    TESSERA_ASSIGN_OR_RETURN(const std::string base64, map_json.StringOr(""));
    std::string blob;
    if (!absl::Base64Unescape(base64, &blob)) return map_json.Error("not Base64");
    absl::StatusOr<Charsmap> map = Charsmap::Parse(blob);
    if (!map.ok()) return map_json.Error(map.status().message());
    TESSERA_ASSIGN_OR_RETURN(Regex clusters, Regex::Compile("\\X"));
    return std::make_unique<PrecompiledNormalizer>(*std::move(map), std::move(clusters));
  }
  if (kind == "Lowercase") return Simple(Lowercase);
  if (kind == "Strip") {
    TESSERA_ASSIGN_OR_RETURN(const bool left, json["strip_left"].BoolOr(true));
    TESSERA_ASSIGN_OR_RETURN(const bool right, json["strip_right"].BoolOr(true));
    return Simple([left, right](std::string* t) { StripWhitespace(left, right, t); });
  }
  if (kind == "StripAccents") {
    TESSERA_ASSIGN_OR_RETURN(Regex marks, Regex::Compile(R"(\p{M}+)"));
    return std::make_unique<ReplaceNormalizer>(std::move(marks), "");
  }
  if (kind == "Prepend") {
    TESSERA_ASSIGN_OR_RETURN(std::string prefix, json["prepend"].String());
    return Simple([prefix = std::move(prefix)](std::string* t) {
      if (!t->empty()) t->insert(0, prefix);
    });
  }
  if (kind == "Replace") {
    TESSERA_ASSIGN_OR_RETURN(Pattern pattern, PatternFromJson(json["pattern"]));
    TESSERA_ASSIGN_OR_RETURN(std::string content, json["content"].String());
    if (!pattern.literal.empty()) {
      return Simple([from = pattern.literal, to = std::move(content)](std::string* t) {
        absl::StrReplaceAll({{from, to}}, t);
      });
    }
    return std::make_unique<ReplaceNormalizer>(std::move(pattern.regex), std::move(content));
  }
  if (kind == "Sequence") {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, json["normalizers"].Elements());
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (const JsonView& element : elements) {
      TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> part, FromJson(element));
      if (part == nullptr) return element.Expected("a normalizer");
      parts.push_back(std::move(part));
    }
    return std::make_unique<SequenceNormalizer>(std::move(parts));
  }
  return json.Unsupported(absl::StrCat("the normalizer \"", kind, "\""));
}

}  // namespace tessera
