#include "server/tokenizer/sentencepiece_normalizer.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

class SentencePieceNormalizer final : public Normalizer {
 public:
  explicit SentencePieceNormalizer(SentencePieceNormalization options) : o_(std::move(options)) {}

  absl::Status Normalize(bool at_start, std::string* text) const override {
    absl::string_view input = *text;
    if (o_.remove_extra_whitespaces) {
      while (!input.empty()) {
        const Charsmap::Match m = Next(input);
        if (m.replacement != " ") break;
        input.remove_prefix(m.length);
      }
    }
    std::string out;
    if (input.empty()) {
      text->clear();
      return absl::OkStatus();
    }
    const absl::string_view space = o_.escape_whitespaces ? "\xE2\x96\x81" : " ";
    const bool dummy = o_.add_dummy_prefix && (at_start || !o_.prefix_at_start_only);
    out.reserve(input.size() * 3 / 2);
    if (dummy && !o_.whitespace_as_suffix) out.append(space.data(), space.size());
    bool after_space = o_.remove_extra_whitespaces;
    while (!input.empty()) {
      const Charsmap::Match m = Next(input);
      absl::string_view part = m.replacement;
      while (after_space && absl::ConsumePrefix(&part, " ")) {
      }
      for (const char c : part) {
        if (c == ' ') {
          out.append(space.data(), space.size());
        } else {
          out += c;
        }
      }
      if (!part.empty()) after_space = o_.remove_extra_whitespaces && absl::EndsWith(part, " ");
      input.remove_prefix(m.length);
    }
    if (o_.remove_extra_whitespaces) {
      while (absl::EndsWith(out, space)) out.resize(out.size() - space.size());
    }
    if (dummy && o_.whitespace_as_suffix) out.append(space.data(), space.size());
    *text = std::move(out);
    return absl::OkStatus();
  }

 private:
  // What the start of `input` becomes: a symbol, the longest rule, or else one character as it is.
  Charsmap::Match Next(absl::string_view input) const {
    if (!o_.user_defined.empty()) {
      if (const size_t n = o_.user_defined.Longest(input, 0).length; n > 0) return {n, input.substr(0, n)};
    }
    if (const auto rule = o_.charsmap.Longest(input)) return *rule;
    const size_t n = unicode::SequenceLength(input[0]);
    return {n, input.substr(0, n)};
  }

  SentencePieceNormalization o_;
};

}  // namespace

std::unique_ptr<Normalizer> MakeSentencePieceNormalizer(SentencePieceNormalization options) {
  return std::make_unique<SentencePieceNormalizer>(std::move(options));
}

}  // namespace tessera
