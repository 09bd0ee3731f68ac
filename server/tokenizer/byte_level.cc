#include "server/tokenizer/byte_level.h"

#include <array>

#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

constexpr char32_t kFirstStandIn = 0x100;

struct Tables {
  std::array<char32_t, 256> character;
  std::array<int16_t, 0x144> byte;  // -1: spells none
};

constexpr Tables MakeTables() {
  Tables t{};
  for (int16_t& b : t.byte) b = -1;
  char32_t next = kFirstStandIn;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    t.character[b] = printable ? static_cast<char32_t>(b) : next++;
    t.byte[t.character[b]] = static_cast<int16_t>(b);
  }
  return t;
}

constexpr Tables kTables = MakeTables();
static_assert(kTables.character[' '] == 0x120);
static_assert(kTables.character[0xAD] == 0x143);

}  // namespace

char32_t ByteLevelCharacter(uint8_t byte) { return kTables.character[byte]; }

std::string ByteLevelEncode(absl::string_view bytes) {
  std::string out;
  for (char b : bytes) unicode::AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(b)), &out);
  return out;
}

bool ByteLevelDecode(absl::string_view text, std::string* bytes) {
  bytes->clear();
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = unicode::DecodeAt(text, &pos);
    if (c >= kTables.byte.size() || kTables.byte[c] < 0) return false;
    bytes->push_back(static_cast<char>(kTables.byte[c]));
  }
  return true;
}

}  // namespace tessera
