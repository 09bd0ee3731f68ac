#include "server/tokenizer/added_tokens.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/regex.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

bool IsWordCharacter(absl::string_view character) {
  static const Regex* const kWord = new Regex(*Regex::Compile("[" TESSERA_REGEX_RUST_WORD "]"));
  return kWord->Matches(character);
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

namespace {

// All but the id.
absl::StatusOr<AddedToken> TokenFromJson(const JsonView& json) {
  TESSERA_RETURN_IF_ERROR(json.ExpectObject());
  AddedToken t;
  TESSERA_ASSIGN_OR_RETURN(t.content, json["content"].String());
  TESSERA_ASSIGN_OR_RETURN(t.special, json["special"].BoolOr(false));
  TESSERA_ASSIGN_OR_RETURN(t.single_word, json["single_word"].BoolOr(false));
  TESSERA_ASSIGN_OR_RETURN(t.lstrip, json["lstrip"].BoolOr(false));
  TESSERA_ASSIGN_OR_RETURN(t.rstrip, json["rstrip"].BoolOr(false));
  TESSERA_ASSIGN_OR_RETURN(t.normalized, json["normalized"].BoolOr(!t.special));
  if (t.content.empty()) return json["content"].Error("an added token is empty");
  return t;
}

}  // namespace

absl::Status MergeAddedTokens(const JsonView& json, int32_t unk_id, std::vector<AddedToken>* tokens) {
  if (json.is_null()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(json.ExpectObject());
  for (const auto& [key, value] : json.json().items()) {
    const JsonView entry(value, absl::StrCat(json.path(), ".", key));
    int32_t id;
    if (!absl::SimpleAtoi(key, &id) || id < 0 || id > kMaxTokenId) {
      return entry.Error(absl::StrCat("expected a key from 0 to ", kMaxTokenId));
    }
    TESSERA_ASSIGN_OR_RETURN(AddedToken token, TokenFromJson(entry));
    token.id = id;
    if (id == unk_id) continue;
    const auto same = [id](const AddedToken& t) { return t.id == id; };
    const auto known = std::find_if(tokens->begin(), tokens->end(), same);
    if (known == tokens->end()) {
      tokens->push_back(std::move(token));
    } else if (known->content != token.content) {
      return entry.Error(
          absl::StrCat("found \"", token.content, "\", where the model has \"", known->content, "\""));
    } else {
      *known = std::move(token);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AddedToken>> AddedTokensFromJson(const JsonView& json) {
  std::vector<AddedToken> out;
  if (json.is_null()) return out;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, json.Elements());
  absl::flat_hash_map<std::string, int32_t> seen;
  for (const JsonView& e : elements) {
    TESSERA_RETURN_IF_ERROR(e.ExpectObject());
    TESSERA_ASSIGN_OR_RETURN(const int64_t id, e["id"].Int(0, kMaxTokenId));
    TESSERA_ASSIGN_OR_RETURN(AddedToken t, TokenFromJson(e));
    t.id = static_cast<int32_t>(id);
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
  for (const AddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    AddedToken t = token;
    if (normalized && normalizer != nullptr) {
      TESSERA_RETURN_IF_ERROR(normalizer->Normalize(/*at_start=*/true, &t.content));
      if (t.content.empty()) continue;  // nothing of it is ever left in a text
    }
    m.trie_.Insert(t.content, static_cast<int32_t>(m.tokens_.size()));  // the first of equal ones stays
    m.tokens_.push_back(std::move(t));
  }
  return m;
}

void AddedTokenMatcher::Split(absl::string_view text, absl::FunctionRef<bool(ByteRange)> is_trusted,
                              absl::FunctionRef<bool(const Segment&)> sink) const {
  size_t done = 0;
  if (!tokens_.empty()) {
    for (size_t pos = 0; pos < text.size();) {
      const int32_t found = trie_.Longest(text, pos).value;
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
      if (done < r.begin && !sink({{done, r.begin}, std::nullopt})) return;
      if (!sink({r, token.id})) return;
      done = r.end;
    }
  }
  if (done < text.size()) sink({{done, text.size()}, std::nullopt});
}

}  // namespace tessera
