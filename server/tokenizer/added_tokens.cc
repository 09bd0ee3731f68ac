#include "server/tokenizer/added_tokens.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/tokenizer/status_macros.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

bool IsWordCharacter(absl::string_view character) {
  static const Regex* const kWord = new Regex(*Regex::Compile("[" TESSERA_REGEX_RUST_WORD "]"));
  bool found = false;
  return kWord->FindAll(character, [&](ByteRange) { found = true; }).ok() && found;
}

bool TouchesWord(absl::string_view text, ByteRange r) {
  if (r.begin > 0) {
    const size_t start = unicode::PreviousStart(text, r.begin);
    if (IsWordCharacter(text.substr(start, r.begin - start))) return true;
  }
  return r.end < text.size() && IsWordCharacter(text.substr(r.end, unicode::SequenceLength(text[r.end])));
}

size_t SkipWhitespaceLeft(absl::string_view text, size_t pos) {
  while (pos > 0) {
    const size_t start = unicode::PreviousStart(text, pos);
    size_t p = start;
    if (!unicode::IsWhitespace(unicode::DecodeAt(text, &p))) break;
    pos = start;
  }
  return pos;
}

size_t SkipWhitespaceRight(absl::string_view text, size_t pos) {
  while (pos < text.size()) {
    size_t next = pos;
    if (!unicode::IsWhitespace(unicode::DecodeAt(text, &next))) break;
    pos = next;
  }
  return pos;
}

}  // namespace

absl::StatusOr<std::vector<AddedToken>> AddedTokensFromJson(const JsonView& json) {
  std::vector<AddedToken> out;
  if (json.is_null()) return out;
  TOKENIZER_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, json.Elements());
  absl::flat_hash_map<std::string, int32_t> seen;
  for (const JsonView& e : elements) {
    TOKENIZER_RETURN_IF_ERROR(e.ExpectObject());
    AddedToken t;
    TOKENIZER_ASSIGN_OR_RETURN(const int64_t id, e["id"].Int(0, kMaxTokenId));
    t.id = static_cast<int32_t>(id);
    TOKENIZER_ASSIGN_OR_RETURN(t.content, e["content"].String());
    TOKENIZER_ASSIGN_OR_RETURN(t.special, e["special"].BoolOr(false));
    TOKENIZER_ASSIGN_OR_RETURN(t.single_word, e["single_word"].BoolOr(false));
    TOKENIZER_ASSIGN_OR_RETURN(t.lstrip, e["lstrip"].BoolOr(false));
    TOKENIZER_ASSIGN_OR_RETURN(t.rstrip, e["rstrip"].BoolOr(false));
    TOKENIZER_ASSIGN_OR_RETURN(t.normalized, e["normalized"].BoolOr(!t.special));
    if (t.content.empty()) return e["content"].Error("an added token is empty");
    const auto [it, inserted] = seen.emplace(t.content, t.id);
    if (!inserted && it->second != t.id) {
      return e.Error(absl::StrCat("the token \"", t.content, "\" has the ids ", it->second, " and ", t.id));
    }
    if (inserted) out.push_back(std::move(t));
  }
  return out;
}

absl::StatusOr<AddedTokenMatcher> AddedTokenMatcher::Create(const std::vector<AddedToken>& tokens,
                                                            bool normalized, const Normalizer* normalizer) {
  AddedTokenMatcher m;
  m.token_at_.push_back(-1);
  for (const AddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    AddedToken t = token;
    if (normalized && normalizer != nullptr) {
      TOKENIZER_RETURN_IF_ERROR(normalizer->Normalize(&t.content));
      if (t.content.empty()) continue;  // nothing of it is ever left in a text
    }
    uint32_t node = 0;
    for (char c : t.content) {
      const auto b = static_cast<uint8_t>(c);
      const auto [it, inserted] = m.edges_.emplace(static_cast<uint64_t>(node) << 8 | b, m.token_at_.size());
      if (inserted) m.token_at_.push_back(-1);
      if (node == 0) m.first_[b] = it->second;
      node = it->second;
    }
    if (m.token_at_[node] < 0) m.token_at_[node] = static_cast<int>(m.tokens_.size());
    m.tokens_.push_back(std::move(t));
  }
  return m;
}

int AddedTokenMatcher::Longest(absl::string_view text, size_t pos) const {
  uint32_t node = first_[static_cast<uint8_t>(text[pos])];
  int longest = -1;
  while (node != 0) {
    if (token_at_[node] >= 0) longest = token_at_[node];
    if (++pos == text.size()) break;
    const auto it = edges_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text[pos]));
    node = it == edges_.end() ? 0 : it->second;
  }
  return longest;
}

std::vector<Segment> AddedTokenMatcher::Split(absl::string_view text,
                                              absl::FunctionRef<bool(ByteRange)> is_trusted) const {
  std::vector<Segment> out;
  size_t done = 0;
  if (!tokens_.empty()) {
    for (size_t pos = 0; pos < text.size();) {
      const int found = Longest(text, pos);
      if (found < 0) {
        ++pos;
        continue;
      }
      const AddedToken& token = tokens_[found];
      ByteRange r{pos, pos + token.content.size()};
      pos = r.end;  // also for a match that does not count: matches never overlap
      if (token.special && !is_trusted(r)) continue;
      if (token.single_word && TouchesWord(text, r)) continue;
      if (token.lstrip) r.begin = std::max(SkipWhitespaceLeft(text, r.begin), done);
      if (token.rstrip) r.end = SkipWhitespaceRight(text, r.end);
      r.begin = std::max(r.begin, done);
      if (r.begin >= r.end) continue;
      if (done < r.begin) out.push_back({{done, r.begin}, std::nullopt});
      out.push_back({r, token.id});
      done = r.end;
    }
  }
  if (done < text.size()) out.push_back({{done, text.size()}, std::nullopt});
  return out;
}

}  // namespace tessera
