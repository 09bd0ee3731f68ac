#include "tests/ptx/tensor/formats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace tessera::ptx {
namespace {

// How a format with a sign spends its codes of the highest exponent.
enum class Specials {
  kNone,    // finite values like any other
  kOneNaN,  // only the highest mantissa is NaN (E4M3)
  kIeee,    // infinity, and NaN for any other mantissa
};

double DecodeFloat(uint32_t bits, int exponent_bits, int mantissa_bits, Specials specials) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const uint32_t highest = (1u << exponent_bits) - 1;
  const uint32_t exponent = (bits >> mantissa_bits) & highest;
  const bool negative = (bits >> (mantissa_bits + exponent_bits)) & 1;
  const int bias = static_cast<int>(highest >> 1);
  double value;
  if (exponent == highest && specials == Specials::kIeee) {
    value =
        mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == highest && specials == Specials::kOneNaN && mantissa == (1u << mantissa_bits) - 1) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(static_cast<double>(mantissa | (1u << mantissa_bits)),
                       static_cast<int>(exponent) - bias - mantissa_bits);
  }
  return negative ? -value : value;
}

// DecodeFloat for the common case, without its library calls.
double DecodeF16(uint32_t bits) {
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint64_t mantissa = bits & 0x3ff;
  const uint64_t sign = static_cast<uint64_t>(bits >> 15) << 63;
  if (exponent == 0) {
    const double value = static_cast<double>(mantissa) * 0x1p-24;
    return sign != 0 ? -value : value;
  }
  const uint64_t wide = exponent == 0x1f ? 0x7ff : exponent + 1023 - 15;
  return std::bit_cast<double>(sign | wide << 52 | mantissa << 42);
}

struct Layout {
  int exponent_bits;
  int mantissa_bits;
  Specials specials;
};

// Of the floating-point types with a sign. TF32 without its thirteen unused bits.
Layout LayoutOf(ElementType type) {
  switch (type) {
    case ElementType::kF16:
      return {5, 10, Specials::kIeee};
    case ElementType::kBF16:
      return {8, 7, Specials::kIeee};
    case ElementType::kTF32:
      return {8, 10, Specials::kIeee};
    case ElementType::kE5M2:
      return {5, 2, Specials::kIeee};
    case ElementType::kE2M3:
      return {2, 3, Specials::kNone};
    case ElementType::kE3M2:
      return {3, 2, Specials::kNone};
    case ElementType::kE2M1:
      return {2, 1, Specials::kNone};
    case ElementType::kE4M3:
      return {4, 3, Specials::kOneNaN};
    default:
      return {8, 23, Specials::kIeee};
  }
}

using Table = std::array<double, 256>;

// Formats of at most eight bits are looked up: operands are decoded far more often than anything else here.
template <typename F>
Table MakeTable(F decode) {
  Table table;
  for (uint32_t code = 0; code < 256; ++code) table[code] = decode(code);
  return table;
}

const Table& E4M3Table() {
  static const Table table = MakeTable([](uint32_t c) { return DecodeFloat(c, 4, 3, Specials::kOneNaN); });
  return table;
}
const Table& E5M2Table() {
  static const Table table = MakeTable([](uint32_t c) { return DecodeFloat(c, 5, 2, Specials::kIeee); });
  return table;
}
const Table& E2M3Table() {
  static const Table table =
      MakeTable([](uint32_t c) { return DecodeFloat(c & 0x3f, 2, 3, Specials::kNone); });
  return table;
}
const Table& E3M2Table() {
  static const Table table =
      MakeTable([](uint32_t c) { return DecodeFloat(c & 0x3f, 3, 2, Specials::kNone); });
  return table;
}
const Table& E2M1Table() {
  static const Table table =
      MakeTable([](uint32_t c) { return DecodeFloat(c & 0xf, 2, 1, Specials::kNone); });
  return table;
}
const Table& UE8M0Table() {
  static const Table table = MakeTable([](uint32_t c) {
    return c == 0xff ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, static_cast<int>(c) - 127);
  });
  return table;
}

}  // namespace

std::string_view Name(ElementType type) {
  switch (type) {
    case ElementType::kF16:
      return "f16";
    case ElementType::kBF16:
      return "bf16";
    case ElementType::kTF32:
      return "tf32";
    case ElementType::kF32:
      return "f32";
    case ElementType::kE4M3:
      return "e4m3";
    case ElementType::kE5M2:
      return "e5m2";
    case ElementType::kE2M3:
      return "e2m3";
    case ElementType::kE3M2:
      return "e3m2";
    case ElementType::kE2M1:
      return "e2m1";
    case ElementType::kUE8M0:
      return "ue8m0";
    case ElementType::kUE4M3:
      return "ue4m3";
    case ElementType::kS8:
      return "s8";
    case ElementType::kU8:
      return "u8";
    case ElementType::kS32:
      return "s32";
  }
  return "?";
}

int BitsOf(ElementType type) {
  switch (type) {
    case ElementType::kF16:
    case ElementType::kBF16:
      return 16;
    case ElementType::kTF32:
    case ElementType::kF32:
    case ElementType::kS32:
      return 32;
    case ElementType::kE2M3:
    case ElementType::kE3M2:
      return 6;
    case ElementType::kE2M1:
      return 4;
    default:
      return 8;
  }
}

bool IsInteger(ElementType type) {
  return type == ElementType::kS8 || type == ElementType::kU8 || type == ElementType::kS32;
}

double Decode(ElementType type, uint32_t bits) {
  switch (type) {
    case ElementType::kF16:
      return DecodeF16(bits & 0xffff);
    case ElementType::kBF16:
      return std::bit_cast<float>(bits << 16);
    case ElementType::kTF32:
      return std::bit_cast<float>(bits & 0xffffe000u);
    case ElementType::kF32:
      return std::bit_cast<float>(bits);
    case ElementType::kE4M3:
      return E4M3Table()[bits & 0xff];
    case ElementType::kE5M2:
      return E5M2Table()[bits & 0xff];
    case ElementType::kE2M3:
      return E2M3Table()[bits & 0xff];
    case ElementType::kE3M2:
      return E3M2Table()[bits & 0xff];
    case ElementType::kE2M1:
      return E2M1Table()[bits & 0xff];
    case ElementType::kUE8M0:
      return UE8M0Table()[bits & 0xff];
    case ElementType::kUE4M3:
      return E4M3Table()[bits & 0x7f];
    case ElementType::kS8:
      return static_cast<int8_t>(bits & 0xff);
    case ElementType::kU8:
      return static_cast<uint8_t>(bits & 0xff);
    case ElementType::kS32:
      return static_cast<int32_t>(bits);
  }
  return 0;
}

void DecodeWord(ElementType type, uint32_t word, double* values) {
  switch (BitsOf(type)) {
    case 16:
      if (type == ElementType::kBF16) {
        values[0] = std::bit_cast<float>(word << 16);
        values[1] = std::bit_cast<float>(word & 0xffff0000u);
      } else {
        values[0] = DecodeF16(word & 0xffff);
        values[1] = DecodeF16(word >> 16);
      }
      return;
    case 8:
      for (int i = 0; i < 4; ++i) values[i] = Decode(type, word >> (8 * i));
      return;
    default:
      values[0] = Decode(type, word);
  }
}

uint32_t RoundToF32(double value) {
  if (std::isnan(value)) return 0x7fffffffu;
  return std::bit_cast<uint32_t>(static_cast<float>(value));
}

uint16_t RoundToF16(double value) {
  return static_cast<uint16_t>(Encode(ElementType::kF16, value, Overflow::kSpecial));
}

uint32_t Encode(ElementType type, double value, Overflow overflow) {
  const Layout layout = LayoutOf(type);
  const int width = 1 + layout.exponent_bits + layout.mantissa_bits;
  const uint32_t sign = std::signbit(value) ? 1u << (width - 1) : 0;
  const uint32_t highest = (1u << layout.exponent_bits) - 1;
  const uint32_t infinity = highest << layout.mantissa_bits;
  const uint32_t all_ones = (1u << (width - 1)) - 1;
  const uint32_t largest = layout.specials == Specials::kIeee     ? infinity - 1
                           : layout.specials == Specials::kOneNaN ? all_ones - 1
                                                                  : all_ones;
  uint32_t code;
  if (std::isnan(value)) {
    code = layout.specials == Specials::kNone ? largest : all_ones;
  } else {
    const int bias = static_cast<int>(highest >> 1);
    // The grid: the smallest subnormal below the normal range, else the last mantissa bit of the value's binade.
    // nearbyint rounds ties to even. Adding the units to the exponent carries as the format wants.
    const double magnitude = std::min(std::fabs(value), std::ldexp(1.0, bias + 2));
    int exponent = 1 - bias;
    if (magnitude > 0) exponent = std::max(exponent, std::ilogb(magnitude));
    const double units = std::nearbyint(std::ldexp(magnitude, layout.mantissa_bits - exponent));
    code =
        (static_cast<uint32_t>(exponent - 1 + bias) << layout.mantissa_bits) + static_cast<uint32_t>(units);
    if (code > largest) {
      const bool saturate = overflow == Overflow::kSaturate || layout.specials == Specials::kNone;
      code = saturate ? largest : layout.specials == Specials::kIeee ? infinity : all_ones;
    }
    code |= sign;
  }
  return type == ElementType::kTF32 ? code << 13 : code;
}

uint8_t EncodeUE8M0(double value, bool round_up) {
  if (std::isnan(value)) return 0xff;
  const double magnitude = std::fabs(value);
  if (magnitude <= 0x1p-127) return 0;
  if (magnitude >= 0x1p127) return 0xfe;
  const int exponent = std::ilogb(magnitude);
  const bool exact = std::ldexp(1.0, exponent) == magnitude;
  return static_cast<uint8_t>(exponent + 127 + (round_up && !exact ? 1 : 0));
}

}  // namespace tessera::ptx
