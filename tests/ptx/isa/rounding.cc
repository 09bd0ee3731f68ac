#include "tests/ptx/isa/rounding.h"

#include <cfenv>

namespace tessera::ptx {
namespace {

// Runs f with the host's rounding mode set. The operands go through volatile, so that nothing is folded or moved.
template <class F>
double WithMode(Rounding rounding, F f) {
  if (rounding == Rounding::kNearest) return f();
  std::fesetround(rounding == Rounding::kZero   ? FE_TOWARDZERO
                  : rounding == Rounding::kDown ? FE_DOWNWARD
                                                : FE_UPWARD);
  const volatile double result = f();
  std::fesetround(FE_TONEAREST);
  return result;
}

}  // namespace

Rounding RoundingOf(const Instruction& i) {
  for (const std::string& m : i.modifiers) {
    if (m == "rn" || m == "rni") return Rounding::kNearest;
    if (m == "rz" || m == "rzi") return Rounding::kZero;
    if (m == "rm" || m == "rmi") return Rounding::kDown;
    if (m == "rp" || m == "rpi") return Rounding::kUp;
  }
  return Rounding::kNearest;
}

float DivFloat(float a, float b, Rounding rounding) {
  if (rounding == Rounding::kNearest) return a / b;
  const double q = double{a} / double{b};
  if (!std::isfinite(q) || b == 0 || std::isinf(b)) return static_cast<float>(q);
  const double remainder = std::fma(-q, double{b}, double{a});
  return RoundToFloat(ToOdd(q, b > 0 ? remainder : -remainder), rounding);
}

float SqrtFloat(float a, Rounding rounding) {
  if (rounding == Rounding::kNearest) return std::sqrt(a);
  const double root = std::sqrt(double{a});
  if (!std::isfinite(root)) return static_cast<float>(root);
  return RoundToFloat(ToOdd(root, std::fma(-root, root, double{a})), rounding);
}

double AddDouble(double a, double b, Rounding rounding) {
  volatile double x = a, y = b;
  return WithMode(rounding, [&] { return x + y; });
}
double MulDouble(double a, double b, Rounding rounding) {
  volatile double x = a, y = b;
  return WithMode(rounding, [&] { return x * y; });
}
double FmaDouble(double a, double b, double c, Rounding rounding) {
  volatile double x = a, y = b, z = c;
  return WithMode(rounding, [&] { return std::fma(x, y, z); });
}
double DivDouble(double a, double b, Rounding rounding) {
  volatile double x = a, y = b;
  return WithMode(rounding, [&] { return x / y; });
}
double SqrtDouble(double a, Rounding rounding) {
  volatile double x = a;
  return WithMode(rounding, [&] { return std::sqrt(x); });
}
float DoubleToFloat(double a, Rounding rounding) { return RoundToFloat(a, rounding); }

double RoundToIntegral(double x, Rounding rounding) {
  switch (rounding) {
    case Rounding::kNearest:
      return std::nearbyint(x);
    case Rounding::kZero:
      return std::trunc(x);
    case Rounding::kDown:
      return std::floor(x);
    case Rounding::kUp:
      return std::ceil(x);
  }
  return x;
}

}  // namespace tessera::ptx
