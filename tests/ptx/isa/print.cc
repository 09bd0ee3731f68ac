#include "tests/ptx/isa/print.h"

#include <bit>
#include <cstdio>
#include <cstring>

#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/launch.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

std::string ReadString(Warp& w, int lane, uint64_t address) {
  std::string text;
  for (char c;; text += c, ++address) {
    w.LoadLane(lane, Space::kGeneric, address, 1, &c);
    if (c == '\0') return text;
  }
}

// One conversion of a format, "%-5.2f", with its argument of 4 or 8 bytes in the argument block.
std::string FormatOne(Warp& w, int lane, std::string spec, uint64_t* at) {
  const char kind = spec.back();
  const bool is_long = spec.find('l') != spec.npos || kind == 'p' || kind == 's';
  const bool is_float = std::strchr("aAeEfFgG", kind) != nullptr;
  const uint32_t bytes = is_long || is_float ? 8 : 4;
  *at = (*at + bytes - 1) / bytes * bytes;
  uint64_t value = 0;
  w.LoadLane(lane, Space::kGeneric, *at, bytes, &value);
  *at += bytes;
  if (kind == 's') {
    const std::string text = ReadString(w, lane, value);
    const int size = std::snprintf(nullptr, 0, spec.c_str(), text.c_str());
    std::string out(size + 1, '\0');
    std::snprintf(out.data(), out.size(), spec.c_str(), text.c_str());
    out.pop_back();
    return out;
  }
  char buffer[512];
  if (is_float) {
    std::snprintf(buffer, sizeof(buffer), spec.c_str(), std::bit_cast<double>(value));
  } else if (kind == 'p') {
    return Hex(value);
  } else {
    std::erase_if(spec, [](char c) { return c == 'l' || c == 'h' || c == 'z' || c == 'j' || c == 't'; });
    if (bytes == 8) spec.insert(spec.size() - 1, "ll");
    if (bytes == 8)
      std::snprintf(buffer, sizeof(buffer), spec.c_str(), static_cast<long long>(value));
    else
      std::snprintf(buffer, sizeof(buffer), spec.c_str(), static_cast<int>(value));
  }
  return buffer;
}

std::string Format(Warp& w, int lane, const std::string& format, uint64_t arguments) {
  std::string out;
  for (size_t k = 0; k < format.size(); ++k) {
    if (format[k] != '%') {
      out += format[k];
      continue;
    }
    size_t end = k + 1;
    while (end < format.size() && std::strchr("-+ #0123456789.lhzjt", format[end]) != nullptr) ++end;
    if (end >= format.size()) break;
    if (format[end] == '%') {
      out += '%';
    } else if (std::strchr("diuoxXcaAeEfFgGsp", format[end]) != nullptr) {
      out += FormatOne(w, lane, format.substr(k, end - k + 1), &arguments);
    } else {
      RaiseAt(lane, Rule::kBadOperand,
              Cat("device printf with the conversion '", format.substr(k, end - k + 1), "'"));
    }
    k = end;
  }
  return out;
}

void Print(Warp& w, const std::string& text, FILE* stream) {
  const auto& print = w.cta().grid().options.print;
  if (print)
    print(text);
  else
    std::fwrite(text.data(), 1, text.size(), stream);
}

}  // namespace

bool IsDeviceRuntime(const std::string& name) { return name == "vprintf" || name == "__assertfail"; }

bool CallDeviceRuntime(Warp& w, const std::string& name, const std::vector<std::vector<uint64_t>>& arguments,
                       uint64_t* result) {
  if (name == "vprintf" && arguments.size() == 2) {
    ForLanes(w.active(), [&](int l) {
      const std::string text = Format(w, l, ReadString(w, l, arguments[0][l]), arguments[1][l]);
      Print(w, text, stdout);
      result[l] = text.size();
    });
    return true;
  }
  if (name == "__assertfail" && arguments.size() == 5) {
    const int l = w.first_active();
    RaiseAt(l, Rule::kAssertion,
            Cat("`", ReadString(w, l, arguments[0][l]), "` in ", ReadString(w, l, arguments[3][l]), " (",
                ReadString(w, l, arguments[1][l]), ":", static_cast<uint32_t>(arguments[2][l]), ")"));
  }
  return false;
}

}  // namespace tessera::ptx
