// cvt (PTX ISA, "cvt" and "cvt.pack"). Integers convert as integers; everything with a floating side goes through
// double, which holds each value of each format of 32 bits and less.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/ptx/isa/rounding.h"
#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/tensor/formats.h"

namespace tessera::ptx {
namespace {

enum : uint32_t { kFtz = 1, kSat = 2, kRelu = 4, kSatFinite = 8, kAway = 16, kIntegral = 32, kUp = 64 };

Rounding ModeOf(const Instruction& i) { return static_cast<Rounding>(i.extra); }

// ---- Integer to integer

template <class From>
void Extend(Warp& w, const Instruction& i) {
  From scratch[kWarpSize];
  const From* a = w.Source(i.operands[1], scratch);
  const int bits = Bits(i.type2);  // the destination type, which may be narrower than its register
  using Wide = std::conditional_t<std::is_signed_v<From>, int64_t, uint64_t>;
  if (i.flags & kSat) {
    uint64_t r[kWarpSize];
    for (int l = 0; l < kWarpSize; ++l) {
      const __int128 x = static_cast<Wide>(a[l]);
      const bool sign = IsSigned(i.type2);
      const __int128 low = sign ? -(static_cast<__int128>(1) << (bits - 1)) : 0;
      const __int128 high = (static_cast<__int128>(1) << (sign ? bits - 1 : bits)) - 1;
      r[l] = static_cast<uint64_t>(std::clamp(x, low, high));
    }
    w.Store(i.operands[0], r);
    return;
  }
  Wide r[kWarpSize];
  for (int l = 0; l < kWarpSize; ++l) r[l] = static_cast<Wide>(a[l]);
  // To a narrow type in a wide register: the value is that of the narrow type, extended by its own sign.
  if (bits < 64) {
    for (int l = 0; l < kWarpSize; ++l) {
      const uint64_t low = static_cast<uint64_t>(r[l]) << (64 - bits);
      r[l] = static_cast<Wide>(IsSigned(i.type2)
                                   ? static_cast<uint64_t>(static_cast<int64_t>(low) >> (64 - bits))
                                   : low >> (64 - bits));
    }
  }
  w.Store(i.operands[0], r);
}

// Without saturation, to a register of the type's width.
template <class From, class To>
void Plain(Warp& w, const Instruction& i) {
  From scratch[kWarpSize];
  To r[kWarpSize];
  const Operand& from = i.operands[1];
  const From* a;
  if (sizeof(To) < sizeof(From) && from.IsRegister() && from.width == sizeof(From)) {
    // The upper half may be nothing.
    const LaneMask missing = w.active() & ~w.DefinedHalves(from).low;
    if (missing != 0) w.CheckDefined(from, missing);
    a = w.frame().template Lanes<From>(from);
  } else {
    a = w.Source(from, scratch);
  }
  for (int l = 0; l < kWarpSize; ++l) r[l] = static_cast<To>(a[l]);
  w.Store(i.operands[0], r);
}

template <class From>
ExecuteFn ForInteger(const Instruction& i) {
  const Operand& to = i.operands[0];
  if ((i.flags & kSat) == 0 && to.IsRegister() && to.width == Bytes(i.type2)) {
    if (to.width == 2) return Plain<From, uint16_t>;
    if (to.width == 4) return Plain<From, uint32_t>;
    if (to.width == 8) return Plain<From, uint64_t>;
  }
  return Extend<From>;
}

// ---- With a floating side

ElementType ElementOf(Type type) {
  switch (type) {
    case Type::kF16:
    case Type::kF16x2:
      return ElementType::kF16;
    case Type::kBf16:
    case Type::kBf16x2:
      return ElementType::kBF16;
    case Type::kTf32:
      return ElementType::kTF32;
    case Type::kE4m3:
    case Type::kE4m3x2:
    case Type::kE4m3x4:
      return ElementType::kE4M3;
    case Type::kE5m2:
    case Type::kE5m2x2:
    case Type::kE5m2x4:
      return ElementType::kE5M2;
    case Type::kE2m3x2:
    case Type::kE2m3x4:
      return ElementType::kE2M3;
    case Type::kE3m2x2:
    case Type::kE3m2x4:
      return ElementType::kE3M2;
    case Type::kE2m1x2:
    case Type::kE2m1x4:
      return ElementType::kE2M1;
    case Type::kUe8m0x2:
      return ElementType::kUE8M0;
    default:
      return ElementType::kF32;
  }
}

double DecodeFloat(Type type, uint64_t bits, uint32_t flags) {
  if (type == Type::kF64) return std::bit_cast<double>(bits);
  if (type == Type::kF32) {
    const float f = std::bit_cast<float>(static_cast<uint32_t>(bits));
    return flags & kFtz ? FlushSubnormal(f) : f;
  }
  return Decode(ElementOf(type), static_cast<uint32_t>(bits));
}

// Narrow formats towards zero: the nearest, one step back if it is past the value.
uint64_t EncodeTruncated(ElementType element, double x, Overflow overflow, bool keep_infinity) {
  uint32_t code = Encode(element, x, overflow);
  if (x != x || (std::isinf(x) && keep_infinity)) return code;
  const uint32_t step = element == ElementType::kTF32 ? 1u << 13 : 1;
  if (std::abs(Decode(element, code)) > std::abs(x)) code -= step;
  return code;
}

uint64_t EncodeFloat(Type type, double x, Rounding rounding, uint32_t flags) {
  if (flags & kSat) x = Saturate(x);
  if ((flags & kRelu) && x <= 0) x = 0;
  if (type == Type::kF64) return x != x ? kNanF64 : std::bit_cast<uint64_t>(x);
  if (type == Type::kF32) {
    float f = CanonicalNan(RoundToFloat(x, rounding));
    if (flags & kFtz) f = FlushSubnormal(f);
    return std::bit_cast<uint32_t>(f);
  }
  const ElementType element = ElementOf(type);
  if (element == ElementType::kUE8M0) return EncodeUE8M0(x, (flags & kUp) != 0);
  const Overflow overflow = flags & kSatFinite ? Overflow::kSaturate : Overflow::kSpecial;
  if (element == ElementType::kTF32 && (flags & kAway) && std::isfinite(x)) {
    // .rna: half a unit more in magnitude, and cut.
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(x)) + (1u << 12);
    return bits & ~((1u << 13) - 1);
  }
  if (rounding == Rounding::kZero) return EncodeTruncated(element, x, overflow, (flags & kSatFinite) == 0);
  return Encode(element, x, overflow);
}

uint64_t FloatToInteger(double x, Type to, Rounding rounding) {
  if (x != x) return 0;
  const int bits = Bits(to);
  x = RoundToIntegral(x, rounding);
  if (IsSigned(to)) {
    const double limit = std::ldexp(1.0, bits - 1);
    if (x >= limit) return (uint64_t{1} << (bits - 1)) - 1;
    if (x < -limit) return ~uint64_t{0} << (bits - 1);
    return static_cast<uint64_t>(static_cast<int64_t>(x));
  }
  if (x <= 0) return 0;
  if (x >= std::ldexp(1.0, bits)) return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  return static_cast<uint64_t>(x);
}

// An integer of up to 64 bits, rounded to odd in double where it has more than 53.
double IntegerToDoubleOdd(uint64_t bits, bool sign) {
  if (sign) {
    const auto v = static_cast<int64_t>(bits);
    const double d = static_cast<double>(v);
    return ToOdd(d, static_cast<double>(static_cast<__int128>(v) - static_cast<__int128>(d)));
  }
  const double d = static_cast<double>(bits);
  return ToOdd(d, static_cast<double>(static_cast<__int128>(bits) - static_cast<__int128>(d)));
}

double IntegerToDouble(uint64_t bits, bool sign, Rounding rounding) {
  const __int128 exact =
      sign ? static_cast<__int128>(static_cast<int64_t>(bits)) : static_cast<__int128>(bits);
  const double nearest = sign ? static_cast<double>(static_cast<int64_t>(bits)) : static_cast<double>(bits);
  if (rounding == Rounding::kNearest || static_cast<__int128>(nearest) == exact) return nearest;
  const bool above = static_cast<__int128>(nearest) > exact;
  const bool want_below = rounding == Rounding::kDown || (rounding == Rounding::kZero && exact > 0);
  if (above == want_below) return std::nextafter(nearest, want_below ? -INFINITY : INFINITY);
  return nearest;
}

uint64_t Extended(uint64_t bits, Type type) {
  const int n = Bits(type);
  if (n == 64) return bits;
  const uint64_t low = bits << (64 - n);
  return IsSigned(type) ? static_cast<uint64_t>(static_cast<int64_t>(low) >> (64 - n)) : low >> (64 - n);
}

// One value: i.type2 is the destination's type, i.type the source's.
void Scalar(Warp& w, const Instruction& i) {
  const Type to = i.type2, from = i.type;
  const Rounding mode = ModeOf(i);
  uint64_t scratch[kWarpSize], r[kWarpSize] = {};
  const uint64_t* a = SourceBits(w, i.operands[1], Bits(from), scratch);
  ForLanes(w.active(), [&](int l) {
    const uint64_t bits = a[l];
    if (!IsFloat(from)) {
      const uint64_t value = Extended(bits, from);
      if (to == Type::kF64)
        r[l] = std::bit_cast<uint64_t>(IntegerToDouble(value, IsSigned(from), mode));
      else
        r[l] = EncodeFloat(to, IntegerToDoubleOdd(value, IsSigned(from)), mode, i.flags);
      return;
    }
    double x = DecodeFloat(from, bits, i.flags);
    if (!IsFloat(to)) {
      r[l] = FloatToInteger(x, to, mode);
    } else {
      if (i.flags & kIntegral) x = RoundToIntegral(x, mode);
      r[l] = EncodeFloat(to, x, mode, i.flags);
    }
  });
  w.Store(i.operands[0], r);
}

// Several values packed: {two or four} f32 -> d, packed -> f16x2 or bf16x2, packed halves -> d. The first source is the
// highest.
void Packed(Warp& w, const Instruction& i) {
  const Type to = i.type2, from = i.type;
  const Rounding mode = ModeOf(i);
  const ElementType to_element = ElementOf(to);
  // 4-bit codes are packed in 4 bits, the others of 8 bits and less in bytes.
  const int to_bits = to_element == ElementType::kE2M1 ? 4 : std::max(8, BitsOf(to_element));
  uint64_t r[kWarpSize] = {};
  if (from == Type::kF32) {
    std::vector<const Operand*> sources;
    for (size_t k = 1; k < i.operands.size(); ++k) {
      if (i.operands[k].kind == Operand::Kind::kVector) {
        for (const Operand& e : i.operands[k].elements) sources.push_back(&e);
      } else {
        sources.push_back(&i.operands[k]);
      }
    }
    const size_t count = sources.size();
    for (size_t k = 0; k < count; ++k) {
      uint32_t scratch[kWarpSize];
      const uint32_t* a = w.Source(*sources[k], scratch);
      const int shift = to_bits * static_cast<int>(count - 1 - k);
      for (int l = 0; l < kWarpSize; ++l)
        r[l] |= EncodeFloat(to, DecodeFloat(from, a[l], i.flags), mode, i.flags) << shift;
    }
  } else {
    const ElementType from_element = ElementOf(from);
    const int from_bits = from_element == ElementType::kE2M1 ? 4 : std::max(8, BitsOf(from_element));
    uint64_t scratch[kWarpSize];
    const uint64_t* a = w.Source(i.operands[1], scratch);
    for (int k = 0; k < 2; ++k) {
      for (int l = 0; l < kWarpSize; ++l) {
        const uint64_t code = a[l] >> (from_bits * k) & ((uint64_t{1} << from_bits) - 1);
        r[l] |= EncodeFloat(to, Decode(from_element, static_cast<uint32_t>(code)), mode, i.flags)
                << (to_bits * k);
      }
    }
  }
  w.Store(i.operands[0], r);
}

// cvt.rn.bf16x2.f32 d, a, b without modifiers.
void PackBf16(Warp& w, const Instruction& i) {
  uint32_t sa[kWarpSize], sb[kWarpSize], r[kWarpSize];
  const uint32_t* a = w.Source(i.operands[1], sa);
  const uint32_t* b = w.Source(i.operands[2], sb);
  const auto round = [](uint32_t bits) -> uint32_t {
    const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    return nan ? 0x7FFF : (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  };
  for (int l = 0; l < kWarpSize; ++l) r[l] = round(a[l]) << 16 | round(b[l]);
  w.Store(i.operands[0], r);
}
void Bf16ToF32(Warp& w, const Instruction& i) {
  uint16_t sa[kWarpSize];
  uint32_t r[kWarpSize];
  const uint16_t* a = w.Source(i.operands[1], sa);
  for (int l = 0; l < kWarpSize; ++l) r[l] = uint32_t{a[l]} << 16;
  w.Store(i.operands[0], r);
}

bool IsPacked(Type type) {
  switch (type) {
    case Type::kF16x2:
    case Type::kBf16x2:
    case Type::kE4m3x2:
    case Type::kE5m2x2:
    case Type::kE2m3x2:
    case Type::kE3m2x2:
    case Type::kE2m1x2:
    case Type::kUe8m0x2:
    case Type::kE4m3x4:
    case Type::kE5m2x4:
    case Type::kE2m3x4:
    case Type::kE3m2x4:
    case Type::kE2m1x4:
      return true;
    default:
      return false;
  }
}

absl::Status PrepareInteger(Instruction& i) {
  switch (i.type) {
    case Type::kU8:
    case Type::kB8:
      i.execute = ForInteger<uint8_t>(i);
      break;
    case Type::kS8:
      i.execute = ForInteger<int8_t>(i);
      break;
    case Type::kU16:
    case Type::kB16:
      i.execute = ForInteger<uint16_t>(i);
      break;
    case Type::kS16:
      i.execute = ForInteger<int16_t>(i);
      break;
    case Type::kU32:
    case Type::kB32:
      i.execute = ForInteger<uint32_t>(i);
      break;
    case Type::kS32:
      i.execute = ForInteger<int32_t>(i);
      break;
    case Type::kU64:
    case Type::kB64:
      i.execute = ForInteger<uint64_t>(i);
      break;
    case Type::kS64:
      i.execute = ForInteger<int64_t>(i);
      break;
    default:
      return NoSuchType(i);
  }
  return absl::OkStatus();
}

absl::Status PrepareConvert(Instruction& i) {
  FindTypes(i);
  if (i.type2 == Type::kNone) return absl::InvalidArgumentError("cvt needs two types");
  if (i.Has("rs")) return absl::UnimplementedError("cvt with stochastic rounding");
  if (i.Has("scaled::n2::ue8m0")) return absl::UnimplementedError("cvt with a scale");
  i.flags = (i.Has("ftz") ? kFtz : 0u) | (i.Has("sat") ? kSat : 0u) | (i.Has("relu") ? kRelu : 0u) |
            (i.Has("satfinite") ? kSatFinite : 0u) | (i.Has("rna") ? kAway : 0u) | (i.Has("rp") ? kUp : 0u);
  if (i.Has("rni") || i.Has("rzi") || i.Has("rmi") || i.Has("rpi")) i.flags |= kIntegral;
  i.extra = static_cast<uint32_t>(RoundingOf(i));
  if (i.operands.size() < 2) return NeedOperands(i, 2);
  if (IsPacked(i.type2)) {
    const bool plain = i.flags == 0 && ModeOf(i) == Rounding::kNearest;
    i.execute = plain && i.type2 == Type::kBf16x2 && i.type == Type::kF32 ? PackBf16 : Packed;
    return absl::OkStatus();
  }
  if (absl::Status s = NeedOperands(i, 2); !s.ok()) return s;
  if (IsFloat(i.type) || IsFloat(i.type2)) {
    i.execute = i.type == Type::kBf16 && i.type2 == Type::kF32 && i.flags == 0 ? Bf16ToF32 : Scalar;
    return absl::OkStatus();
  }
  return PrepareInteger(i);
}

// cvt.pack.sat.ctype.atype.b32 d, a, b, c: saturates a and b and puts them below c shifted up.
void CvtPack(Warp& w, const Instruction& i) {
  const Type to = *ParseType(i.modifiers[2]);
  const int bits = to == Type::kU8 || to == Type::kS8 ? 8 : 16;
  uint32_t sa[kWarpSize], sb[kWarpSize], sc[kWarpSize], r[kWarpSize];
  const uint32_t* a = w.Source(i.operands[1], sa);
  const uint32_t* b = w.Source(i.operands[2], sb);
  const uint32_t* c = i.operands.size() > 3 ? w.Source(i.operands[3], sc) : nullptr;
  for (int l = 0; l < kWarpSize; ++l) {
    const auto clamp = [&](uint32_t x) {
      const int64_t low = IsSigned(to) ? -(int64_t{1} << (bits - 1)) : 0;
      const int64_t high = (int64_t{1} << (IsSigned(to) ? bits - 1 : bits)) - 1;
      return static_cast<uint32_t>(std::clamp<int64_t>(static_cast<int32_t>(x), low, high)) &
             ((1u << bits) - 1);
    };
    r[l] = clamp(a[l]) << bits | clamp(b[l]);
    if (c != nullptr && bits == 8) r[l] |= c[l] << 16;
  }
  w.Store(i.operands[0], r);
}

}  // namespace

void RegisterConvert(Registry& registry) {
  registry.Add("cvt", PrepareConvert);
  registry.Add("cvt.pack", [](Instruction& i) {
    if (i.modifiers.size() < 4 || !ParseType(i.modifiers[2]))
      return absl::UnimplementedError("this form of cvt.pack");
    i.execute = CvtPack;
    return absl::OkStatus();
  });
}

}  // namespace tessera::ptx
