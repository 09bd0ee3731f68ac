// Floating point against the host's own rounding modes, the compiler's _Float16, and double precision for the
// approximate functions.
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "tests/ptx/testing/lane_function.h"

namespace tessera::ptx {
namespace {

constexpr struct {
  const char* name;
  int host;
} kModes[] = {{".rn", FE_TONEAREST}, {".rz", FE_TOWARDZERO}, {".rm", FE_DOWNWARD}, {".rp", FE_UPWARD}};

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <class T>
T AsFloat(uint64_t bits) {
  return std::bit_cast<T>(static_cast<Bits<T>>(bits));
}

// Bitwise equal, or both NaN.
template <class T>
::testing::AssertionResult Same(uint64_t got, T want) {
  const T g = AsFloat<T>(got);
  if ((g != g && want != want) || std::bit_cast<Bits<T>>(g) == std::bit_cast<Bits<T>>(want))
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << std::hexfloat << g << " instead of " << want;
}

template <class T, class F>
void CheckModes(const std::string& op, const std::string& operands, F f) {
  const int bits = sizeof(T) * 8;
  const auto inputs = Combine(InterestingFloats(bits, 60), 3000);
  for (const auto& mode : kModes) {
    const std::string code = op + mode.name + ".f" + std::to_string(bits) + " %d, " + operands + ";";
    const auto got = Evaluate(code, bits, bits, inputs);
    for (size_t k = 0; k < inputs.size(); ++k) {
      volatile T a = AsFloat<T>(inputs[k][0]), b = AsFloat<T>(inputs[k][1]), c = AsFloat<T>(inputs[k][2]);
      std::fesetround(mode.host);
      const volatile T want = f(a, b, c);
      std::fesetround(FE_TONEAREST);
      ASSERT_TRUE(Same<T>(got[k], want)) << code << std::hexfloat << " of " << a << ", " << b << ", " << c;
    }
  }
}

template <class T>
void CheckArithmetic() {
  CheckModes<T>("add", "%a, %b", [](volatile T& a, volatile T& b, volatile T&) { return a + b; });
  CheckModes<T>("sub", "%a, %b", [](volatile T& a, volatile T& b, volatile T&) { return a - b; });
  CheckModes<T>("mul", "%a, %b", [](volatile T& a, volatile T& b, volatile T&) { return a * b; });
  CheckModes<T>("div", "%a, %b", [](volatile T& a, volatile T& b, volatile T&) { return a / b; });
  CheckModes<T>("fma", "%a, %b, %c",
                [](volatile T& a, volatile T& b, volatile T& c) { return std::fma(T{a}, T{b}, T{c}); });
  CheckModes<T>("rcp", "%a", [](volatile T& a, volatile T&, volatile T&) { return T{1} / a; });
  CheckModes<T>("sqrt", "%a", [](volatile T& a, volatile T&, volatile T&) { return std::sqrt(T{a}); });
}

TEST(Float, SinglePrecisionInEveryDirection) { CheckArithmetic<float>(); }
TEST(Float, DoublePrecisionInEveryDirection) { CheckArithmetic<double>(); }

TEST(Float, NearestIsTheDefault) {
  const auto inputs = Combine(InterestingFloats(32, 60), 500);
  for (const char* op : {"add", "sub", "mul"}) {
    EXPECT_EQ(Evaluate(std::string(op) + ".f32 %d, %a, %b;", 32, 32, inputs),
              Evaluate(std::string(op) + ".rn.f32 %d, %a, %b;", 32, 32, inputs));
  }
}

TEST(Float, NanIsCanonical) {
  const uint64_t nan = 0x7FC01234, minus = 0xFFC00001;
  for (const uint64_t n : {nan, minus}) {
    EXPECT_EQ(Evaluate("add.f32 %d, %a, %b;", 32, 32, {{n, 0x3F800000, 0, 0}})[0], 0x7FFFFFFFu);
    EXPECT_EQ(Evaluate("fma.rn.f32 %d, %a, %b, %b;", 32, 32, {{n, 0x3F800000, 0, 0}})[0], 0x7FFFFFFFu);
    // neg and abs work on the sign alone.
    EXPECT_EQ(Evaluate("neg.f32 %d, %a;", 32, 32, {{n, 0, 0, 0}})[0], n ^ 0x80000000u);
  }
}

TEST(Float, FlushAndSaturate) {
  const auto one = [](const char* code, uint64_t a, uint64_t b) {
    return Evaluate(code, 32, 32, {{a, b, 0, 0}})[0];
  };
  EXPECT_EQ(one("add.f32 %d, %a, %b;", 1, 1), 2u);
  EXPECT_EQ(one("add.ftz.f32 %d, %a, %b;", 1, 1), 0u);
  EXPECT_EQ(one("add.ftz.f32 %d, %a, %b;", 0x80000001, 0x80000001), 0x80000000u);
  EXPECT_EQ(one("mul.ftz.f32 %d, %a, %b;", 0x00800000, 0x3F000000), 0u);  // result subnormal
  EXPECT_EQ(one("mul.f32 %d, %a, %b;", 0x00800000, 0x3F000000), 0x00400000u);
  EXPECT_EQ(one("add.sat.f32 %d, %a, %b;", 0x3F800000, 0x3F800000), 0x3F800000u);
  EXPECT_EQ(one("add.sat.f32 %d, %a, %b;", 0xBF800000, 0), 0u);
  EXPECT_EQ(one("add.sat.f32 %d, %a, %b;", 0x7FC00000, 0), 0u);
}

TEST(Float, MinMax) {
  const auto one = [](const char* code, float a, float b) {
    return Evaluate(code, 32, 32, {{std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b), 0, 0}})[0];
  };
  EXPECT_TRUE(Same<float>(one("min.f32 %d, %a, %b;", 0.0f, -0.0f), -0.0f));
  EXPECT_TRUE(Same<float>(one("max.f32 %d, %a, %b;", -0.0f, 0.0f), 0.0f));
  EXPECT_TRUE(Same<float>(one("min.f32 %d, %a, %b;", NAN, 3.0f), 3.0f));
  EXPECT_EQ(one("min.NaN.f32 %d, %a, %b;", NAN, 3.0f), 0x7FFFFFFFu);
  EXPECT_TRUE(Same<float>(one("max.xorsign.abs.f32 %d, %a, %b;", -5.0f, 3.0f), -5.0f));
  EXPECT_TRUE(Same<float>(one("min.xorsign.abs.f32 %d, %a, %b;", -5.0f, -3.0f), 3.0f));
  EXPECT_TRUE(Same<float>(one("max.f32 %d, %a, %b;", -5.0f, 3.0f), 3.0f));
}

TEST(Float, PairsOfSingles) {
  const auto values = InterestingFloats(32, 60);
  std::vector<Inputs> inputs;
  for (size_t k = 0; k + 5 < values.size(); ++k) {
    inputs.push_back({values[k] | values[k + 1] << 32, values[k + 2] | values[k + 3] << 32,
                      values[k + 4] | values[k + 5] << 32, 0});
  }
  const auto got = Evaluate("fma.rn.f32x2 %d, %a, %b, %c;", 64, 64, inputs);
  for (size_t k = 0; k < inputs.size(); ++k) {
    for (int half = 0; half < 64; half += 32) {
      const float want = std::fma(AsFloat<float>(inputs[k][0] >> half), AsFloat<float>(inputs[k][1] >> half),
                                  AsFloat<float>(inputs[k][2] >> half));
      EXPECT_TRUE(Same<float>(got[k] >> half, want));
    }
  }
}

// The relative error that the manual documents for each, or the absolute one.
TEST(Float, ApproximateFunctionsAreInsideTheirError) {
  const struct {
    const char* code;
    double (*exact)(double);
    double relative, absolute, low, high;
  } kFunctions[] = {
      {"ex2.approx.ftz.f32 %d, %a;", std::exp2, 0x1p-22, 0, -100, 100},
      {"lg2.approx.f32 %d, %a;", std::log2, 0x1p-22, 0x1p-22, 1e-6, 1e6},
      {"sin.approx.f32 %d, %a;", std::sin, 0, 0x1p-20, -3.14, 3.14},
      {"cos.approx.f32 %d, %a;", std::cos, 0, 0x1p-20, -3.14, 3.14},
      {"tanh.approx.f32 %d, %a;", std::tanh, 0x1p-11, 0, -10, 10},
      {"rsqrt.approx.f32 %d, %a;", [](double x) { return 1 / std::sqrt(x); }, 0x1p-22, 0, 1e-6, 1e6},
      {"rcp.approx.f32 %d, %a;", [](double x) { return 1 / x; }, 0x1p-23, 0, 1e-6, 1e6},
      {"sqrt.approx.f32 %d, %a;", [](double x) { return std::sqrt(x); }, 0x1p-22, 0, 1e-6, 1e6},
  };
  for (const auto& f : kFunctions) {
    std::vector<Inputs> inputs;
    for (int k = 0; k < 500; ++k) {
      const auto x = static_cast<float>(f.low + (f.high - f.low) * (k + 0.37) / 500);
      inputs.push_back({std::bit_cast<uint32_t>(x), 0, 0, 0});
    }
    const auto got = Evaluate(f.code, 32, 32, inputs);
    for (size_t k = 0; k < inputs.size(); ++k) {
      const double want = f.exact(AsFloat<float>(inputs[k][0]));
      EXPECT_NEAR(AsFloat<float>(got[k]), want, std::abs(want) * f.relative + f.absolute) << f.code;
    }
  }
  EXPECT_EQ(Evaluate("ex2.approx.ftz.f32 %d, %a;", 32, 32, {{0xFF800000, 0, 0, 0}})[0], 0u);  // -inf
  EXPECT_EQ(Evaluate("ex2.approx.ftz.f32 %d, %a;", 32, 32, {{0xC3000000, 0, 0, 0}})[0],
            0u);  // 2^-128, subnormal
  EXPECT_EQ(Evaluate("rcp.approx.ftz.f32 %d, %a;", 32, 32, {{0x00000001, 0, 0, 0}})[0],
            0x7F800000u);  // of a subnormal
}

TEST(Float, ComparisonsWithNan) {
  const float values[] = {-1, 0, 1, NAN};
  const struct {
    const char* name;
    std::function<bool(float, float)> holds;
  } kRelations[] = {
      {"eq", [](float a, float b) { return a == b; }},
      {"ne", [](float a, float b) { return a < b || a > b; }},
      {"lt", [](float a, float b) { return a < b; }},
      {"ge", [](float a, float b) { return a >= b; }},
      {"equ", [](float a, float b) { return !(a < b || a > b); }},
      {"neu", [](float a, float b) { return a != b; }},
      {"ltu", [](float a, float b) { return !(a >= b); }},
      {"leu", [](float a, float b) { return !(a > b); }},
      {"gtu", [](float a, float b) { return !(a <= b); }},
      {"geu", [](float a, float b) { return !(a < b); }},
      {"num", [](float a, float b) { return a == a && b == b; }},
      {"nan", [](float a, float b) { return a != a || b != b; }},
  };
  for (const auto& r : kRelations) {
    for (const float a : values) {
      for (const float b : values) {
        const auto got = Evaluate(std::string("setp.") + r.name + ".f32 %p, %a, %b;\n selp.u32 %d, 1, 0, %p;",
                                  32, 32, {{std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b), 0, 0}});
        EXPECT_EQ(got[0], r.holds(a, b)) << r.name << " " << a << " " << b;
      }
    }
  }
}

// ---- Halves

uint64_t F16Bits(_Float16 x) { return x != x ? 0x7FFF : std::bit_cast<uint16_t>(x); }
_Float16 F16(uint64_t bits) { return std::bit_cast<_Float16>(static_cast<uint16_t>(bits)); }
long double Bf16(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits << 16)); }
// Round to nearest even of an 8-bit significand, by hand.
uint64_t Bf16Bits(long double x) {
  if (x != x) return 0x7FFF;
  if (x == 0 || std::isinf(x)) return std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16;
  int exponent;
  std::frexp(x, &exponent);
  const int unit = std::max(exponent - 8, -133);
  const long double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  return std::bit_cast<uint32_t>(static_cast<float>(rounded)) >> 16;
}

TEST(Half, ArithmeticOfF16) {
  const auto inputs = Combine(InterestingIntegers(16, 300), 4000);
  const auto add = Evaluate("add.f16 %d, %a, %b;", 16, 16, inputs),
             mul = Evaluate("mul.f16 %d, %a, %b;", 16, 16, inputs);
  const auto fma = Evaluate("fma.rn.f16 %d, %a, %b, %c;", 16, 16, inputs);
  for (size_t k = 0; k < inputs.size(); ++k) {
    const _Float16 a = F16(inputs[k][0]), b = F16(inputs[k][1]), c = F16(inputs[k][2]);
    ASSERT_EQ(add[k], F16Bits(static_cast<_Float16>(static_cast<float>(a) + static_cast<float>(b))));
    ASSERT_EQ(mul[k], F16Bits(static_cast<_Float16>(static_cast<float>(a) * static_cast<float>(b))));
    const long double exact =
        static_cast<long double>(static_cast<float>(a)) * static_cast<float>(b) + static_cast<float>(c);
    ASSERT_EQ(fma[k], F16Bits(static_cast<_Float16>(exact)))
        << std::hex << inputs[k][0] << " " << inputs[k][1] << " " << inputs[k][2];
  }
}

TEST(Half, ArithmeticOfBf16Pairs) {
  const auto inputs = Combine(InterestingIntegers(32, 300), 4000);
  const auto add = Evaluate("add.rn.bf16x2 %d, %a, %b;", 32, 32, inputs),
             mul = Evaluate("mul.rn.bf16x2 %d, %a, %b;", 32, 32, inputs);
  const auto plain = Evaluate("mul.bf16x2 %d, %a, %b;", 32, 32, inputs),
             fma = Evaluate("fma.rn.bf16x2 %d, %a, %b, %c;", 32, 32, inputs);
  EXPECT_EQ(mul, plain);
  for (size_t k = 0; k < inputs.size(); ++k) {
    for (int half = 0; half < 32; half += 16) {
      const long double a = Bf16(inputs[k][0] >> half & 0xFFFF), b = Bf16(inputs[k][1] >> half & 0xFFFF),
                        c = Bf16(inputs[k][2] >> half & 0xFFFF);
      ASSERT_EQ(add[k] >> half & 0xFFFF, Bf16Bits(a + b)) << std::hexfloat << a << " + " << b;
      ASSERT_EQ(mul[k] >> half & 0xFFFF, Bf16Bits(a * b)) << std::hexfloat << a << " * " << b;
      // Where 64 bits hold the sum; the rest is in the next test.
      const long double sum = a * b + c;
      if (sum - a * b == c && sum - c == a * b) {
        ASSERT_EQ(fma[k] >> half & 0xFFFF, Bf16Bits(sum));
      }
    }
  }
}

TEST(Half, FmaRoundsOnce) {
  // 1.0078125 * 1.00390625... : a product just at the middle of two bf16, and an addend far below that decides.
  const auto fma = [](uint64_t a, uint64_t b, uint64_t c) {
    return Evaluate("fma.rn.bf16 %d, %a, %b, %c;", 16, 16, {{a, b, c, 0}})[0];
  };
  // (1 + 2^-7) * 1.5 = 1.5 + 1.5 * 2^-7: in units of 2^-7, 193.5: the middle. 193 is odd, 194 even.
  EXPECT_EQ(fma(0x3F81, 0x3FC0, 0), 0x3FC2u);
  EXPECT_EQ(fma(0x3F81, 0x3FC0, 0x0080), 0x3FC2u);  // + 2^-126
  EXPECT_EQ(fma(0x3F81, 0x3FC0, 0x8080), 0x3FC1u);  // - 2^-126
}

// ---- cvt

TEST(Convert, FloatToInteger) {
  const struct {
    const char* mode;
    int host;
  } kIntegral[] = {
      {".rni", FE_TONEAREST}, {".rzi", FE_TOWARDZERO}, {".rmi", FE_DOWNWARD}, {".rpi", FE_UPWARD}};
  const auto inputs = Combine(InterestingFloats(32, 200), 800);
  for (const auto& mode : kIntegral) {
    for (const char* to : {"s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"}) {
      const int bits = std::stoi(to + 1);
      const bool sign = to[0] == 's';
      const auto got = Evaluate(std::string("cvt") + mode.mode + "." + to + ".f32 %d, %a;", 32, 64, inputs);
      for (size_t k = 0; k < inputs.size(); ++k) {
        const float a = AsFloat<float>(inputs[k][0]);
        std::fesetround(mode.host);
        const volatile float integral = std::nearbyint(a);
        std::fesetround(FE_TONEAREST);
        const __int128 low = sign ? -(__int128{1} << (bits - 1)) : 0,
                       high = (__int128{1} << (sign ? bits - 1 : bits)) - 1;
        const __int128 want =
            a != a                 ? 0
            : integral >= 0x1p100f ? high
            : integral <= -0x1p100f
                ? low
                : std::min(std::max(static_cast<__int128>(static_cast<float>(integral)), low), high);
        const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
        ASSERT_EQ(got[k] & mask, static_cast<uint64_t>(want) & mask) << mode.mode << to << std::hexfloat << a;
      }
    }
  }
}

TEST(Convert, IntegerToFloatInEveryDirection) {
  const auto inputs = Combine(InterestingIntegers(64, 300), 1000);
  for (const auto& mode : kModes) {
    const auto s = Evaluate(std::string("cvt") + mode.name + ".f32.s64 %d, %a;", 64, 32, inputs);
    const auto u = Evaluate(std::string("cvt") + mode.name + ".f32.u64 %d, %a;", 64, 32, inputs);
    const auto d = Evaluate(std::string("cvt") + mode.name + ".f64.s64 %d, %a;", 64, 64, inputs);
    for (size_t k = 0; k < inputs.size(); ++k) {
      std::fesetround(mode.host);
      const volatile int64_t si = static_cast<int64_t>(inputs[k][0]);
      // From an 80-bit number, exact, so that one rounding is left.
      const volatile long double exact = static_cast<long double>(inputs[k][0]),
                                 signed_exact = static_cast<long double>(si);
      const volatile float fs = static_cast<float>(signed_exact), fu = static_cast<float>(exact);
      const volatile double fd = static_cast<double>(signed_exact);
      std::fesetround(FE_TONEAREST);
      ASSERT_TRUE(Same<float>(s[k], fs)) << mode.name << si;
      ASSERT_TRUE(Same<float>(u[k], fu)) << mode.name << inputs[k][0];
      ASSERT_TRUE(Same<double>(d[k], fd)) << mode.name << si;
    }
  }
}

TEST(Convert, BetweenFloats) {
  const auto doubles = Combine(InterestingFloats(64, 300), 1000),
             singles = Combine(InterestingFloats(32, 300), 2000);
  for (const auto& mode : kModes) {
    const auto f = Evaluate(std::string("cvt") + mode.name + ".f32.f64 %d, %a;", 64, 32, doubles);
    for (size_t k = 0; k < doubles.size(); ++k) {
      const volatile double a = AsFloat<double>(doubles[k][0]);
      std::fesetround(mode.host);
      const volatile float want = static_cast<float>(a);
      std::fesetround(FE_TONEAREST);
      ASSERT_TRUE(Same<float>(f[k], want)) << mode.name << std::hexfloat << a;
    }
  }
  const auto half = Evaluate("cvt.rn.f16.f32 %d, %a;", 32, 16, singles),
             bf = Evaluate("cvt.rn.bf16.f32 %d, %a;", 32, 16, singles);
  const auto pair = Evaluate("cvt.rn.bf16x2.f32 %d, %a, %b;", 32, 32, singles);
  const auto relu = Evaluate("cvt.rn.relu.bf16x2.f32 %d, %a, %b;", 32, 32, singles);
  for (size_t k = 0; k < singles.size(); ++k) {
    const float a = AsFloat<float>(singles[k][0]), b = AsFloat<float>(singles[k][1]);
    ASSERT_EQ(half[k], F16Bits(static_cast<_Float16>(a))) << std::hexfloat << a;
    ASSERT_EQ(bf[k], Bf16Bits(a)) << std::hexfloat << a;
    ASSERT_EQ(pair[k], Bf16Bits(a) << 16 | Bf16Bits(b));
    ASSERT_EQ(relu[k], Bf16Bits(a < 0    ? 0
                                : a == 0 ? 0.0f
                                         : a)
                               << 16 |
                           Bf16Bits(b < 0    ? 0
                                    : b == 0 ? 0.0f
                                             : b));
  }
}

TEST(Convert, TowardsZeroTf32AndIntegral) {
  EXPECT_EQ(Evaluate("cvt.rz.bf16.f32 %d, %a;", 32, 16, {{0x3F80FFFF, 0, 0, 0}})[0], 0x3F80u);
  EXPECT_EQ(Evaluate("cvt.rz.bf16.f32 %d, %a;", 32, 16, {{0xBF80FFFF, 0, 0, 0}})[0], 0xBF80u);
  EXPECT_EQ(Evaluate("cvt.rz.f16.f32 %d, %a;", 32, 16, {{0x477FF000, 0, 0, 0}})[0],
            0x7BFFu);  // 65520, not infinity
  EXPECT_EQ(Evaluate("cvt.rna.tf32.f32 %d, %a;", 32, 32, {{0x3F801000, 0, 0, 0}})[0], 0x3F802000u);
  EXPECT_EQ(Evaluate("cvt.rna.tf32.f32 %d, %a;", 32, 32, {{0x3F800FFF, 0, 0, 0}})[0], 0x3F800000u);
  EXPECT_EQ(Evaluate("cvt.rni.f32.f32 %d, %a;", 32, 32, {{std::bit_cast<uint32_t>(2.5f), 0, 0, 0}})[0],
            std::bit_cast<uint32_t>(2.0f));
  EXPECT_EQ(Evaluate("cvt.rpi.f32.f32 %d, %a;", 32, 32, {{std::bit_cast<uint32_t>(-2.5f), 0, 0, 0}})[0],
            std::bit_cast<uint32_t>(-2.0f));
  EXPECT_EQ(Evaluate("cvt.sat.f32.f32 %d, %a;", 32, 32, {{std::bit_cast<uint32_t>(-2.5f), 0, 0, 0}})[0], 0u);
}

TEST(Convert, NarrowFormatsRoundTrip) {
  // Every code to f16 and back. 4-bit codes come in bytes of two.
  const struct {
    const char* format;
    uint32_t codes;
    std::function<bool(uint32_t)> is_nan;
  } kFormats[] = {{"e4m3x2", 256, [](uint32_t c) { return (c & 0x7F) == 0x7F; }},
                  {"e5m2x2", 256, [](uint32_t c) { return (c & 0x7C) == 0x7C; }},
                  {"e2m3x2", 64, [](uint32_t) { return false; }},
                  {"e3m2x2", 64, [](uint32_t) { return false; }}};
  for (const auto& f : kFormats) {
    std::vector<Inputs> inputs;
    for (uint32_t c = 0; c < f.codes; ++c) {
      if (!f.is_nan(c))
        inputs.push_back({c << 8 | (f.is_nan(f.codes - 1 - c) ? 0 : f.codes - 1 - c), 0, 0, 0});
    }
    const std::string code = std::string("cvt.rn.f16x2.") + f.format + " %x, %a;\n cvt.rn.satfinite." +
                             f.format + ".f16x2 %d, %x;";
    const auto got = Evaluate(code, 16, 16, inputs);
    for (size_t k = 0; k < inputs.size(); ++k) EXPECT_EQ(got[k], inputs[k][0]) << f.format;
  }
  // From single precision: the first operand is the upper.
  const auto pair = [](const char* code, float a, float b) {
    return Evaluate(code, 32, 16, {{std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b), 0, 0}})[0];
  };
  EXPECT_EQ(pair("cvt.rn.satfinite.e4m3x2.f32 %d, %a, %b;", 1000, -0.5f), 0x7EB0u);
  EXPECT_EQ(pair("cvt.rn.satfinite.e5m2x2.f32 %d, %a, %b;", 1, -2), 0x3CC0u);
  EXPECT_EQ(
      pair("{ .reg .b8 byte; cvt.rn.satfinite.e2m1x2.f32 byte, %a, %b; mov.b16 %d, {byte, 0}; }", 6, -1.5f),
      0x7Bu);
  EXPECT_EQ(
      pair("{ .reg .b8 byte; cvt.rn.satfinite.e2m1x2.f32 byte, %a, %b; mov.b16 %d, {byte, 0}; }", 2.5f, 100),
      0x47u);
  EXPECT_EQ(pair("cvt.rp.satfinite.ue8m0x2.f32 %d, %a, %b;", 3, 4), 0x8181u);
  EXPECT_EQ(pair("cvt.rz.satfinite.ue8m0x2.f32 %d, %a, %b;", 3, 4), 0x8081u);
  const auto wide = Evaluate("{ .reg .b8 byte, top; mov.b16 {byte, top}, %a; cvt.rn.f16x2.e2m1x2 %d, byte; }",
                             16, 32, {{0x7B, 0, 0, 0}});
  EXPECT_EQ(wide[0], 0x4600BE00u);
}

}  // namespace
}  // namespace tessera::ptx
