// Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions" and "Extended-Precision Arithmetic Instructions"). The
// opcodes that exist for floats too choose by type here and hand those over.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "tests/ptx/isa/float.h"
#include "tests/ptx/isa/scalar.h"

namespace tessera::ptx {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
struct WiderOf;
template <>
struct WiderOf<uint16_t> {
  using type = uint32_t;
};
template <>
struct WiderOf<int16_t> {
  using type = int32_t;
};
template <>
struct WiderOf<uint32_t> {
  using type = uint64_t;
};
template <>
struct WiderOf<int32_t> {
  using type = int64_t;
};
template <>
struct WiderOf<uint64_t> {
  using type = unsigned __int128;
};
template <>
struct WiderOf<int64_t> {
  using type = __int128;
};
template <class T>
using Wider = typename WiderOf<T>::type;

// Arithmetic wraps, so it is done on unsigned values.
struct Add {
  template <class T>
  static T Do(T a, T b) {
    return static_cast<T>(Unsigned<T>(a) + Unsigned<T>(b));
  }
};
struct Sub {
  template <class T>
  static T Do(T a, T b) {
    return static_cast<T>(Unsigned<T>(a) - Unsigned<T>(b));
  }
};
struct AddSat {
  static int32_t Do(int32_t a, int32_t b) {
    return static_cast<int32_t>(std::clamp<int64_t>(int64_t{a} + b, INT32_MIN, INT32_MAX));
  }
};
struct SubSat {
  static int32_t Do(int32_t a, int32_t b) {
    return static_cast<int32_t>(std::clamp<int64_t>(int64_t{a} - b, INT32_MIN, INT32_MAX));
  }
};
struct MulLo {
  template <class T>
  static T Do(T a, T b) {
    return static_cast<T>(uint64_t(Unsigned<T>(a)) * uint64_t(Unsigned<T>(b)));
  }
};
struct MulHi {
  template <class T>
  static T Do(T a, T b) {
    return static_cast<T>((Wider<T>(a) * Wider<T>(b)) >> (sizeof(T) * 8));
  }
};
struct MadLo {
  template <class T>
  static T Do(T a, T b, T c) {
    return Add::Do(MulLo::Do(a, b), c);
  }
};
struct MadHi {
  template <class T>
  static T Do(T a, T b, T c) {
    return Add::Do(MulHi::Do(a, b), c);
  }
};
struct MadHiSat {
  static int32_t Do(int32_t a, int32_t b, int32_t c) { return AddSat::Do(MulHi::Do(a, b), c); }
};
// Division by zero has no defined result; all ones is what hardware gives.
struct Div {
  template <class T>
  static T Do(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if constexpr (std::is_signed_v<T>) {
      if (b == T(-1)) return Sub::Do(T{0}, a);
    }
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <class T>
  static T Do(T a, T b) {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>) {
      if (b == T(-1)) return 0;
    }
    return static_cast<T>(a % b);
  }
};
struct Min {
  template <class T>
  static T Do(T a, T b) {
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  static T Do(T a, T b) {
    return a < b ? b : a;
  }
};
struct MinRelu {
  template <class T>
  static T Do(T a, T b) {
    return std::max<T>(Min::Do(a, b), 0);
  }
};
struct MaxRelu {
  template <class T>
  static T Do(T a, T b) {
    return std::max<T>(Max::Do(a, b), 0);
  }
};
struct Sad {
  template <class T>
  static T Do(T a, T b, T c) {
    return Add::Do(c, static_cast<T>(a < b ? Sub::Do(b, a) : Sub::Do(a, b)));
  }
};
struct Neg {
  template <class T>
  static T Do(T a) {
    return Sub::Do(T{0}, a);
  }
};
struct Abs {
  template <class T>
  static T Do(T a) {
    return a < 0 ? Neg::Do(a) : a;
  }
};
// Two 16-bit halves in a word.
template <class Op, class T>
struct Halves {
  static uint32_t Do(uint32_t a, uint32_t b) {
    const uint16_t low = static_cast<uint16_t>(Op::Do(static_cast<T>(a), static_cast<T>(b)));
    const uint16_t high = static_cast<uint16_t>(Op::Do(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
    return low | uint32_t{high} << 16;
  }
};

template <class T>
void MulWide(Warp& w, const Instruction& i) {
  T sa[kWarpSize], sb[kWarpSize];
  Wider<T> r[kWarpSize];
  const T* a = w.Source(i.operands[1], sa);
  const T* b = w.Source(i.operands[2], sb);
  for (int l = 0; l < kWarpSize; ++l) r[l] = Wider<T>(a[l]) * Wider<T>(b[l]);
  w.Store(i.operands[0], r);
}

template <class T>
void MadWide(Warp& w, const Instruction& i) {
  T sa[kWarpSize], sb[kWarpSize];
  Wider<T> sc[kWarpSize], r[kWarpSize];
  const T* a = w.Source(i.operands[1], sa);
  const T* b = w.Source(i.operands[2], sb);
  const Wider<T>* c = w.Source(i.operands[3], sc);
  for (int l = 0; l < kWarpSize; ++l)
    r[l] = Add::Do(static_cast<Wider<T>>(Wider<T>(a[l]) * Wider<T>(b[l])), c[l]);
  w.Store(i.operands[0], r);
}

template <class T>
void Mul24(Warp& w, const Instruction& i) {
  T sa[kWarpSize], sb[kWarpSize], sc[kWarpSize], r[kWarpSize];
  const bool mad = i.opcode == "mad24", high = i.Has("hi");
  const T* a = w.Source(i.operands[1], sa);
  const T* b = w.Source(i.operands[2], sb);
  const T* c = mad ? w.Source(i.operands[3], sc) : nullptr;
  for (int l = 0; l < kWarpSize; ++l) {
    const auto low24 = [](T x) { return static_cast<T>(Unsigned<T>(x) << 8) >> 8; };
    const Wider<T> product = Wider<T>(low24(a[l])) * low24(b[l]);
    r[l] = static_cast<T>(high ? product >> 16 : product);
    if (mad) r[l] = Add::Do(r[l], c[l]);
  }
  w.Store(i.operands[0], r);
}

// The carry flag, CC.CF: a bit a lane.
struct CarryFlag : ExtensionState {
  LaneMask carry = 0;
};

// add.cc, addc, sub.cc, subc, mad(c).{lo,hi}.cc.
template <class T>
void Extended(Warp& w, const Instruction& i) {
  using U = Unsigned<T>;
  const bool mad = i.opcode.starts_with("mad"), sub = i.opcode.starts_with("sub");
  const bool uses = i.opcode.ends_with('c'), sets = i.Has("cc"), high = i.Has("hi");
  LaneMask& flag = w.State<CarryFlag>().carry;
  T sa[kWarpSize], sb[kWarpSize], sc[kWarpSize], r[kWarpSize];
  const T* a = w.Source(i.operands[1], sa);
  const T* b = w.Source(i.operands[2], sb);
  const T* c = mad ? w.Source(i.operands[3], sc) : nullptr;
  LaneMask out = 0;
  for (int l = 0; l < kWarpSize; ++l) {
    U x = U(a[l]), y = U(b[l]);
    if (mad) {
      x = U(high ? MulHi::Do(a[l], b[l]) : MulLo::Do(a[l], b[l]));
      y = U(c[l]);
    }
    const unsigned __int128 in = uses ? (flag >> l) & 1 : 0;
    const unsigned __int128 sum =
        sub ? static_cast<unsigned __int128>(x) - y - in : static_cast<unsigned __int128>(x) + y + in;
    r[l] = static_cast<T>(static_cast<U>(sum));
    out |= LaneMask((sum >> (sizeof(T) * 8)) & 1) << l;
  }
  if (sets) flag = (flag & ~w.active()) | (out & w.active());
  w.Store(i.operands[0], r);
}

template <class Handler>
absl::Status Choose(Instruction& i, Handler by_type, size_t operands) {
  if (absl::Status s = NeedOperands(i, operands); !s.ok()) return s;
  i.execute = by_type(i.type);
  return i.execute == nullptr ? NoSuchType(i) : absl::OkStatus();
}

absl::Status PrepareAddSub(Instruction& i) {
  FindTypes(i);
  if (i.type == Type::kF32 && i.type2 != Type::kNone) return PrepareFloatArithmetic(i);
  if (IsFloat(i.type)) return PrepareFloatArithmetic(i);
  if (absl::Status s = NeedOperands(i, 3); !s.ok()) return s;
  const bool add = i.opcode == "add";
  if (i.Has("cc")) {
    i.execute = Bits(i.type) == 32 ? Extended<uint32_t> : Bits(i.type) == 64 ? Extended<uint64_t> : nullptr;
  } else if (i.Has("sat")) {
    i.execute = i.type != Type::kS32 ? nullptr : add ? Binary<AddSat, int32_t> : Binary<SubSat, int32_t>;
  } else if (i.type == Type::kU16x2 || i.type == Type::kS16x2) {
    i.execute = add ? Binary<Halves<Add, uint16_t>, uint32_t> : Binary<Halves<Sub, uint16_t>, uint32_t>;
  } else {
    i.execute =
        add ? TESSERA_PTX_BY_INTEGER(Binary, Add)(i.type) : TESSERA_PTX_BY_INTEGER(Binary, Sub)(i.type);
  }
  return i.execute == nullptr ? NoSuchType(i) : absl::OkStatus();
}

absl::Status PrepareCarry(Instruction& i) {
  FindTypes(i);
  i.execute = Bits(i.type) == 64 ? (IsSigned(i.type) ? Extended<int64_t> : Extended<uint64_t>)
                                 : (IsSigned(i.type) ? Extended<int32_t> : Extended<uint32_t>);
  return NeedOperands(i, i.opcode.starts_with("mad") ? 4 : 3);
}

absl::Status PrepareMul(Instruction& i) {
  FindTypes(i);
  if (IsFloat(i.type)) return PrepareFloatArithmetic(i);
  if (i.Has("wide")) {
    return Choose(
        i,
        [](Type type) -> ExecuteFn {
          switch (type) {
            case Type::kU16:
              return MulWide<uint16_t>;
            case Type::kS16:
              return MulWide<int16_t>;
            case Type::kU32:
              return MulWide<uint32_t>;
            case Type::kS32:
              return MulWide<int32_t>;
            case Type::kU64:
              return MulWide<uint64_t>;
            case Type::kS64:
              return MulWide<int64_t>;
            default:
              return nullptr;
          }
        },
        3);
  }
  if (i.Has("hi")) return Choose(i, TESSERA_PTX_BY_INTEGER(Binary, MulHi), 3);
  if (i.Has("lo")) return Choose(i, TESSERA_PTX_BY_INTEGER(Binary, MulLo), 3);
  return absl::InvalidArgumentError("mul of integers needs .lo, .hi or .wide");
}

absl::Status PrepareMad(Instruction& i) {
  FindTypes(i);
  if (IsFloat(i.type)) return PrepareFloatArithmetic(i);
  if (i.Has("cc")) return PrepareCarry(i);
  if (i.Has("wide")) {
    return Choose(
        i,
        [](Type type) -> ExecuteFn {
          switch (type) {
            case Type::kU16:
              return MadWide<uint16_t>;
            case Type::kS16:
              return MadWide<int16_t>;
            case Type::kU32:
              return MadWide<uint32_t>;
            case Type::kS32:
              return MadWide<int32_t>;
            default:
              return nullptr;
          }
        },
        4);
  }
  if (i.Has("hi") && i.Has("sat")) {
    i.execute = Ternary<MadHiSat, int32_t>;
    return NeedOperands(i, 4);
  }
  if (i.Has("hi")) return Choose(i, TESSERA_PTX_BY_INTEGER(Ternary, MadHi), 4);
  return Choose(i, TESSERA_PTX_BY_INTEGER(Ternary, MadLo), 4);
}

absl::Status PrepareMul24(Instruction& i) {
  FindTypes(i);
  i.execute = IsSigned(i.type) ? Mul24<int32_t> : Mul24<uint32_t>;
  return NeedOperands(i, i.opcode == "mad24" ? 4 : 3);
}

absl::Status PrepareDiv(Instruction& i) {
  FindTypes(i);
  if (IsFloat(i.type)) return PrepareFloatArithmetic(i);
  return i.opcode == "div" ? Choose(i, TESSERA_PTX_BY_INTEGER(Binary, Div), 3)
                           : Choose(i, TESSERA_PTX_BY_INTEGER(Binary, Rem), 3);
}

absl::Status PrepareMinMax(Instruction& i) {
  FindTypes(i);
  if (IsFloat(i.type)) return PrepareFloatArithmetic(i);
  if (absl::Status s = NeedOperands(i, 3); !s.ok()) return s;
  const bool min = i.opcode == "min", relu = i.Has("relu");
  if (i.type == Type::kU16x2) {
    i.execute = min ? Binary<Halves<Min, uint16_t>, uint32_t> : Binary<Halves<Max, uint16_t>, uint32_t>;
  } else if (i.type == Type::kS16x2 && relu) {
    i.execute = min ? Binary<Halves<MinRelu, int16_t>, uint32_t> : Binary<Halves<MaxRelu, int16_t>, uint32_t>;
  } else if (i.type == Type::kS16x2) {
    i.execute = min ? Binary<Halves<Min, int16_t>, uint32_t> : Binary<Halves<Max, int16_t>, uint32_t>;
  } else if (relu) {
    i.execute = min ? Binary<MinRelu, int32_t> : Binary<MaxRelu, int32_t>;
  } else {
    i.execute =
        min ? TESSERA_PTX_BY_INTEGER(Binary, Min)(i.type) : TESSERA_PTX_BY_INTEGER(Binary, Max)(i.type);
  }
  return i.execute == nullptr ? NoSuchType(i) : absl::OkStatus();
}

absl::Status PrepareSad(Instruction& i) {
  FindTypes(i);
  return Choose(i, TESSERA_PTX_BY_INTEGER(Ternary, Sad), 4);
}

absl::Status PrepareNegAbs(Instruction& i) {
  FindTypes(i);
  if (IsFloat(i.type)) return PrepareFloatArithmetic(i);
  const bool neg = i.opcode == "neg";
  return Choose(
      i,
      [neg](Type type) -> ExecuteFn {
        switch (type) {
          case Type::kS16:
            return neg ? Unary<Neg, int16_t> : Unary<Abs, int16_t>;
          case Type::kS32:
            return neg ? Unary<Neg, int32_t> : Unary<Abs, int32_t>;
          case Type::kS64:
            return neg ? Unary<Neg, int64_t> : Unary<Abs, int64_t>;
          default:
            return nullptr;
        }
      },
      2);
}

// dp4a.atype.btype d, a, b, c and dp2a.{lo,hi}.
void DotProduct(Warp& w, const Instruction& i) {
  uint32_t sa[kWarpSize], sb[kWarpSize], sc[kWarpSize], r[kWarpSize];
  const uint32_t* a = w.Source(i.operands[1], sa);
  const uint32_t* b = w.Source(i.operands[2], sb);
  const uint32_t* c = w.Source(i.operands[3], sc);
  const bool signed_a = IsSigned(i.type2), signed_b = IsSigned(i.type), four = i.opcode == "dp4a",
             high = i.Has("hi");
  const auto byte = [](uint32_t x, int n, bool sign) {
    return sign ? int32_t{int8_t(x >> 8 * n)} : int32_t{uint8_t(x >> 8 * n)};
  };
  const auto half = [](uint32_t x, int n, bool sign) {
    return sign ? int32_t{int16_t(x >> 16 * n)} : int32_t{uint16_t(x >> 16 * n)};
  };
  for (int l = 0; l < kWarpSize; ++l) {
    uint32_t sum = c[l];
    for (int k = 0; k < (four ? 4 : 2); ++k) {
      const int64_t x = four ? byte(a[l], k, signed_a) : half(a[l], k, signed_a);
      sum += static_cast<uint32_t>(x * byte(b[l], four ? k : k + (high ? 2 : 0), signed_b));
    }
    r[l] = sum;
  }
  w.Store(i.operands[0], r);
}

absl::Status PrepareDot(Instruction& i) {
  FindTypes(i);
  i.execute = DotProduct;
  return NeedOperands(i, 4);
}

}  // namespace

void RegisterInteger(Registry& registry) {
  registry.Add("add", PrepareAddSub);
  registry.Add("sub", PrepareAddSub);
  registry.Add("addc", PrepareCarry);
  registry.Add("subc", PrepareCarry);
  registry.Add("madc", PrepareCarry);
  registry.Add("mul", PrepareMul);
  registry.Add("mad", PrepareMad);
  registry.Add("mul24", PrepareMul24);
  registry.Add("mad24", PrepareMul24);
  registry.Add("div", PrepareDiv);
  registry.Add("rem", PrepareDiv);
  registry.Add("min", PrepareMinMax);
  registry.Add("max", PrepareMinMax);
  registry.Add("sad", PrepareSad);
  registry.Add("neg", PrepareNegAbs);
  registry.Add("abs", PrepareNegAbs);
  registry.Add("dp4a", PrepareDot);
  registry.Add("dp2a", PrepareDot);
}

}  // namespace tessera::ptx
