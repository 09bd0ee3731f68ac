#include "server/tokenizer/charsmap.h"

#include "absl/strings/str_cat.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

// A unit of the double array.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t Offset(uint32_t unit) { return unit >> 10 << ((unit & 1 << 9) >> 6); }

uint32_t LittleEndian(const char* bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

absl::StatusOr<Charsmap> Charsmap::Parse(absl::string_view blob) {
  Charsmap map;
  if (blob.empty()) return map;
  if (blob.size() < 4)
    return absl::InvalidArgumentError("the charsmap is shorter than its header of 4 bytes");
  const size_t trie_bytes = LittleEndian(blob.data());
  blob.remove_prefix(4);
  if (trie_bytes > blob.size() || trie_bytes % 4 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the charsmap's trie has ", trie_bytes,
                                                   " bytes, expected a multiple of 4 up to ", blob.size()));
  }
  for (size_t i = 0; i < trie_bytes; i += 4) map.units_.push_back(LittleEndian(blob.data() + i));
  map.replacements_ = std::string(blob.substr(trie_bytes));
  if (const size_t bad = unicode::FindInvalid(map.replacements_); bad != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the charsmap's replacements are not valid UTF-8 at byte ", bad));
  }
  return map;
}

std::optional<Charsmap::Match> Charsmap::Find(absl::string_view text, bool longest) const {
  std::optional<Match> found;
  if (units_.empty()) return found;
  size_t node = Offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    // A zero byte is the label of leaves, never of an inner node.
    if (byte == 0 || node >= units_.size() || Label(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= units_.size()) break;
    const uint32_t value = Value(units_[node]);
    // A rule must end with a character of the text, and its replacement begin with one.
    const bool whole = i + 1 == text.size() || (static_cast<uint8_t>(text[i + 1]) & 0xC0) != 0x80;
    const bool starts =
        value < replacements_.size() && (static_cast<uint8_t>(replacements_[value]) & 0xC0) != 0x80;
    if (!whole || !starts) continue;
    const absl::string_view rest = absl::string_view(replacements_).substr(value);
    found = Match{i + 1, rest.substr(0, rest.find('\0'))};
    if (!longest) break;
  }
  return found;
}

}  // namespace tessera
