// Small text helpers: messages are put together with Cat.
#ifndef TESSERA_TESTS_PTX_TEXT_H_
#define TESSERA_TESTS_PTX_TEXT_H_

#include <charconv>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::ptx {

inline void AppendTo(std::string& out, std::string_view piece) { out += piece; }
inline void AppendTo(std::string& out, const char* piece) { out += piece; }
inline void AppendTo(std::string& out, const std::string& piece) { out += piece; }
inline void AppendTo(std::string& out, char piece) { out += piece; }
template <std::integral T>
void AppendTo(std::string& out, T value) {
  out += std::to_string(value);
}
template <std::floating_point T>
void AppendTo(std::string& out, T value) {
  char buffer[32];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
}

// Pieces of text, integers and floats, one after the other.
template <class... Pieces>
std::string Cat(const Pieces&... pieces) {
  std::string out;
  (AppendTo(out, pieces), ...);
  return out;
}

// "0x1f".
inline std::string Hex(uint64_t value) {
  char buffer[16];
  return "0x" + std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value, 16).ptr);
}

inline std::vector<std::string> Split(std::string_view text, char by) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = text.find(by);
    parts.emplace_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TEXT_H_
