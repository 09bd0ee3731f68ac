// Integer and bit instructions against 128-bit arithmetic and bit-by-bit definitions.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "tests/ptx/testing/lane_function.h"

namespace tessera::ptx {
namespace {

using Wide = __int128;

Wide Value(uint64_t bits, int width, bool sign) {
  if (!sign) return bits;
  return static_cast<int64_t>(bits << (64 - width)) >> (64 - width);
}
uint64_t Low(Wide v, int width) {
  return static_cast<uint64_t>(v) & (width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1);
}

// `code` on operands of `width` bits against f(a, b, c) on their values as integers, truncated to `result` bits.
void Check(const std::string& code, int width, bool sign, int result,
           const std::function<Wide(Wide, Wide, Wide)>& f) {
  const auto inputs = Combine(InterestingIntegers(width, 40), 600);
  const auto got = Evaluate(code, width, result, inputs);
  for (size_t k = 0; k < inputs.size(); ++k) {
    const auto& in = inputs[k];
    const uint64_t want =
        Low(f(Value(in[0], width, sign), Value(in[1], width, sign), Value(in[2], width, sign)), result);
    ASSERT_EQ(got[k], want) << code << " of " << std::hex << in[0] << ", " << in[1] << ", " << in[2];
  }
}

TEST(Integer, ArithmeticOfEveryWidth) {
  for (const int width : {16, 32, 64}) {
    for (const bool sign : {false, true}) {
      const std::string t = (sign ? ".s" : ".u") + std::to_string(width);
      const auto divides = [&](Wide a, Wide b) { return b == 0 ? Wide{-1} : a / b; };
      Check("add" + t + " %d, %a, %b;", width, sign, width, [](Wide a, Wide b, Wide) { return a + b; });
      Check("sub" + t + " %d, %a, %b;", width, sign, width, [](Wide a, Wide b, Wide) { return a - b; });
      Check("mul.lo" + t + " %d, %a, %b;", width, sign, width, [](Wide a, Wide b, Wide) { return a * b; });
      Check("mul.hi" + t + " %d, %a, %b;", width, sign, width, [&](Wide a, Wide b, Wide) {
        return sign ? (a * b) >> width
                    : static_cast<Wide>(
                          static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b) >> width);
      });
      Check("mad.lo" + t + " %d, %a, %b, %c;", width, sign, width,
            [](Wide a, Wide b, Wide c) { return a * b + c; });
      Check("div" + t + " %d, %a, %b;", width, sign, width,
            [&](Wide a, Wide b, Wide) { return divides(a, b); });
      Check("rem" + t + " %d, %a, %b;", width, sign, width,
            [](Wide a, Wide b, Wide) { return b == 0 ? a : a % b; });
      Check("min" + t + " %d, %a, %b;", width, sign, width,
            [](Wide a, Wide b, Wide) { return std::min(a, b); });
      Check("max" + t + " %d, %a, %b;", width, sign, width,
            [](Wide a, Wide b, Wide) { return std::max(a, b); });
      Check("sad" + t + " %d, %a, %b, %c;", width, sign, width,
            [](Wide a, Wide b, Wide c) { return c + (a < b ? b - a : a - b); });
      if (sign) {
        Check("neg" + t + " %d, %a;", width, sign, width, [](Wide a, Wide, Wide) { return -a; });
        Check("abs" + t + " %d, %a;", width, sign, width, [](Wide a, Wide, Wide) { return a < 0 ? -a : a; });
      }
      if (width < 64)
        Check("mul.wide" + t + " %d, %a, %b;", width, sign, 2 * width,
              [](Wide a, Wide b, Wide) { return a * b; });
    }
  }
}

TEST(Integer, SaturatingAndWideMad) {
  Check("add.sat.s32 %d, %a, %b;", 32, true, 32,
        [](Wide a, Wide b, Wide) { return std::clamp<Wide>(a + b, INT32_MIN, INT32_MAX); });
  Check("sub.sat.s32 %d, %a, %b;", 32, true, 32,
        [](Wide a, Wide b, Wide) { return std::clamp<Wide>(a - b, INT32_MIN, INT32_MAX); });
  Check("cvt.u64.u32 %y, %c;\n mad.wide.u32 %d, %a, %b, %y;", 32, false, 64,
        [](Wide a, Wide b, Wide c) { return a * b + c; });
  Check("cvt.s64.s32 %y, %c;\n mad.wide.s32 %d, %a, %b, %y;", 32, true, 64,
        [](Wide a, Wide b, Wide c) { return a * b + c; });
}

TEST(Integer, CarryChains) {
  // 128 bits from 64: the low sum sets the flag, the high word takes it.
  Check("add.cc.u64 %y, %a, %b;\n addc.u64 %d, %c, 0;", 64, false, 64, [](Wide a, Wide b, Wide c) {
    return c +
           static_cast<Wide>((static_cast<unsigned __int128>(a) + static_cast<unsigned __int128>(b)) >> 64);
  });
  Check("sub.cc.u32 %x, %a, %b;\n subc.u32 %d, %c, 0;", 32, false, 32,
        [](Wide a, Wide b, Wide c) { return c - (a < b); });
  Check("mad.lo.cc.u32 %x, %a, %b, %c;\n madc.hi.u32 %d, %a, %b, 0;", 32, false, 32,
        [](Wide a, Wide b, Wide c) { return (a * b + c) >> 32; });
}

TEST(Integer, LogicAndShifts) {
  for (const int width : {16, 32, 64}) {
    const std::string b = ".b" + std::to_string(width), s = ".s" + std::to_string(width),
                      u = ".u" + std::to_string(width);
    Check("and" + b + " %d, %a, %b;", width, false, width, [](Wide a, Wide b, Wide) { return a & b; });
    Check("or" + b + " %d, %a, %b;", width, false, width, [](Wide a, Wide b, Wide) { return a | b; });
    Check("xor" + b + " %d, %a, %b;", width, false, width, [](Wide a, Wide b, Wide) { return a ^ b; });
    Check("not" + b + " %d, %a;", width, false, width, [](Wide a, Wide, Wide) { return ~a; });
    const std::string amount = width == 16   ? "cvt.u32.u16 %x, %b;\n"
                               : width == 32 ? "mov.b32 %x, %b;\n"
                                             : "cvt.u32.u64 %x, %b;\n";
    const auto clamped = [](Wide b) {
      return static_cast<int>(std::min<uint32_t>(static_cast<uint32_t>(b), 64));
    };
    Check(amount + "shl" + b + " %d, %a, %x;", width, false, width,
          [&](Wide a, Wide b, Wide) { return a << clamped(b); });
    Check(amount + "shr" + u + " %d, %a, %x;", width, false, width,
          [&](Wide a, Wide b, Wide) { return a >> clamped(b); });
    Check(amount + "shr" + s + " %d, %a, %x;", width, true, width,
          [&](Wide a, Wide b, Wide) { return a >> clamped(b); });
  }
  Check("shf.l.wrap.b32 %d, %a, %b, %c;", 32, false, 32,
        [](Wide a, Wide b, Wide c) { return ((b << 32 | a) << (c & 31)) >> 32; });
  Check("shf.l.clamp.b32 %d, %a, %b, %c;", 32, false, 32,
        [](Wide a, Wide b, Wide c) { return ((b << 32 | a) << std::min<int64_t>(c, 32)) >> 32; });
  Check("shf.r.wrap.b32 %d, %a, %b, %c;", 32, false, 32,
        [](Wide a, Wide b, Wide c) { return (b << 32 | a) >> (c & 31); });
  Check("shf.r.clamp.b32 %d, %a, %b, %c;", 32, false, 32,
        [](Wide a, Wide b, Wide c) { return (b << 32 | a) >> std::min<int64_t>(c, 32); });
  for (const int table : {0x00, 0x96, 0xE8, 0xCA, 0x1B, 0xFF}) {
    Check("lop3.b32 %d, %a, %b, %c, " + std::to_string(table) + ";", 32, false, 32,
          [table](Wide a, Wide b, Wide c) {
            Wide d = 0;
            for (int k = 0; k < 32; ++k) {
              const int index = static_cast<int>((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1));
              d |= Wide{table >> index & 1} << k;
            }
            return d;
          });
  }
}

TEST(Integer, CountsAndFields) {
  for (const int width : {32, 64}) {
    const std::string w = std::to_string(width);
    Check("popc.b" + w + " %d, %a;", width, false, 32,
          [](Wide a, Wide, Wide) { return std::popcount(static_cast<uint64_t>(a)); });
    Check("clz.b" + w + " %d, %a;", width, false, 32, [width](Wide a, Wide, Wide) {
      int n = 0;
      while (n < width && !(a >> (width - 1 - n) & 1)) ++n;
      return n;
    });
    Check("brev.b" + w + " %d, %a;", width, false, width, [width](Wide a, Wide, Wide) {
      Wide d = 0;
      for (int k = 0; k < width; ++k) d |= (a >> k & 1) << (width - 1 - k);
      return d;
    });
    for (const bool sign : {false, true}) {
      const std::string t = (sign ? ".s" : ".u") + w;
      Check("bfind" + t + " %d, %a;", width, sign, 32, [width](Wide a, Wide, Wide) {
        if (a < 0) a = ~a;
        int at = -1;
        for (int k = 0; k < width; ++k) at = (a >> k & 1) != 0 ? k : at;
        return at;
      });
      const std::string positions = width == 64 ? "cvt.u32.u64 %x, %b;\n cvt.u32.u64 %r9, %c;\n"
                                                : "mov.b32 %x, %b;\n mov.b32 %r9, %c;\n";
      // From the manual's own definition.
      Check(positions + "bfe" + t + " %d, %a, %x, %r9;", width, sign, width,
            [width, sign](Wide a, Wide b, Wide c) {
              const int msb = width - 1, pos = static_cast<int>(b) & 0xFF, len = static_cast<int>(c) & 0xFF;
              const bool sbit = !sign || len == 0 ? false : (a >> std::min(pos + len - 1, msb) & 1) != 0;
              Wide d = 0;
              for (int k = 0; k <= msb; ++k)
                d |= Wide{k < len && pos + k <= msb ? (a >> (pos + k) & 1) != 0 : sbit} << k;
              return d;
            });
      // Inserted into zero, and into ones.
      for (const int base : {0, -1}) {
        Check(positions + "bfi.b" + w + " %d, %a, " + std::to_string(base) + ", %x, %r9;", width, false,
              width, [width, base](Wide a, Wide b, Wide c) {
                const int pos = static_cast<int>(b) & 0xFF, len = static_cast<int>(c) & 0xFF;
                Wide d = base;
                for (int k = 0; k < len && pos + k < width; ++k) {
                  d = (d & ~(Wide{1} << (pos + k))) | (a >> k & 1) << (pos + k);
                }
                return d;
              });
      }
    }
  }
}

TEST(Integer, Permute) {
  Check("prmt.b32 %d, %a, %b, %c;", 32, false, 32, [](Wide a, Wide b, Wide c) {
    Wide d = 0;
    for (int k = 0; k < 4; ++k) {
      const int nibble = static_cast<int>(c >> 4 * k & 15);
      int byte = static_cast<int>((b << 32 | a) >> 8 * (nibble & 7) & 0xFF);
      if (nibble & 8) byte = byte >= 128 ? 0xFF : 0;
      d |= Wide{byte} << 8 * k;
    }
    return d;
  });
  // The manual's table of the modes, byte numbers from the top.
  const auto got = Evaluate("prmt.b32.f4e %d, %a, %b, %c;", 32, 32, {{0x33221100, 0x77665544, 1, 0}});
  EXPECT_EQ(got[0], 0x44332211u);
  EXPECT_EQ(Evaluate("prmt.b32.b4e %d, %a, %b, %c;", 32, 32, {{0x33221100, 0x77665544, 1, 0}})[0],
            0x66770011u);
  EXPECT_EQ(Evaluate("prmt.b32.rc8 %d, %a, %b, %c;", 32, 32, {{0x33221100, 0x77665544, 2, 0}})[0],
            0x22222222u);
  EXPECT_EQ(Evaluate("prmt.b32.ecl %d, %a, %b, %c;", 32, 32, {{0x33221100, 0x77665544, 1, 0}})[0],
            0x33221111u);
  EXPECT_EQ(Evaluate("prmt.b32.ecr %d, %a, %b, %c;", 32, 32, {{0x33221100, 0x77665544, 2, 0}})[0],
            0x22221100u);
  EXPECT_EQ(Evaluate("prmt.b32.rc16 %d, %a, %b, %c;", 32, 32, {{0x33221100, 0x77665544, 1, 0}})[0],
            0x33223322u);
}

TEST(Integer, DotProducts) {
  Check("dp4a.s32.s32 %d, %a, %b, %c;", 32, true, 32, [](Wide a, Wide b, Wide c) {
    for (int k = 0; k < 4; ++k) c += int8_t(a >> 8 * k) * int8_t(b >> 8 * k);
    return c;
  });
  Check("dp4a.u32.s32 %d, %a, %b, %c;", 32, true, 32, [](Wide a, Wide b, Wide c) {
    for (int k = 0; k < 4; ++k) c += uint8_t(a >> 8 * k) * int8_t(b >> 8 * k);
    return c;
  });
  Check("dp2a.hi.s32.u32 %d, %a, %b, %c;", 32, true, 32, [](Wide a, Wide b, Wide c) {
    for (int k = 0; k < 2; ++k) c += int16_t(a >> 16 * k) * uint8_t(b >> (16 + 8 * k));
    return c;
  });
}

TEST(Integer, Comparisons) {
  const struct {
    const char* name;
    std::function<bool(Wide, Wide)> holds;
  } kRelations[] = {{"eq", std::equal_to<Wide>()}, {"ne", std::not_equal_to<Wide>()},
                    {"lt", std::less<Wide>()},     {"le", std::less_equal<Wide>()},
                    {"gt", std::greater<Wide>()},  {"ge", std::greater_equal<Wide>()}};
  for (const auto& r : kRelations) {
    for (const char* t : {"s16", "u16", "s32", "u32", "s64", "u64"}) {
      Check(std::string("setp.") + r.name + "." + t + " %p, %a, %b;\n selp.u32 %d, 1, 0, %p;",
            std::stoi(t + 1), t[0] == 's', 32, [&](Wide a, Wide b, Wide) { return r.holds(a, b); });
    }
  }
  // q is the complement, each combined with the third predicate.
  Check(
      "setp.ge.s32 %p2, %c, 0;\n setp.lt.and.s32 %p|%q, %a, %b, %p2;\n selp.u32 %d, 1, 0, %p;\n @%q add.u32 "
      "%d, %d, 2;",
      32, true, 32, [](Wide a, Wide b, Wide c) { return c < 0   ? 0
                                                        : a < b ? 1
                                                                : 2; });
  Check(
      "setp.ge.s32 %p2, %c, 0;\n setp.lt.xor.s32 %p|%q, %a, %b, !%p2;\n selp.u32 %d, 1, 0, %p;\n @%q add.u32 "
      "%d, %d, 2;",
      32, true, 32,
      [](Wide a, Wide b, Wide c) { return ((a < b) != (c < 0) ? 1 : 0) + ((a >= b) != (c < 0) ? 2 : 0); });
  Check("slct.s32.s32 %d, %a, %b, %c;", 32, true, 32, [](Wide a, Wide b, Wide c) { return c >= 0 ? a : b; });
}

TEST(Integer, Conversions) {
  for (const char* to : {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"}) {
    for (const char* from : {"u16", "s16", "u32", "s32", "u64", "s64"}) {
      const int to_bits = std::stoi(to + 1), from_bits = std::stoi(from + 1);
      const bool to_sign = to[0] == 's', from_sign = from[0] == 's';
      // Into a register of 64 bits: the value extended as the destination type says.
      const std::string t = std::string(to) + "." + from + " %d, %a;";
      Check("cvt." + t, from_bits, from_sign, 64,
            [&](Wide a, Wide, Wide) { return Value(Low(a, to_bits), to_bits, to_sign); });
      const Wide low = to_sign ? -(Wide{1} << (to_bits - 1)) : 0,
                 high = (Wide{1} << (to_sign ? to_bits - 1 : to_bits)) - 1;
      Check("cvt.sat." + t, from_bits, from_sign, 64,
            [&](Wide a, Wide, Wide) { return std::clamp(a, low, high); });
    }
  }
}

}  // namespace
}  // namespace tessera::ptx
