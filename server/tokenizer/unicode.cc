#include "server/tokenizer/unicode.h"

#include <algorithm>

#include "server/tokenizer/unicode_tables.h"

namespace tessera::unicode {
namespace {

bool HasPage(const uint64_t* pages, char32_t c) { return pages[c >> 14] >> ((c >> 8) & 63) & 1; }

// The range that holds `c`, of ascending ranges with members `first` and `last`; null if none does.
template <typename Range>
const Range* FindRange(const Range* ranges, size_t size, char32_t c) {
  const Range* it =
      std::upper_bound(ranges, ranges + size, c, [](char32_t v, const Range& r) { return v < r.first; });
  if (it == ranges || c > (it - 1)->last) return nullptr;
  return it - 1;
}

char32_t MapCase(const CaseRange* ranges, size_t size, char32_t c) {
  const CaseRange* r = FindRange(ranges, size, c);
  if (r == nullptr || (c - r->first) % r->stride != 0) return c;
  return static_cast<char32_t>(static_cast<int32_t>(c) + r->delta);
}

const SpecialCase* FindSpecialCase(char32_t c) {
  const SpecialCase* end = kSpecialCases + kSpecialCasesSize;
  const SpecialCase* it = std::lower_bound(kSpecialCases, end, c,
                                           [](const SpecialCase& s, char32_t v) { return s.code_point < v; });
  return it != end && it->code_point == c ? it : nullptr;
}

constexpr char32_t kHangulSyllables = 0xAC00, kLeadJamo = 0x1100, kVowelJamo = 0x1161, kTailJamo = 0x11A7;
constexpr int kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr int kSyllableCount = kLeadCount * kVowelCount * kTailCount;

// Null if `c` has none in the table.
const Decomposition* FindDecomposition(const Decomposition* table, size_t size, char32_t c) {
  const Decomposition* it = std::lower_bound(
      table, table + size, c, [](const Decomposition& d, char32_t v) { return d.code_point < v; });
  return it == table + size || it->code_point != c ? nullptr : it;
}

enum class Equivalence { kCanonical, kCompatible };

void AppendDecomposed(char32_t c, Equivalence equivalence, std::u32string* out) {
  if (c < 0xA0) {
    out->push_back(c);
    return;
  }
  if (c >= kHangulSyllables && c < kHangulSyllables + kSyllableCount) {
    const int s = static_cast<int>(c - kHangulSyllables);
    out->push_back(kLeadJamo + s / (kVowelCount * kTailCount));
    out->push_back(kVowelJamo + s % (kVowelCount * kTailCount) / kTailCount);
    if (s % kTailCount != 0) out->push_back(kTailJamo + s % kTailCount);
    return;
  }
  // The compatibility decompositions that are not canonical ones stand in a table of their own.
  if (equivalence == Equivalence::kCompatible) {
    if (const Decomposition* d =
            FindDecomposition(kCompatibilityDecompositions, kCompatibilityDecompositionsSize, c)) {
      out->append(kDecompositionPool + d->offset, d->length);
      return;
    }
  }
  if (const Decomposition* d = FindDecomposition(kDecompositions, kDecompositionsSize, c)) {
    out->append(kDecompositionPool + d->offset, d->length);
  } else {
    out->push_back(c);
  }
}

std::u32string Decompose(absl::string_view text, Equivalence equivalence) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) AppendDecomposed(DecodeAt(text, &pos), equivalence, &out);
  // Canonical ordering: each run of marks sorted by class, stable.
  for (size_t i = 0; i < out.size();) {
    if (out[i] < 0x300 || CombiningClass(out[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < out.size() && CombiningClass(out[end]) != 0) ++end;
    std::stable_sort(out.begin() + i, out.begin() + end,
                     [](char32_t a, char32_t b) { return CombiningClass(a) < CombiningClass(b); });
    i = end;
  }
  return out;
}

// The primary composite of the two, or 0.
char32_t ComposePair(char32_t a, char32_t b) {
  if (a >= kLeadJamo && a < kLeadJamo + kLeadCount && b >= kVowelJamo && b < kVowelJamo + kVowelCount) {
    return kHangulSyllables + ((a - kLeadJamo) * kVowelCount + (b - kVowelJamo)) * kTailCount;
  }
  if (a >= kHangulSyllables && a < kHangulSyllables + kSyllableCount &&
      (a - kHangulSyllables) % kTailCount == 0 && b > kTailJamo && b < kTailJamo + kTailCount) {
    return a + (b - kTailJamo);
  }
  const Composition* end = kCompositions + kCompositionsSize;
  const Composition* it = std::lower_bound(
      kCompositions, end, std::pair(a, b),
      [](const Composition& c, const auto& key) { return std::pair(c.first, c.second) < key; });
  return it != end && it->first == a && it->second == b ? it->composed : 0;
}

void Compose(std::u32string* text) {
  size_t out = 0;
  size_t starter = std::u32string::npos;
  int last_class = -1;  // class of the last character kept after the starter; -1: none
  for (size_t i = 0; i < text->size(); ++i) {
    const char32_t c = (*text)[i];
    const int ccc = c < 0x300 ? 0 : CombiningClass(c);
    if (starter != std::u32string::npos && last_class < ccc) {
      if (const char32_t composed = ComposePair((*text)[starter], c)) {
        (*text)[starter] = composed;
        continue;
      }
    }
    if (ccc == 0) {
      starter = out;
      last_class = -1;
    } else {
      last_class = ccc;
    }
    (*text)[out++] = c;
  }
  text->resize(out);
}

std::string ToUtf8(const std::u32string& text) {
  std::string out;
  out.reserve(text.size() * 2);
  for (char32_t c : text) AppendUtf8(c, &out);
  return out;
}

bool IsTouchy(char32_t c) {
  return HasPage(kNfcTouchyPages, c) && FindRange(kNfcTouchy, kNfcTouchySize, c) != nullptr;
}

}  // namespace

char32_t DecodeAt(absl::string_view text, size_t* pos) {
  const auto* s = reinterpret_cast<const uint8_t*>(text.data()) + *pos;
  if (s[0] < 0x80) {
    *pos += 1;
    return s[0];
  }
  if (s[0] < 0xE0) {
    *pos += 2;
    return (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
  }
  if (s[0] < 0xF0) {
    *pos += 3;
    return (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
  }
  *pos += 4;
  return (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
}

size_t PreviousStart(absl::string_view text, size_t pos) {
  --pos;
  while (pos > 0 && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80) --pos;
  return pos;
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

size_t CountCodePoints(absl::string_view text) {
  size_t n = 0;
  for (char c : text) n += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return n;
}

SequenceCheck CheckSequence(const char* data, size_t size) {
  const auto* s = reinterpret_cast<const uint8_t*>(data);
  if (size == 0) return {SequenceCheck::kIncomplete, 0};
  const uint8_t lead = s[0];
  if (lead < 0x80) return {SequenceCheck::kComplete, 1};
  if (lead < 0xC2 || lead > 0xF4) return {SequenceCheck::kInvalid, 1};
  const size_t need = SequenceLength(data[0]);
  // The second byte's range is narrower after some lead bytes.
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < need; ++i) {
    if (i == size) return {SequenceCheck::kIncomplete, size};
    if (s[i] < low || s[i] > high) return {SequenceCheck::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {SequenceCheck::kComplete, need};
}

size_t FindInvalid(absl::string_view bytes) {
  for (size_t pos = 0; pos < bytes.size();) {
    if (static_cast<uint8_t>(bytes[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const SequenceCheck check = CheckSequence(bytes.data() + pos, bytes.size() - pos);
    if (check.kind != SequenceCheck::kComplete) return pos;
    pos += check.length;
  }
  return absl::string_view::npos;
}

std::string ReplaceInvalid(absl::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t pos = 0; pos < bytes.size();) {
    const SequenceCheck check = CheckSequence(bytes.data() + pos, bytes.size() - pos);
    const absl::string_view part =
        check.kind == SequenceCheck::kComplete ? bytes.substr(pos, check.length) : kReplacementUtf8;
    out.append(part.data(), part.size());
    pos += check.length;
  }
  return out;
}

bool IsWhitespace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

char32_t ToLower(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  return MapCase(kLowerCase, kLowerCaseSize, c);
}

void AppendLower(char32_t c, std::string* out) {
  if (c == 0x130) {
    *out += "i\xCC\x87";  // capital I with dot: the one letter whose lower case is two code points
  } else {
    AppendUtf8(ToLower(c), out);
  }
}

void AppendUpper(char32_t c, std::string* out) {
  const SpecialCase* s = FindSpecialCase(c);
  if (s == nullptr) return AppendUtf8(MapCase(kUpperCase, kUpperCaseSize, c), out);
  for (const char32_t u : s->upper) {
    if (u != 0) AppendUtf8(u, out);
  }
}

void AppendTitle(char32_t c, std::string* out) {
  const SpecialCase* s = FindSpecialCase(c);
  if (s == nullptr) return AppendUtf8(MapCase(kUpperCase, kUpperCaseSize, c), out);
  for (const char32_t t : s->title) {
    if (t != 0) AppendUtf8(t, out);
  }
}

uint8_t CombiningClass(char32_t c) {
  const ClassRange* r = FindRange(kCombiningClasses, kCombiningClassesSize, c);
  return r == nullptr ? 0 : r->combining_class;
}

std::string Nfc(absl::string_view text) {
  bool touchy = false;
  for (size_t pos = 0; pos < text.size() && !touchy;) {
    // Below U+0300 nothing is touchy, and below U+0080 a character is a byte.
    if (static_cast<uint8_t>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    touchy = IsTouchy(DecodeAt(text, &pos));
  }
  if (!touchy) return std::string(text.data(), text.size());
  std::u32string points = Decompose(text, Equivalence::kCanonical);
  Compose(&points);
  return ToUtf8(points);
}

std::string Nfd(absl::string_view text) { return ToUtf8(Decompose(text, Equivalence::kCanonical)); }
std::string Nfkd(absl::string_view text) { return ToUtf8(Decompose(text, Equivalence::kCompatible)); }

std::string Nfkc(absl::string_view text) {
  std::u32string points = Decompose(text, Equivalence::kCompatible);
  Compose(&points);
  return ToUtf8(points);
}

bool SubstituteStandIns(absl::string_view text, std::string* out) {
  bool found = false;
  for (size_t pos = 0; pos < text.size();) {
    if (static_cast<uint8_t>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const size_t start = pos;
    const char32_t c = DecodeAt(text, &pos);
    if (!HasPage(kStandInPages, c)) continue;
    const StandIn* r = FindRange(kStandIns, kStandInsSize, c);
    if (r == nullptr) continue;
    if (!found) out->assign(text.data(), text.size());
    found = true;
    std::string stand_in;
    AppendUtf8(r->stand_in, &stand_in);
    out->replace(start, pos - start, stand_in);
  }
  return found;
}

}  // namespace tessera::unicode
