// Correct rounding in the four directions of PTX, on a host that rounds to nearest.
//
// Single-precision results are computed in double, rounded to odd (S. Boldo, G. Melquiond, "When double rounding is
// odd", 2005), and then rounded once more: with 53 bits, at least two more than twice 24, the second rounding gives what
// one rounding of the exact value would.
#ifndef TESSERA_TESTS_PTX_ISA_ROUNDING_H_
#define TESSERA_TESTS_PTX_ISA_ROUNDING_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/ptx/parser/module.h"

namespace tessera::ptx {

enum class Rounding : uint8_t { kNearest, kZero, kDown, kUp };

// From .rn, .rz, .rm, .rp (and .rni, ... of cvt); nearest if there is none.
Rounding RoundingOf(const Instruction& i);

inline constexpr uint32_t kNanF32 = 0x7FFFFFFF;
inline constexpr uint64_t kNanF64 = 0x7FFFFFFFFFFFFFFF;
inline constexpr uint16_t kNanHalf = 0x7FFF;

inline float FlushSubnormal(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7F800000) == 0 ? std::bit_cast<float>(bits & 0x80000000) : x;
}
// PTX's single-precision operations give one NaN.
inline float CanonicalNan(float x) { return x != x ? std::bit_cast<float>(kNanF32) : x; }
// .sat: to [0, 1], NaN to +0.
inline float Saturate(float x) { return !(x > 0) ? 0.0f : x < 1 ? x : 1.0f; }
inline double Saturate(double x) { return !(x > 0) ? 0.0 : x < 1 ? x : 1.0; }

// x, where the exact value is x + error, |error| at most half an ulp: the odd one of the two doubles around it.
inline double ToOdd(double x, double error) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  if (error == 0 || (bits & 1) != 0 || !std::isfinite(x)) return x;
  return std::bit_cast<double>((error > 0) == (x > 0) ? bits + 1 : bits - 1);
}

// a + b rounded to odd.
inline double SumOdd(double a, double b) {
  const double s = a + b;
  const double bb = s - a;
  return ToOdd(s, (a - (s - bb)) + (b - bb));
}

inline float RoundToFloat(double x, Rounding rounding) {
  const float f = static_cast<float>(x);
  if (rounding == Rounding::kNearest || x != x || static_cast<double>(f) == x) return f;
  const bool above = static_cast<double>(f) > x;  // than the exact value
  constexpr float kInf = std::numeric_limits<float>::infinity();
  switch (rounding) {
    case Rounding::kZero:
      return x > 0 ? (above ? std::nextafterf(f, -kInf) : f) : (above ? f : std::nextafterf(f, kInf));
    case Rounding::kDown:
      return above ? std::nextafterf(f, -kInf) : f;
    default:
      return above ? f : std::nextafterf(f, kInf);
  }
}

inline float AddFloat(float a, float b, Rounding rounding) {
  if (rounding == Rounding::kNearest) return a + b;
  const double sum = SumOdd(a, b);
  // An exact zero of unlike signs is -0 when rounding down.
  if (sum == 0 && rounding == Rounding::kDown &&
      !(std::bit_cast<uint32_t>(a) == 0 && std::bit_cast<uint32_t>(b) == 0))
    return -0.0f;
  return RoundToFloat(sum, rounding);
}
inline float MulFloat(float a, float b, Rounding rounding) {
  return rounding == Rounding::kNearest ? a * b : RoundToFloat(double{a} * double{b}, rounding);
}
inline float FmaFloat(float a, float b, float c, Rounding rounding) {
  const double sum = SumOdd(double{a} * double{b}, c);
  if (sum == 0 && rounding == Rounding::kDown && (std::signbit(a) != std::signbit(b)) != std::signbit(c))
    return -0.0f;
  return RoundToFloat(sum, rounding);
}
// Quotient and root: the sign of the remainder says on which side the exact value is.
float DivFloat(float a, float b, Rounding rounding);
float SqrtFloat(float a, Rounding rounding);

// Double precision: changes the host's rounding mode around the operation unless it is to nearest.
double AddDouble(double a, double b, Rounding rounding);
double MulDouble(double a, double b, Rounding rounding);
double FmaDouble(double a, double b, double c, Rounding rounding);
double DivDouble(double a, double b, Rounding rounding);
double SqrtDouble(double a, Rounding rounding);
float DoubleToFloat(double a, Rounding rounding);

// To an integral value: .rni, .rzi, .rmi, .rpi.
double RoundToIntegral(double x, Rounding rounding);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_ISA_ROUNDING_H_
