// Logic, shifts and bit fields (PTX ISA, "Logic and Shift Instructions"; bfe, bfi, popc, ... of "Integer Arithmetic").
#include <algorithm>
#include <bit>
#include <cstdint>

#include "tests/ptx/isa/scalar.h"

namespace tessera::ptx {
namespace {

struct And {
  template <class T>
  static T Do(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  static T Do(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <class T>
  static T Do(T a, T b) {
    return a ^ b;
  }
};
struct Not {
  template <class T>
  static T Do(T a) {
    return static_cast<T>(~a);
  }
};
struct Cnot {
  template <class T>
  static T Do(T a) {
    return a == 0;
  }
};
struct Brev {
  template <class T>
  static T Do(T a) {
    T r = 0;
    for (size_t k = 0; k < sizeof(T) * 8; ++k) r |= ((a >> k) & 1) << (sizeof(T) * 8 - 1 - k);
    return r;
  }
};

template <class Op>
absl::Status PrepareLogic(Instruction& i) {
  FindTypes(i);
  switch (i.type) {
    case Type::kPred:
      i.execute = [](Warp& w, const Instruction& i) {
        w.StorePredicate(i.operands[0],
                         Op::Do(w.SourcePredicate(i.operands[1]), w.SourcePredicate(i.operands[2])));
      };
      break;
    case Type::kB16:
      i.execute = Binary<Op, uint16_t>;
      break;
    case Type::kB32:
      i.execute = Binary<Op, uint32_t>;
      break;
    case Type::kB64:
      i.execute = Binary<Op, uint64_t>;
      break;
    default:
      return NoSuchType(i);
  }
  return NeedOperands(i, 3);
}

template <class Op>
absl::Status PrepareNot(Instruction& i) {
  FindTypes(i);
  switch (i.type) {
    case Type::kPred:
      i.execute = [](Warp& w, const Instruction& i) {
        w.StorePredicate(i.operands[0], ~w.SourcePredicate(i.operands[1]));
      };
      break;
    case Type::kB16:
      i.execute = Unary<Op, uint16_t>;
      break;
    case Type::kB32:
      i.execute = Unary<Op, uint32_t>;
      break;
    case Type::kB64:
      i.execute = Unary<Op, uint64_t>;
      break;
    default:
      return NoSuchType(i);
  }
  return NeedOperands(i, 2);
}

// lop3.b32 d, a, b, c, table;  lop3.or.b32 d|p, a, b, c, table, q.
void Lop3(Warp& w, const Instruction& i) {
  const size_t first = i.operands[1].is_pair_second ? 2 : 1;
  uint32_t sa[kWarpSize], sb[kWarpSize], sc[kWarpSize], r[kWarpSize];
  const uint32_t* a = w.Source(i.operands[first], sa);
  const uint32_t* b = w.Source(i.operands[first + 1], sb);
  const uint32_t* c = w.Source(i.operands[first + 2], sc);
  const uint32_t table = static_cast<uint32_t>(w.SourceUniform(i.operands[first + 3], "the table of lop3"));
  for (int l = 0; l < kWarpSize; ++l) {
    uint32_t d = 0;
    for (int k = 0; k < 8; ++k) {
      if ((table >> k & 1) == 0) continue;
      d |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]);
    }
    r[l] = d;
  }
  if (first == 2) {
    LaneMask nonzero = 0;
    for (int l = 0; l < kWarpSize; ++l) nonzero |= LaneMask{r[l] != 0} << l;
    const LaneMask q = w.SourcePredicate(i.operands[first + 4]);
    w.StorePredicate(i.operands[1], i.Has("and") ? nonzero & q : nonzero | q);
  }
  w.Store(i.operands[0], r);
}

// Shifts clamp their amount, an unsigned 32-bit operand, at the width.
template <class T>
void Shift(Warp& w, const Instruction& i) {
  T sa[kWarpSize], r[kWarpSize];
  uint32_t sb[kWarpSize];
  const T* a = w.Source(i.operands[1], sa);
  const uint32_t* b = w.Source(i.operands[2], sb);
  constexpr uint32_t kBits = sizeof(T) * 8;
  if (i.opcode == "shl") {
    for (int l = 0; l < kWarpSize; ++l)
      r[l] = b[l] >= kBits ? T{0} : static_cast<T>(std::make_unsigned_t<T>(a[l]) << b[l]);
  } else {
    for (int l = 0; l < kWarpSize; ++l) {
      r[l] = b[l] >= kBits ? static_cast<T>(a[l] < 0 ? -1 : 0) : static_cast<T>(a[l] >> b[l]);
    }
  }
  w.Store(i.operands[0], r);
}

absl::Status PrepareShift(Instruction& i) {
  FindTypes(i);
  switch (i.type) {
    case Type::kB16:
    case Type::kU16:
      i.execute = Shift<uint16_t>;
      break;
    case Type::kB32:
    case Type::kU32:
      i.execute = Shift<uint32_t>;
      break;
    case Type::kB64:
    case Type::kU64:
      i.execute = Shift<uint64_t>;
      break;
    case Type::kS16:
      i.execute = Shift<int16_t>;
      break;
    case Type::kS32:
      i.execute = Shift<int32_t>;
      break;
    case Type::kS64:
      i.execute = Shift<int64_t>;
      break;
    default:
      break;
  }
  return i.execute == nullptr ? NoSuchType(i) : NeedOperands(i, 3);
}

// shf.{l,r}.{clamp,wrap}.b32 d, a, b, c: the 64 bits b:a, shifted by c.
void FunnelShift(Warp& w, const Instruction& i) {
  uint32_t sa[kWarpSize], sb[kWarpSize], sc[kWarpSize], r[kWarpSize];
  const uint32_t* a = w.Source(i.operands[1], sa);
  const uint32_t* b = w.Source(i.operands[2], sb);
  const uint32_t* c = w.Source(i.operands[3], sc);
  const bool left = i.Has("l"), wrap = i.Has("wrap");
  for (int l = 0; l < kWarpSize; ++l) {
    const uint32_t n = wrap ? c[l] & 31 : std::min(c[l], 32u);
    const uint64_t both = uint64_t{b[l]} << 32 | a[l];
    r[l] = left ? static_cast<uint32_t>((n == 32 ? both << 32 : both << n) >> 32)
                : static_cast<uint32_t>(both >> n);
  }
  w.Store(i.operands[0], r);
}

// prmt.b32{.mode} d, a, b, c.
void Permute(Warp& w, const Instruction& i) {
  uint32_t sa[kWarpSize], sb[kWarpSize], sc[kWarpSize], r[kWarpSize];
  const uint32_t* a = w.Source(i.operands[1], sa);
  const uint32_t* b = w.Source(i.operands[2], sb);
  const uint32_t* c = w.Source(i.operands[3], sc);
  const std::string mode = i.modifiers.size() > 1 ? i.modifiers[1] : "";
  for (int l = 0; l < kWarpSize; ++l) {
    const uint64_t both = uint64_t{b[l]} << 32 | a[l];
    uint32_t selector = c[l];
    if (!mode.empty()) {
      const uint32_t n = c[l] & 3;
      const uint32_t kF4e[] = {0x3210, 0x4321, 0x5432, 0x6543}, kB4e[] = {0x5670, 0x6701, 0x7012, 0x0123};
      const uint32_t kEcl[] = {0x3210, 0x3211, 0x3222, 0x3333}, kEcr[] = {0x0000, 0x1110, 0x2210, 0x3210};
      selector = mode == "f4e"   ? kF4e[n]
                 : mode == "b4e" ? kB4e[n]
                 : mode == "rc8" ? n * 0x1111
                 : mode == "ecl" ? kEcl[n]
                 : mode == "ecr" ? kEcr[n]
                 : (n & 1)       ? 0x3232
                                 : 0x1010;  // rc16
    }
    uint32_t d = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t nibble = selector >> 4 * k & 0xF;
      uint32_t byte = both >> 8 * (nibble & 7) & 0xFF;
      if (nibble & 8) byte = byte & 0x80 ? 0xFF : 0;
      d |= byte << 8 * k;
    }
    r[l] = d;
  }
  w.Store(i.operands[0], r);
}

template <class T>
void BitFieldExtract(Warp& w, const Instruction& i) {
  using U = std::make_unsigned_t<T>;
  constexpr uint32_t kBits = sizeof(T) * 8;
  T sa[kWarpSize], r[kWarpSize];
  uint32_t sb[kWarpSize], sc[kWarpSize];
  const T* a = w.Source(i.operands[1], sa);
  const uint32_t* b = w.Source(i.operands[2], sb);
  const uint32_t* c = w.Source(i.operands[3], sc);
  for (int l = 0; l < kWarpSize; ++l) {
    const uint32_t at = b[l] & 0xFF, length = c[l] & 0xFF;
    const U field = at >= kBits ? 0 : U(a[l]) >> at;
    const U mask = length >= kBits ? ~U{0} : (U{1} << length) - 1;
    // Bits past the operand's end, and above the field, are copies of the sign.
    const uint32_t top = std::min<uint32_t>(at + length - 1, kBits - 1);
    const bool sign = std::is_signed_v<T> && length != 0 && (U(a[l]) >> top & 1);
    const U have = at >= kBits ? 0 : ~U{0} >> at;
    r[l] = static_cast<T>((field & mask & have) | (sign ? ~(mask & have) : 0));
  }
  w.Store(i.operands[0], r);
}

template <class T>
void BitFieldInsert(Warp& w, const Instruction& i) {
  constexpr uint32_t kBits = sizeof(T) * 8;
  T sa[kWarpSize], sb[kWarpSize], r[kWarpSize];
  uint32_t sc[kWarpSize], sd[kWarpSize];
  const T* a = w.Source(i.operands[1], sa);
  const T* b = w.Source(i.operands[2], sb);
  const uint32_t* c = w.Source(i.operands[3], sc);
  const uint32_t* d = w.Source(i.operands[4], sd);
  for (int l = 0; l < kWarpSize; ++l) {
    const uint32_t at = c[l] & 0xFF, length = d[l] & 0xFF;
    T mask = length >= kBits ? ~T{0} : (T{1} << length) - 1;
    mask = at >= kBits ? 0 : mask << at;
    r[l] = (b[l] & ~mask) | (at >= kBits ? T{0} : (a[l] << at) & mask);
  }
  w.Store(i.operands[0], r);
}

absl::Status PrepareBitField(Instruction& i) {
  FindTypes(i);
  if (i.opcode == "bfi") {
    i.execute = Bits(i.type) == 64 ? BitFieldInsert<uint64_t> : BitFieldInsert<uint32_t>;
    return NeedOperands(i, 5);
  }
  i.execute = i.type == Type::kU32   ? BitFieldExtract<uint32_t>
              : i.type == Type::kS32 ? BitFieldExtract<int32_t>
              : i.type == Type::kU64 ? BitFieldExtract<uint64_t>
              : i.type == Type::kS64 ? BitFieldExtract<int64_t>
                                     : nullptr;
  return i.execute == nullptr ? NoSuchType(i) : NeedOperands(i, 4);
}

// popc, clz, bfind: a 32-bit count of a 32- or 64-bit operand.
template <class F>
void Count(Warp& w, const Instruction& i, F f) {
  uint64_t sa[kWarpSize];
  uint32_t r[kWarpSize];
  const uint64_t* a = w.Source(i.operands[1], sa);
  for (int l = 0; l < kWarpSize; ++l) r[l] = f(a[l]);
  w.Store(i.operands[0], r);
}
void Popc(Warp& w, const Instruction& i) {
  Count(w, i, [](uint64_t a) { return static_cast<uint32_t>(std::popcount(a)); });
}
void Clz(Warp& w, const Instruction& i) {
  const int bits = Bits(i.type);
  Count(w, i, [bits](uint64_t a) { return static_cast<uint32_t>(std::countl_zero(a) - (64 - bits)); });
}
void Bfind(Warp& w, const Instruction& i) {
  const int bits = Bits(i.type);
  const bool sign = IsSigned(i.type), shift = i.Has("shiftamt");
  Count(w, i, [=](uint64_t a) {
    const uint64_t all = bits == 64 ? ~uint64_t{0} : 0xFFFFFFFF;
    if (sign && (a >> (bits - 1) & 1)) a = ~a & all;
    if (a == 0) return ~0u;
    const uint32_t at = 63 - std::countl_zero(a);
    return shift ? bits - 1 - at : at;
  });
}
template <ExecuteFn kExecute>
absl::Status PrepareCount(Instruction& i) {
  FindTypes(i);
  if (Bits(i.type) != 32 && Bits(i.type) != 64) return NoSuchType(i);
  i.execute = kExecute;
  return NeedOperands(i, 2);
}

// fns.b32 d, mask, base, offset: the position of the offset-th set bit, from base.
uint32_t NthSet(uint32_t mask, uint32_t base, int32_t offset) {
  base &= 31;
  if (offset == 0) return mask >> base & 1 ? base : ~0u;
  const int step = offset > 0 ? 1 : -1;
  int count = std::abs(offset);
  for (int at = static_cast<int>(base); at >= 0 && at < 32; at += step) {
    if ((mask >> at & 1) && --count == 0) return at;
  }
  return ~0u;
}
struct Fns {
  static uint32_t Do(uint32_t a, uint32_t b, uint32_t c) { return NthSet(a, b, static_cast<int32_t>(c)); }
};
struct BmskClamp {
  static uint32_t Do(uint32_t a, uint32_t b) {
    if (a >= 32 || b == 0) return 0;
    const uint32_t length = std::min(b, 32 - a);
    return (length == 32 ? ~0u : (1u << length) - 1) << a;
  }
};
struct BmskWrap {
  static uint32_t Do(uint32_t a, uint32_t b) {
    return ((b & 31) == 0 ? 0 : (1u << (b & 31)) - 1) << (a & 31);
  }
};
void SignZeroExtend(Warp& w, const Instruction& i) {
  uint32_t sa[kWarpSize], sb[kWarpSize], r[kWarpSize];
  const uint32_t* a = w.Source(i.operands[1], sa);
  const uint32_t* b = w.Source(i.operands[2], sb);
  for (int l = 0; l < kWarpSize; ++l) {
    const uint32_t n = i.Has("wrap") ? b[l] & 31 : std::min(b[l], 32u);
    const uint32_t mask = n == 32 ? ~0u : (1u << n) - 1;
    r[l] = a[l] & mask;
    if (i.type == Type::kS32 && n != 0 && (a[l] >> (n - 1) & 1)) r[l] |= ~mask;
  }
  w.Store(i.operands[0], r);
}

template <ExecuteFn kExecute, size_t kOperands>
absl::Status PrepareAs(Instruction& i) {
  FindTypes(i);
  i.execute = kExecute;
  return NeedOperands(i, kOperands);
}

}  // namespace

void RegisterBits(Registry& registry) {
  registry.Add("and", PrepareLogic<And>);
  registry.Add("or", PrepareLogic<Or>);
  registry.Add("xor", PrepareLogic<Xor>);
  registry.Add("not", PrepareNot<Not>);
  registry.Add("cnot", PrepareNot<Cnot>);
  registry.Add("shl", PrepareShift);
  registry.Add("shr", PrepareShift);
  registry.Add("shf", PrepareAs<FunnelShift, 4>);
  registry.Add("prmt", PrepareAs<Permute, 4>);
  registry.Add("bfe", PrepareBitField);
  registry.Add("bfi", PrepareBitField);
  registry.Add("popc", PrepareCount<Popc>);
  registry.Add("clz", PrepareCount<Clz>);
  registry.Add("bfind", PrepareCount<Bfind>);
  registry.Add("fns", PrepareAs<Ternary<Fns, uint32_t>, 4>);
  registry.Add("szext", PrepareAs<SignZeroExtend, 3>);
  registry.Add("bmsk", [](Instruction& i) {
    i.execute = i.Has("wrap") ? Binary<BmskWrap, uint32_t> : Binary<BmskClamp, uint32_t>;
    return NeedOperands(i, 3);
  });
  registry.Add("brev", [](Instruction& i) {
    FindTypes(i);
    i.execute = Bits(i.type) == 64 ? Unary<Brev, uint64_t> : Unary<Brev, uint32_t>;
    return NeedOperands(i, 2);
  });
  registry.Add("lop3", [](Instruction& i) {
    i.execute = Lop3;
    const bool predicate = i.operands.size() > 1 && i.operands[1].is_pair_second;
    return NeedOperands(i, predicate ? 7 : 5);
  });
}

}  // namespace tessera::ptx
