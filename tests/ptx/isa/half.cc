// f16, bf16 and their pairs (PTX ISA, "Half Precision Floating Point Instructions"). Computed in double, to odd where
// inexact, and rounded once; see rounding.h.
#include <cmath>
#include <functional>

#include "tests/ptx/isa/float.h"
#include "tests/ptx/isa/rounding.h"
#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/tensor/formats.h"

namespace tessera::ptx {
namespace {

enum : uint32_t {
  kFtz = 1,
  kSat = 2,
  kNan = 4,
  kXorSign = 8,
  kAbs = 16,
  kRelu = 32,
  kBf16 = 64,
  kPair = 128
};

enum class Op { kAdd, kSub, kMul, kFma, kMin, kMax, kNeg, kAbs, kEx2, kTanh };

struct HalfPayload : Payload {
  Op op;
  int sources;
};

double Load(uint16_t bits, bool bf16, bool ftz) {
  if (bf16) return std::bit_cast<float>(uint32_t{bits} << 16);
  if (ftz && (bits & 0x7C00) == 0) bits &= 0x8000;
  return Decode(ElementType::kF16, bits);
}

uint16_t Save(double x, uint32_t flags) {
  if (flags & kSat) x = Saturate(x);
  if ((flags & kRelu) && x <= 0) x = 0;
  if (x != x) return kNanHalf;
  uint16_t bits = static_cast<uint16_t>(
      Encode((flags & kBf16) ? ElementType::kBF16 : ElementType::kF16, x, Overflow::kSpecial));
  if ((flags & kFtz) && !(flags & kBf16) && (bits & 0x7C00) == 0) bits &= 0x8000;
  return bits;
}

double MinMaxOf(double a, double b, bool min, uint32_t flags) {
  const bool sign = std::signbit(a) != std::signbit(b);
  double r;
  if (a != a || b != b) {
    if ((a != a && b != b) || (flags & kNan)) return NAN;
    r = a != a ? b : a;
  } else if (flags & kAbs) {
    r = (std::abs(a) < std::abs(b)) == min ? std::abs(a) : std::abs(b);
  } else if (a == b) {
    r = std::signbit(a) == min ? a : b;
  } else {
    r = (a < b) == min ? a : b;
  }
  return flags & kXorSign ? std::copysign(r, sign ? -1 : 1) : r;
}

uint16_t Compute(Op op, uint32_t flags, const uint16_t (&v)[3]) {
  const bool bf16 = flags & kBf16, ftz = flags & kFtz;
  // On the sign alone.
  if (op == Op::kNeg) return v[0] ^ 0x8000;
  if (op == Op::kAbs) return v[0] & 0x7FFF;
  const double a = Load(v[0], bf16, ftz), b = Load(v[1], bf16, ftz), c = Load(v[2], bf16, ftz);
  switch (op) {
    case Op::kAdd:
      return Save(SumOdd(a, b), flags);
    case Op::kSub:
      return Save(SumOdd(a, -b), flags);
    case Op::kMul:
      return Save(a * b, flags);
    case Op::kFma:
      return Save(SumOdd(a * b, c), flags);
    case Op::kMin:
    case Op::kMax:
      return Save(MinMaxOf(a, b, op == Op::kMin, flags), flags);
    case Op::kEx2:
      return Save(std::exp2(a), flags);
    default:
      return Save(std::tanh(a), flags);
  }
}

void Execute(Warp& w, const Instruction& i) {
  const auto& payload = i.As<HalfPayload>();
  const bool pair = i.flags & kPair;
  uint32_t scratch[3][kWarpSize] = {}, r[kWarpSize];
  const uint32_t* s[3] = {scratch[0], scratch[1], scratch[2]};
  for (int k = 0; k < payload.sources; ++k) s[k] = w.Source(i.operands[k + 1], scratch[k]);
  for (int l = 0; l < kWarpSize; ++l) {
    const uint16_t low[3] = {uint16_t(s[0][l]), uint16_t(s[1][l]), uint16_t(s[2][l])};
    r[l] = Compute(payload.op, i.flags, low);
    if (pair) {
      const uint16_t high[3] = {uint16_t(s[0][l] >> 16), uint16_t(s[1][l] >> 16), uint16_t(s[2][l] >> 16)};
      r[l] |= uint32_t{Compute(payload.op, i.flags, high)} << 16;
    }
  }
  w.Store(i.operands[0], r);
}

// bf16x2 products, the most frequent: exact in single precision, rounded once.
void MulBf16x2(Warp& w, const Instruction& i) {
  uint32_t sa[kWarpSize], sb[kWarpSize], r[kWarpSize];
  const uint32_t* a = w.Source(i.operands[1], sa);
  const uint32_t* b = w.Source(i.operands[2], sb);
  const auto round = [](float x) -> uint32_t {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    return x != x ? uint32_t{kNanHalf} << 16 : (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000;
  };
  for (int l = 0; l < kWarpSize; ++l) {
    const float low = std::bit_cast<float>(a[l] << 16) * std::bit_cast<float>(b[l] << 16);
    const float high = std::bit_cast<float>(a[l] & 0xFFFF0000) * std::bit_cast<float>(b[l] & 0xFFFF0000);
    r[l] = round(low) >> 16 | round(high);
  }
  w.Store(i.operands[0], r);
}

}  // namespace

absl::Status PrepareHalfArithmetic(Instruction& i) {
  const bool bf16 = i.type == Type::kBf16 || i.type == Type::kBf16x2;
  const bool pair = i.type == Type::kF16x2 || i.type == Type::kBf16x2;
  if (!bf16 && !pair && i.type != Type::kF16) return NoSuchType(i);
  const struct {
    const char* name;
    Op op;
    int sources;
  } kOps[] = {{"add", Op::kAdd, 2}, {"sub", Op::kSub, 2},  {"mul", Op::kMul, 2}, {"fma", Op::kFma, 3},
              {"min", Op::kMin, 2}, {"max", Op::kMax, 2},  {"neg", Op::kNeg, 1}, {"abs", Op::kAbs, 1},
              {"ex2", Op::kEx2, 1}, {"tanh", Op::kTanh, 1}};
  auto payload = std::make_unique<HalfPayload>();
  bool found = false;
  for (const auto& op : kOps) {
    if (i.opcode != op.name) continue;
    payload->op = op.op;
    payload->sources = op.sources;
    found = true;
  }
  if (!found) return NoSuchType(i);
  i.flags = (i.Has("ftz") ? kFtz : 0u) | (i.Has("sat") ? kSat : 0u) | (i.Has("NaN") ? kNan : 0u) |
            (i.Has("xorsign") ? kXorSign : 0u) | (i.Has("abs") ? kAbs : 0u) | (i.Has("relu") ? kRelu : 0u) |
            (bf16 ? kBf16 : 0u) | (pair ? kPair : 0u);
  const size_t operands = payload->sources + 1;
  i.execute = Execute;
  if (i.flags == (kBf16 | kPair) && payload->op == Op::kMul) i.execute = MulBf16x2;
  i.payload = std::move(payload);
  return NeedOperands(i, operands);
}

}  // namespace tessera::ptx
