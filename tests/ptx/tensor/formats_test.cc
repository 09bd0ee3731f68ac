#include "tests/ptx/tensor/formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace tessera::ptx {
namespace {

// OCP Microscaling Formats 1.0, section 5.3.3.
TEST(FormatsTest, E2M1HasItsSixteenValues) {
  const double expected[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint32_t code = 0; code < 8; ++code) {
    EXPECT_EQ(Decode(ElementType::kE2M1, code), expected[code]);
    EXPECT_EQ(Decode(ElementType::kE2M1, code | 8), -expected[code]);
  }
  EXPECT_TRUE(std::signbit(Decode(ElementType::kE2M1, 8)));
}

// OCP OFP8 1.0, table 1.
TEST(FormatsTest, E4M3Limits) {
  EXPECT_EQ(Decode(ElementType::kE4M3, 0x01), 0x1p-9);
  EXPECT_EQ(Decode(ElementType::kE4M3, 0x07), 0x0.ep-6);
  EXPECT_EQ(Decode(ElementType::kE4M3, 0x08), 0x1p-6);
  EXPECT_EQ(Decode(ElementType::kE4M3, 0x38), 1);
  EXPECT_EQ(Decode(ElementType::kE4M3, 0x7e), 448);
  EXPECT_EQ(Decode(ElementType::kE4M3, 0xfe), -448);
  EXPECT_TRUE(std::isnan(Decode(ElementType::kE4M3, 0x7f)));
  EXPECT_TRUE(std::isnan(Decode(ElementType::kE4M3, 0xff)));
  EXPECT_EQ(Decode(ElementType::kUE4M3, 0x7e), 448);
  EXPECT_EQ(Decode(ElementType::kUE4M3, 0xb8), 1) << "bit 7 of a scale is ignored";
}

TEST(FormatsTest, E5M2Limits) {
  EXPECT_EQ(Decode(ElementType::kE5M2, 0x01), 0x1p-16);
  EXPECT_EQ(Decode(ElementType::kE5M2, 0x04), 0x1p-14);
  EXPECT_EQ(Decode(ElementType::kE5M2, 0x7b), 57344);
  EXPECT_EQ(Decode(ElementType::kE5M2, 0x7c), std::numeric_limits<double>::infinity());
  EXPECT_EQ(Decode(ElementType::kE5M2, 0xfc), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(Decode(ElementType::kE5M2, 0x7d)));
}

// OCP Microscaling Formats 1.0, tables 3 and 4.
TEST(FormatsTest, SixBitLimits) {
  EXPECT_EQ(Decode(ElementType::kE2M3, 0x01), 0.125);
  EXPECT_EQ(Decode(ElementType::kE2M3, 0x07), 0.875);
  EXPECT_EQ(Decode(ElementType::kE2M3, 0x1f), 7.5);
  EXPECT_EQ(Decode(ElementType::kE2M3, 0x3f), -7.5);
  EXPECT_EQ(Decode(ElementType::kE3M2, 0x01), 0.0625);
  EXPECT_EQ(Decode(ElementType::kE3M2, 0x1f), 28);
  EXPECT_EQ(Decode(ElementType::kE3M2, 0x3f), -28);
  EXPECT_EQ(Decode(ElementType::kE3M2, 0xc0 | 0x0c), 1) << "bits above the sixth are ignored";
}

TEST(FormatsTest, UE8M0IsAPowerOfTwo) {
  EXPECT_EQ(Decode(ElementType::kUE8M0, 0), 0x1p-127);
  EXPECT_EQ(Decode(ElementType::kUE8M0, 127), 1);
  EXPECT_EQ(Decode(ElementType::kUE8M0, 254), 0x1p127);
  EXPECT_TRUE(std::isnan(Decode(ElementType::kUE8M0, 255)));
}

TEST(FormatsTest, WideTypes) {
  EXPECT_EQ(Decode(ElementType::kBF16, 0xc040), -3);
  EXPECT_EQ(Decode(ElementType::kTF32, std::bit_cast<uint32_t>(1.0f) | 0x1fff), 1)
      << "thirteen bits are dropped";
  EXPECT_EQ(Decode(ElementType::kTF32, std::bit_cast<uint32_t>(1.0f) | 0x2000), 1 + 0x1p-10);
  EXPECT_EQ(Decode(ElementType::kS8, 0x80), -128);
  EXPECT_EQ(Decode(ElementType::kU8, 0x80), 128);
}

// The compiler's own binary16 is the reference.
TEST(FormatsTest, F16DecodesAsTheCompilerDoes) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const double expected = static_cast<double>(std::bit_cast<_Float16>(static_cast<uint16_t>(code)));
    const double value = Decode(ElementType::kF16, code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(std::bit_cast<uint64_t>(value), std::bit_cast<uint64_t>(expected)) << code;
    }
  }
}

TEST(FormatsTest, F16RoundsOnceToNearestEven) {
  for (uint32_t code = 0; code < 0x7c00; ++code) {  // every value, every midpoint and both sides of it
    const double low = Decode(ElementType::kF16, code);
    const double high = code == 0x7bff ? 65536.0 : Decode(ElementType::kF16, code + 1);
    const double middle = (low + high) / 2;
    ASSERT_EQ(RoundToF16(low), code);
    ASSERT_EQ(RoundToF16(-low), code | 0x8000);
    ASSERT_EQ(RoundToF16(middle), code % 2 == 0 ? code : code + 1);
    ASSERT_EQ(RoundToF16(std::nextafter(middle, 0.0)), code);
    ASSERT_EQ(RoundToF16(std::nextafter(middle, 1e9)), code + 1);
  }
  // Through float this would round twice: 1 + 2^-11 + 2^-40 is above the midpoint, in float it is the midpoint.
  EXPECT_EQ(RoundToF16(1 + 0x1p-11 + 0x1p-40), 0x3c01);
  EXPECT_EQ(RoundToF16(std::numeric_limits<double>::quiet_NaN()), 0x7fff);
  EXPECT_EQ(RoundToF16(1e300), 0x7c00);
}

TEST(FormatsTest, F32RoundsToNearestEven) {
  EXPECT_EQ(RoundToF32(1 + 0x1p-24), 0x3f800000u);
  EXPECT_EQ(RoundToF32(1 + 0x3p-24), 0x3f800002u);
  EXPECT_EQ(RoundToF32(-0.0), 0x80000000u);
  EXPECT_EQ(RoundToF32(1e300), 0x7f800000u);
  EXPECT_EQ(RoundToF32(std::numeric_limits<double>::quiet_NaN()), 0x7fffffffu);
}

// Every code of every type comes back; every midpoint goes to the even code; beyond the last one, Overflow decides.
TEST(FormatsTest, EncodeInvertsDecode) {
  const struct {
    ElementType type;
    uint32_t largest;  // code of the largest finite value
    int drop;          // unused low bits
  } kTypes[] = {{ElementType::kF16, 0x7bff, 0},    {ElementType::kBF16, 0x7f7f, 0},
                {ElementType::kTF32, 0x3fbff, 13}, {ElementType::kE4M3, 0x7e, 0},
                {ElementType::kE5M2, 0x7b, 0},     {ElementType::kE2M3, 0x1f, 0},
                {ElementType::kE3M2, 0x1f, 0},     {ElementType::kE2M1, 0x7, 0}};
  for (const auto& t : kTypes) {
    const uint32_t step = t.type == ElementType::kTF32 ? 7 : 1;
    for (uint32_t code = 0; code + step <= t.largest; code += step) {
      const double low = Decode(t.type, code << t.drop);
      const double high = Decode(t.type, (code + 1) << t.drop);
      ASSERT_EQ(Encode(t.type, low, Overflow::kSaturate), code << t.drop) << Name(t.type);
      const double middle = (low + high) / 2;
      ASSERT_EQ(Encode(t.type, middle, Overflow::kSaturate), (code + (code & 1)) << t.drop) << Name(t.type);
      ASSERT_EQ(Encode(t.type, std::nextafter(middle, 0.0), Overflow::kSaturate), code << t.drop);
      ASSERT_EQ(Encode(t.type, std::nextafter(middle, std::numeric_limits<double>::infinity()),
                       Overflow::kSaturate),
                (code + 1) << t.drop);
    }
    EXPECT_EQ(Encode(t.type, 1e300, Overflow::kSaturate), t.largest << t.drop) << Name(t.type);
    EXPECT_EQ(Encode(t.type, std::numeric_limits<double>::infinity(), Overflow::kSaturate),
              t.largest << t.drop);
  }
  EXPECT_EQ(Encode(ElementType::kE4M3, 464, Overflow::kSpecial), 0x7eu)
      << "the midpoint of 448 and 480 is even";
  EXPECT_EQ(Encode(ElementType::kE4M3, 465, Overflow::kSpecial), 0x7fu);
  EXPECT_EQ(Encode(ElementType::kE5M2, 65536, Overflow::kSpecial), 0x7cu);
  EXPECT_EQ(Encode(ElementType::kE2M1, -7, Overflow::kSpecial), 0xfu);
  EXPECT_EQ(Encode(ElementType::kE2M1, -0.0, Overflow::kSpecial), 0x8u);
  EXPECT_EQ(Encode(ElementType::kE2M1, std::numeric_limits<double>::quiet_NaN(), Overflow::kSaturate), 0x7u);
  EXPECT_EQ(Encode(ElementType::kBF16, std::numeric_limits<double>::quiet_NaN(), Overflow::kSpecial),
            0x7fffu);
}

TEST(FormatsTest, UE8M0Rounding) {
  EXPECT_EQ(EncodeUE8M0(1, false), 127);
  EXPECT_EQ(EncodeUE8M0(1, true), 127);
  EXPECT_EQ(EncodeUE8M0(1.5, false), 127);
  EXPECT_EQ(EncodeUE8M0(1.5, true), 128);
  EXPECT_EQ(EncodeUE8M0(0, true), 0);
  EXPECT_EQ(EncodeUE8M0(1e300, false), 254);
}

}  // namespace
}  // namespace tessera::ptx
