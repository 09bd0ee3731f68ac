// Single and double precision (PTX ISA, "Floating Point Instructions"). The approximate functions are computed in double
// and rounded, which is inside their documented error but need not be the hardware's bits.
#include "tests/ptx/isa/float.h"

#include <cmath>

#include "tests/ptx/isa/rounding.h"
#include "tests/ptx/isa/scalar.h"

namespace tessera::ptx {
namespace {

// Instruction::flags.
enum : uint32_t { kFtz = 1, kSat = 2, kNan = 4, kXorSign = 8, kAbs = 16 };

void SetFlags(Instruction& i) {
  i.flags = (i.Has("ftz") ? kFtz : 0u) | (i.Has("sat") ? kSat : 0u) | (i.Has("NaN") ? kNan : 0u) |
            (i.Has("xorsign") ? kXorSign : 0u) | (i.Has("abs") ? kAbs : 0u);
  i.extra = static_cast<uint32_t>(RoundingOf(i));
}

float Finish(float x, uint32_t flags) {
  if (flags & kFtz) x = FlushSubnormal(x);
  x = CanonicalNan(x);
  return flags & kSat ? Saturate(x) : x;
}
double Finish(double x, uint32_t flags) { return flags & kSat ? Saturate(x) : x; }

template <class T>
T Input(T x, uint32_t flags) {
  if constexpr (sizeof(T) == 4) return flags & kFtz ? FlushSubnormal(x) : x;
  return x;
}

// Loops over the lanes with 1, 2 or 3 sources. f(a, b, c, rounding) on inputs already flushed.
template <class T, int kSources, class F>
void Lanes(Warp& w, const Instruction& i, F f) {
  T scratch[kSources][kWarpSize], r[kWarpSize];
  const T* s[kSources];
  for (int k = 0; k < kSources; ++k) s[k] = w.Source(i.operands[k + 1], scratch[k]);
  const uint32_t flags = i.flags;
  const auto rounding = static_cast<Rounding>(i.extra);
  for (int l = 0; l < kWarpSize; ++l) {
    if constexpr (kSources == 1)
      r[l] = Finish(f(Input(s[0][l], flags), rounding), flags);
    else if constexpr (kSources == 2)
      r[l] = Finish(f(Input(s[0][l], flags), Input(s[1][l], flags), rounding), flags);
    else
      r[l] = Finish(f(Input(s[0][l], flags), Input(s[1][l], flags), Input(s[2][l], flags), rounding), flags);
  }
  w.Store(i.operands[0], r);
}

#define TESSERA_PTX_FLOAT_OP(NAME, ARITY, ARGUMENTS, SINGLE, DOUBLE) \
  void NAME##32(Warp & w, const Instruction& i) {                    \
    Lanes<float, ARITY>(w, i, [] ARGUMENTS { return SINGLE; });      \
  }                                                                  \
  void NAME##64(Warp & w, const Instruction& i) {                    \
    Lanes<double, ARITY>(w, i, [] ARGUMENTS { return DOUBLE; });     \
  }

TESSERA_PTX_FLOAT_OP(Add, 2, (auto a, auto b, Rounding r), AddFloat(a, b, r), AddDouble(a, b, r))
TESSERA_PTX_FLOAT_OP(Sub, 2, (auto a, auto b, Rounding r), AddFloat(a, -b, r), AddDouble(a, -b, r))
TESSERA_PTX_FLOAT_OP(Mul, 2, (auto a, auto b, Rounding r), MulFloat(a, b, r), MulDouble(a, b, r))
TESSERA_PTX_FLOAT_OP(Fma, 3, (auto a, auto b, auto c, Rounding r), FmaFloat(a, b, c, r),
                     FmaDouble(a, b, c, r))
TESSERA_PTX_FLOAT_OP(Div, 2, (auto a, auto b, Rounding r), DivFloat(a, b, r), DivDouble(a, b, r))
TESSERA_PTX_FLOAT_OP(Rcp, 1, (auto a, Rounding r), DivFloat(1.0f, a, r), DivDouble(1.0, a, r))
TESSERA_PTX_FLOAT_OP(Sqrt, 1, (auto a, Rounding r), SqrtFloat(a, r), SqrtDouble(a, r))
TESSERA_PTX_FLOAT_OP(Rsqrt, 1, (auto a, Rounding), static_cast<float>(1.0 / std::sqrt(double{a})),
                     1.0 / std::sqrt(a))

// The plain forms, to nearest and without flags, as loops that vectorise.
template <class F>
void PlainFloat(Warp& w, const Instruction& i, F f) {
  float sa[kWarpSize], sb[kWarpSize], r[kWarpSize];
  const float* a = w.Source(i.operands[1], sa);
  const float* b = w.Source(i.operands[2], sb);
  for (int l = 0; l < kWarpSize; ++l) r[l] = CanonicalNan(f(a[l], b[l]));
  w.Store(i.operands[0], r);
}
void PlainAdd(Warp& w, const Instruction& i) {
  PlainFloat(w, i, [](float a, float b) { return a + b; });
}
void PlainSub(Warp& w, const Instruction& i) {
  PlainFloat(w, i, [](float a, float b) { return a - b; });
}
void PlainMul(Warp& w, const Instruction& i) {
  PlainFloat(w, i, [](float a, float b) { return a * b; });
}

// neg and abs work on the sign alone, NaN included.
template <class T, class U>
void NegAbs(Warp& w, const Instruction& i) {
  U sa[kWarpSize], r[kWarpSize];
  const U* a = w.Source(i.operands[1], sa);
  constexpr U kSign = U{1} << (sizeof(U) * 8 - 1);
  const bool neg = i.opcode == "neg";
  for (int l = 0; l < kWarpSize; ++l) {
    const U x = std::bit_cast<U>(Input(std::bit_cast<T>(a[l]), i.flags));
    r[l] = neg ? x ^ kSign : x & ~kSign;
  }
  w.Store(i.operands[0], r);
}

template <class T>
T MinMaxOf(T a, T b, bool min, uint32_t flags) {
  const bool sign = std::signbit(a) != std::signbit(b);
  if (flags & kAbs) {
    a = std::abs(a);
    b = std::abs(b);
  }
  T r;
  if (a != a || b != b) {
    if ((a != a && b != b) || (flags & kNan)) return std::numeric_limits<T>::quiet_NaN();
    r = a != a ? b : a;
  } else if (a == b) {
    r = std::signbit(a) == min ? a : b;  // -0 is less than +0
  } else {
    r = (a < b) == min ? a : b;
  }
  return flags & kXorSign ? std::copysign(r, sign ? T{-1} : T{1}) : r;
}

template <class T, bool kMin>
void MinMax(Warp& w, const Instruction& i) {
  const uint32_t flags = i.flags;
  if (i.operands.size() == 4) {
    Lanes<T, 3>(w, i, [flags](T a, T b, T c, Rounding) {
      return MinMaxOf(MinMaxOf(a, b, kMin, flags), c, kMin, flags);
    });
  } else {
    Lanes<T, 2>(w, i, [flags](T a, T b, Rounding) { return MinMaxOf(a, b, kMin, flags); });
  }
}

// Two floats in a 64-bit register.
template <class F>
void PairLanes(Warp& w, const Instruction& i, int sources, F f) {
  uint64_t scratch[3][kWarpSize], r[kWarpSize];
  const uint64_t* s[3] = {};
  for (int k = 0; k < sources; ++k) s[k] = w.Source(i.operands[k + 1], scratch[k]);
  const auto rounding = static_cast<Rounding>(i.extra);
  for (int l = 0; l < kWarpSize; ++l) {
    r[l] = 0;
    for (int half = 0; half < 2; ++half) {
      float v[3] = {};
      for (int k = 0; k < sources; ++k)
        v[k] = Input(std::bit_cast<float>(uint32_t(s[k][l] >> 32 * half)), i.flags);
      r[l] |= uint64_t{std::bit_cast<uint32_t>(Finish(f(v[0], v[1], v[2], rounding), i.flags))} << 32 * half;
    }
  }
  w.Store(i.operands[0], r);
}

absl::Status PreparePairs(Instruction& i) {
  if (i.opcode == "add") {
    i.execute = [](Warp& w, const Instruction& i) {
      PairLanes(w, i, 2, [](float a, float b, float, Rounding r) { return AddFloat(a, b, r); });
    };
  } else if (i.opcode == "sub") {
    i.execute = [](Warp& w, const Instruction& i) {
      PairLanes(w, i, 2, [](float a, float b, float, Rounding r) { return AddFloat(a, -b, r); });
    };
  } else if (i.opcode == "mul") {
    i.execute = [](Warp& w, const Instruction& i) {
      PairLanes(w, i, 2, [](float a, float b, float, Rounding r) { return MulFloat(a, b, r); });
    };
  } else if (i.opcode == "fma") {
    i.execute = [](Warp& w, const Instruction& i) {
      PairLanes(w, i, 3, [](float a, float b, float c, Rounding r) { return FmaFloat(a, b, c, r); });
    };
  } else {
    return NoSuchType(i);
  }
  return NeedOperands(i, i.opcode == "fma" ? 4 : 3);
}

// sin, cos, lg2, ex2, tanh, and the approximate rcp, sqrt, rsqrt, div of single precision.
using Function1 = float (*)(float);
template <Function1 kFunction>
void Approximate(Warp& w, const Instruction& i) {
  Lanes<float, 1>(w, i, [](float a, Rounding) { return kFunction(a); });
}
float Sin(float x) { return static_cast<float>(std::sin(double{x})); }
float Cos(float x) { return static_cast<float>(std::cos(double{x})); }
float Lg2(float x) { return std::log2(x); }
float Ex2(float x) { return std::exp2(x); }
float Tanh(float x) { return static_cast<float>(std::tanh(double{x})); }

absl::Status PrepareFunction(Instruction& i) {
  FindTypes(i);
  SetFlags(i);
  if (i.type == Type::kF16 || i.type == Type::kF16x2 || i.type == Type::kBf16 || i.type == Type::kBf16x2) {
    return PrepareHalfArithmetic(i);
  }
  const std::string& op = i.opcode;
  const bool f64 = i.type == Type::kF64;
  if (op == "rcp")
    i.execute = f64 ? Rcp64 : Rcp32;
  else if (op == "sqrt")
    i.execute = f64 ? Sqrt64 : Sqrt32;
  else if (op == "rsqrt")
    i.execute = f64 ? Rsqrt64 : Rsqrt32;
  else if (f64)
    return NoSuchType(i);
  else if (op == "sin")
    i.execute = Approximate<Sin>;
  else if (op == "cos")
    i.execute = Approximate<Cos>;
  else if (op == "lg2")
    i.execute = Approximate<Lg2>;
  else if (op == "ex2")
    i.execute = Approximate<Ex2>;
  else if (op == "tanh")
    i.execute = Approximate<Tanh>;
  return i.type == Type::kF32 || f64 ? NeedOperands(i, 2) : NoSuchType(i);
}

absl::Status PrepareCopysign(Instruction& i) {
  FindTypes(i);
  // The sign of a, the magnitude of b.
  i.execute =
      i.type == Type::kF64
          ? ExecuteFn{[](Warp& w, const Instruction& i) {
              Lanes<double, 2>(w, i, [](double a, double b, Rounding) { return std::copysign(b, a); });
            }}
          : ExecuteFn{[](Warp& w, const Instruction& i) {
              Lanes<float, 2>(w, i, [](float a, float b, Rounding) { return std::copysign(b, a); });
            }};
  return NeedOperands(i, 3);
}

}  // namespace

absl::Status PrepareFloatArithmetic(Instruction& i) {
  SetFlags(i);
  const std::string& op = i.opcode;
  if (i.type == Type::kF32x2) return PreparePairs(i);
  if (i.type != Type::kF32 && i.type != Type::kF64) return PrepareHalfArithmetic(i);
  if (i.type2 != Type::kNone) return absl::UnimplementedError(Cat(op, " of mixed precision"));
  const bool f64 = i.type == Type::kF64;
  const bool plain = !f64 && i.flags == 0 && i.extra == 0;
  size_t operands = 3;
  if (op == "add") {
    i.execute = f64 ? Add64 : plain ? PlainAdd : Add32;
  } else if (op == "sub") {
    i.execute = f64 ? Sub64 : plain ? PlainSub : Sub32;
  } else if (op == "mul") {
    i.execute = f64 ? Mul64 : plain ? PlainMul : Mul32;
  } else if (op == "fma" || op == "mad") {
    i.execute = f64 ? Fma64 : Fma32;
    operands = 4;
  } else if (op == "div") {
    i.execute = f64 ? Div64 : Div32;
  } else if (op == "neg" || op == "abs") {
    i.execute = f64 ? NegAbs<double, uint64_t> : NegAbs<float, uint32_t>;
    operands = 2;
  } else if (op == "min") {
    i.execute = f64 ? MinMax<double, true> : MinMax<float, true>;
    operands = i.operands.size() == 4 ? 4 : 3;
  } else if (op == "max") {
    i.execute = f64 ? MinMax<double, false> : MinMax<float, false>;
    operands = i.operands.size() == 4 ? 4 : 3;
  } else {
    return NoSuchType(i);
  }
  return NeedOperands(i, operands);
}

void RegisterFloat(Registry& registry) {
  registry.Add("fma", [](Instruction& i) {
    FindTypes(i);
    return PrepareFloatArithmetic(i);
  });
  for (const char* name : {"rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh"})
    registry.Add(name, PrepareFunction);
  registry.Add("copysign", PrepareCopysign);
}

}  // namespace tessera::ptx
