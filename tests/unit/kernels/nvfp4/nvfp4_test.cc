#include "kernels/nvfp4/nvfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/nvfp4/bf16.h"

namespace tessera::nvfp4 {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(E2M1Test, DecodesTheTableOfTheSpecification) {
  const float expected[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(E2M1ToFloat(code), expected[code]);
    EXPECT_EQ(E2M1ToFloat(code | 8), -expected[code]);
    EXPECT_EQ(std::signbit(E2M1ToFloat(code | 8)), true);
    EXPECT_EQ(E2M1ToFloat(code | 0xf0), E2M1ToFloat(code));
  }
  static_assert(E2M1ToFloat(7) == kE2M1Max);
}

TEST(E2M1Test, EncodesEveryCodeToItself) {
  for (uint8_t code = 0; code < 16; ++code) EXPECT_EQ(FloatToE2M1(E2M1ToFloat(code)), code);
}

TEST(E2M1Test, TiesGoToTheEvenCodeAndTheRestSaturates) {
  // Midpoint, expected code.
  const std::pair<float, uint8_t> ties[] = {{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4},
                                            {2.5f, 4},  {3.5f, 6},  {5.0f, 6}};
  for (const auto& [value, code] : ties) {
    EXPECT_EQ(FloatToE2M1(value), code) << value;
    EXPECT_EQ(FloatToE2M1(-value), code | 8) << value;
    EXPECT_EQ(FloatToE2M1(std::nextafter(value, 0.0f)),
              code % 2 == 0 && E2M1ToFloat(code) > value ? code - 1 : code);
    EXPECT_EQ(FloatToE2M1(std::nextafter(value, 9.0f)), E2M1ToFloat(code) > value ? code : code + 1);
  }
  EXPECT_EQ(FloatToE2M1(1e30f), 7);
  EXPECT_EQ(FloatToE2M1(-kInfinity), 15);
  EXPECT_EQ(FloatToE2M1(-0.0f), 8);
  EXPECT_EQ(FloatToE2M1(1e-45f), 0);
  EXPECT_EQ(FloatToE2M1(kNaN), 7);
}

TEST(E4M3Test, DecodesByTheDefinition) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    const double sign = code >= 128 ? -1.0 : 1.0;
    const float value = E4M3ToFloat(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
    } else if (exponent == 0) {
      EXPECT_EQ(value, sign * mantissa * std::ldexp(1.0, -9));
    } else {
      EXPECT_EQ(value, sign * (1.0 + mantissa / 8.0) * std::ldexp(1.0, exponent - 7)) << code;
    }
    EXPECT_EQ(std::signbit(value), code >= 128);
  }
  // Named values of the specification.
  EXPECT_EQ(E4M3ToFloat(0x7e), 448.0f);
  EXPECT_EQ(E4M3ToFloat(0x08), 0x1p-6f);
  EXPECT_EQ(E4M3ToFloat(0x07), 0.875f * 0x1p-6f);
  EXPECT_EQ(E4M3ToFloat(0x01), 0x1p-9f);
}

TEST(E4M3Test, EncodesEveryCodeToItself) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;
    EXPECT_EQ(FloatToE4M3(E4M3ToFloat(static_cast<uint8_t>(code))), code);
  }
}

TEST(E4M3Test, MidpointsGoToTheEvenCode) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = E4M3ToFloat(static_cast<uint8_t>(code));
    const float high = E4M3ToFloat(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;  // exact
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(FloatToE4M3(middle), even);
    EXPECT_EQ(FloatToE4M3(-middle), even | 0x80);
    EXPECT_EQ(FloatToE4M3(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(FloatToE4M3(std::nextafter(middle, 1e9f)), code + 1);
  }
}

TEST(E4M3Test, SaturatesAndKeepsNaN) {
  EXPECT_EQ(FloatToE4M3(448.0f), 0x7e);
  EXPECT_EQ(FloatToE4M3(449.0f), 0x7e);
  EXPECT_EQ(FloatToE4M3(kInfinity), 0x7e);
  EXPECT_EQ(FloatToE4M3(-1e38f), 0xfe);
  EXPECT_EQ(FloatToE4M3(kNaN) & 0x7f, 0x7f);
  EXPECT_EQ(FloatToE4M3(0x1p-11f), 0);
  EXPECT_EQ(FloatToE4M3(-0.0f), 0x80);
}

TEST(Nvfp4Test, EveryProductIsExactInBf16) {
  for (int code = 0; code < 16; ++code) {
    for (int scale = 0; scale < 0x7f; ++scale) {
      const float value = DequantizeUnscaled(static_cast<uint8_t>(code), static_cast<uint8_t>(scale));
      EXPECT_EQ(ToFloat(ToBf16(value)), value);
    }
  }
}

TEST(Bf16Test, RoundsToNearestEven) {
  EXPECT_EQ(ToBf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(ToBf16(0x1.01p0f).bits, 0x3f80);         // midpoint, even below
  EXPECT_EQ(ToBf16(0x1.03p0f).bits, 0x3f82);         // midpoint, even above
  EXPECT_EQ(ToBf16(0x1.010002p0f).bits, 0x3f81);     // just past a midpoint
  EXPECT_EQ(ToBf16(-0x1.fep127f).bits, 0xff7f);      // largest
  EXPECT_EQ(ToBf16(-0x1.fffffep127f).bits, 0xff80);  // past it: infinity
  EXPECT_EQ(ToBf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(ToBf16(kInfinity).bits, 0x7f80);
  EXPECT_EQ(ToBf16(0x1p-149f).bits, 0);
}

TEST(Bf16Test, NaNStaysNaN) {
  for (uint32_t bits : {0x7f800001u, 0xffffffffu, 0x7fc00000u, 0x7fffffffu, 0xff80ffffu}) {
    const Bf16 value = ToBf16(__builtin_bit_cast(float, bits));
    EXPECT_TRUE(std::isnan(ToFloat(value))) << std::hex << bits;
    EXPECT_EQ(value.bits >> 15, bits >> 31);
  }
}

TEST(Bf16Test, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 value{static_cast<uint16_t>(bits)};
    if (std::isnan(ToFloat(value))) continue;
    EXPECT_EQ(ToBf16(ToFloat(value)), value);
  }
}

TEST(HalfTest, DecodesByTheDefinition) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 31);
    const int mantissa = static_cast<int>(bits & 1023);
    const double sign = bits >= 0x8000 ? -1.0 : 1.0;
    const float value = HalfBitsToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      EXPECT_TRUE(mantissa == 0 ? value == sign * kInfinity : std::isnan(value));
    } else {
      EXPECT_EQ(value, exponent == 0 ? sign * std::ldexp(mantissa, -24)
                                     : sign * std::ldexp(1024 + mantissa, exponent - 25));
    }
  }
}

}  // namespace
}  // namespace tessera::nvfp4
