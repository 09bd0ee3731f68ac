// Comparison and selection (PTX ISA, "Comparison and Selection Instructions", "testp").
#include <cmath>
#include <cstdint>

#include "tests/ptx/isa/rounding.h"
#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/tensor/formats.h"

namespace tessera::ptx {
namespace {

// With NaN, the ordered comparisons are false and those that end in u are true.
enum class Relation { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };
enum class Combine { kNone, kAnd, kOr, kXor };

struct ComparePayload : Payload {
  Relation relation;
  Combine combine = Combine::kNone;
  bool ftz = false;
};

bool ParseRelation(const Instruction& i, Relation* relation) {
  static const struct {
    const char* name;
    Relation relation;
  } kRelations[] = {{"eq", Relation::kEq},   {"ne", Relation::kNe},   {"lt", Relation::kLt},
                    {"le", Relation::kLe},   {"gt", Relation::kGt},   {"ge", Relation::kGe},
                    {"lo", Relation::kLt},   {"ls", Relation::kLe},   {"hi", Relation::kGt},
                    {"hs", Relation::kGe},   {"equ", Relation::kEqu}, {"neu", Relation::kNeu},
                    {"ltu", Relation::kLtu}, {"leu", Relation::kLeu}, {"gtu", Relation::kGtu},
                    {"geu", Relation::kGeu}, {"num", Relation::kNum}, {"nan", Relation::kNan}};
  if (i.modifiers.empty()) return false;
  for (const auto& r : kRelations) {
    if (i.modifiers[0] != r.name) continue;
    *relation = r.relation;
    return true;
  }
  return false;
}

template <class T>
bool Holds(Relation relation, T a, T b) {
  bool unordered = false;
  if constexpr (std::is_floating_point_v<T>) unordered = a != a || b != b;
  switch (relation) {
    case Relation::kEq:
      return a == b;
    case Relation::kNe:
      return a != b && !unordered;
    case Relation::kLt:
      return a < b;
    case Relation::kLe:
      return a <= b;
    case Relation::kGt:
      return a > b;
    case Relation::kGe:
      return a >= b;
    case Relation::kEqu:
      return a == b || unordered;
    case Relation::kNeu:
      return a != b;
    case Relation::kLtu:
      return a < b || unordered;
    case Relation::kLeu:
      return a <= b || unordered;
    case Relation::kGtu:
      return a > b || unordered;
    case Relation::kGeu:
      return a >= b || unordered;
    case Relation::kNum:
      return !unordered;
    case Relation::kNan:
      return unordered;
  }
  return false;
}

template <class T>
LaneMask CompareLanes(Relation relation, const T* a, const T* b) {
  LaneMask mask = 0;
  const auto loop = [&](auto f) {
    for (int l = 0; l < kWarpSize; ++l) mask |= LaneMask{f(a[l], b[l])} << l;
  };
  switch (relation) {
    case Relation::kEq:
      loop([](T x, T y) { return x == y; });
      break;
    case Relation::kLt:
      loop([](T x, T y) { return x < y; });
      break;
    case Relation::kLe:
      loop([](T x, T y) { return x <= y; });
      break;
    case Relation::kGt:
      loop([](T x, T y) { return x > y; });
      break;
    case Relation::kGe:
      loop([](T x, T y) { return x >= y; });
      break;
    default:
      loop([relation](T x, T y) { return Holds(relation, x, y); });
  }
  return mask;
}

template <class T>
LaneMask Compare(Warp& w, const Instruction& i, const Operand& oa, const Operand& ob) {
  const auto& payload = i.As<ComparePayload>();
  T sa[kWarpSize], sb[kWarpSize];
  const T* a = w.Source(oa, sa);
  const T* b = w.Source(ob, sb);
  if constexpr (std::is_same_v<T, float>) {
    if (payload.ftz) {
      T fa[kWarpSize], fb[kWarpSize];
      for (int l = 0; l < kWarpSize; ++l) {
        fa[l] = FlushSubnormal(a[l]);
        fb[l] = FlushSubnormal(b[l]);
      }
      return CompareLanes(payload.relation, fa, fb);
    }
  }
  return CompareLanes(payload.relation, a, b);
}

template <int kElement>
LaneMask CompareHalf(Warp& w, const Instruction& i, const Operand& oa, const Operand& ob) {
  const bool bf16 = i.type2 == Type::kBf16 || i.type2 == Type::kBf16x2;
  uint32_t sa[kWarpSize], sb[kWarpSize];
  const uint32_t* a = w.Source(oa, sa);
  const uint32_t* b = w.Source(ob, sb);
  LaneMask mask = 0;
  for (int l = 0; l < kWarpSize; ++l) {
    const ElementType type = bf16 ? ElementType::kBF16 : ElementType::kF16;
    const double x = Decode(type, a[l] >> 16 * kElement & 0xFFFF),
                 y = Decode(type, b[l] >> 16 * kElement & 0xFFFF);
    mask |= LaneMask{Holds(i.As<ComparePayload>().relation, x, y)} << l;
  }
  return mask;
}

LaneMask CompareAs(Warp& w, const Instruction& i, const Operand& a, const Operand& b) {
  // i.type2 is the type compared (i.type the result's, of set).
  switch (i.type2) {
    case Type::kB16:
    case Type::kU16:
      return Compare<uint16_t>(w, i, a, b);
    case Type::kB32:
    case Type::kU32:
      return Compare<uint32_t>(w, i, a, b);
    case Type::kB64:
    case Type::kU64:
      return Compare<uint64_t>(w, i, a, b);
    case Type::kS16:
      return Compare<int16_t>(w, i, a, b);
    case Type::kS32:
      return Compare<int32_t>(w, i, a, b);
    case Type::kS64:
      return Compare<int64_t>(w, i, a, b);
    case Type::kF32:
      return Compare<float>(w, i, a, b);
    case Type::kF64:
      return Compare<double>(w, i, a, b);
    default:
      return CompareHalf<0>(w, i, a, b);
  }
}

LaneMask Combined(Warp& w, const Instruction& i, LaneMask result, size_t third) {
  const Combine combine = i.As<ComparePayload>().combine;
  if (combine == Combine::kNone) return result;
  const LaneMask c = w.SourcePredicate(i.operands[third]);
  return combine == Combine::kAnd ? result & c : combine == Combine::kOr ? result | c : result ^ c;
}

// setp.lt{.and}.type p{|q}, a, b{, c}
template <LaneMask (*kCompare)(Warp&, const Instruction&, const Operand&, const Operand&)>
void SetPredicate(Warp& w, const Instruction& i) {
  const size_t first = i.operands[1].is_pair_second ? 2 : 1;
  const LaneMask result = kCompare(w, i, i.operands[first], i.operands[first + 1]);
  const LaneMask p = Combined(w, i, result, first + 2);
  const LaneMask q = first == 2 ? Combined(w, i, ~result, first + 2) : 0;
  w.StorePredicate(i.operands[0], p);
  if (first == 2) w.StorePredicate(i.operands[1], q);
}

// Pairs of halves: p for the low, q for the high half.
void SetPredicatePair(Warp& w, const Instruction& i) {
  const LaneMask low = CompareHalf<0>(w, i, i.operands[2], i.operands[3]);
  const LaneMask high = CompareHalf<1>(w, i, i.operands[2], i.operands[3]);
  const LaneMask p = Combined(w, i, low, 4), q = Combined(w, i, high, 4);
  w.StorePredicate(i.operands[0], p);
  w.StorePredicate(i.operands[1], q);
}

// set.lt.dtype.stype d, a, b: all ones, or 1.0 for a floating d.
void Set(Warp& w, const Instruction& i) {
  const bool pair = i.type2 == Type::kF16x2 || i.type2 == Type::kBf16x2;
  const LaneMask low = Combined(w, i, CompareAs(w, i, i.operands[1], i.operands[2]), 3);
  const LaneMask high = pair ? Combined(w, i, CompareHalf<1>(w, i, i.operands[1], i.operands[2]), 3) : 0;
  uint32_t r[kWarpSize];
  const bool half = Bits(i.type) == 16 || pair;
  const uint32_t one = i.type == Type::kF32                               ? 0x3F800000
                       : i.type == Type::kF16 || i.type == Type::kF16x2   ? 0x3C00
                       : i.type == Type::kBf16 || i.type == Type::kBf16x2 ? 0x3F80
                       : half                                             ? 0xFFFF
                                                                          : ~0u;
  for (int l = 0; l < kWarpSize; ++l)
    r[l] = (InMask(low, l) ? one : 0) | (pair && InMask(high, l) ? one << 16 : 0);
  w.Store(i.operands[0], r);
}

absl::Status PrepareCompare(Instruction& i) {
  auto payload = std::make_unique<ComparePayload>();
  if (!ParseRelation(i, &payload->relation))
    return absl::InvalidArgumentError(Cat(i.opcode, " without a comparison"));
  payload->combine = i.Has("and")   ? Combine::kAnd
                     : i.Has("or")  ? Combine::kOr
                     : i.Has("xor") ? Combine::kXor
                                    : Combine::kNone;
  payload->ftz = i.Has("ftz");
  const size_t combined = payload->combine == Combine::kNone ? 0 : 1;
  i.payload = std::move(payload);
  FindTypes(i);
  if (i.opcode == "set") {
    std::swap(i.type, i.type2);  // written result first
    i.execute = Set;
    return NeedOperands(i, 3 + combined);
  }
  i.type2 = i.type;
  const bool second = i.operands.size() > 1 && i.operands[1].is_pair_second;
  switch (i.type) {
    case Type::kB16:
    case Type::kU16:
      i.execute = SetPredicate<Compare<uint16_t>>;
      break;
    case Type::kB32:
    case Type::kU32:
      i.execute = SetPredicate<Compare<uint32_t>>;
      break;
    case Type::kB64:
    case Type::kU64:
      i.execute = SetPredicate<Compare<uint64_t>>;
      break;
    case Type::kS16:
      i.execute = SetPredicate<Compare<int16_t>>;
      break;
    case Type::kS32:
      i.execute = SetPredicate<Compare<int32_t>>;
      break;
    case Type::kS64:
      i.execute = SetPredicate<Compare<int64_t>>;
      break;
    case Type::kF32:
      i.execute = SetPredicate<Compare<float>>;
      break;
    case Type::kF64:
      i.execute = SetPredicate<Compare<double>>;
      break;
    case Type::kF16:
    case Type::kBf16:
      i.execute = SetPredicate<CompareHalf<0>>;
      break;
    case Type::kF16x2:
    case Type::kBf16x2:
      i.execute = SetPredicatePair;
      if (!second) return absl::InvalidArgumentError("setp of a pair needs two predicates");
      break;
    default:
      return NoSuchType(i);
  }
  return NeedOperands(i, (second ? 4 : 3) + combined);
}

// selp d, a, b, p. What is not defined is copied as such: compilers select between values of which one may be nothing.
template <class T>
void Select(Warp& w, const Instruction& i) {
  const LaneMask p = w.SourcePredicate(i.operands[3]);
  const LaneMask active = w.active();
  T scratch[2][kWarpSize], r[kWarpSize];
  const T* s[2];
  LaneMask defined[2] = {kAllLanes, kAllLanes};
  Frame::Halves halves[2] = {{kAllLanes, kAllLanes}, {kAllLanes, kAllLanes}};
  for (int k = 0; k < 2; ++k) {
    const Operand& operand = i.operands[k + 1];
    const LaneMask chosen = active & (k == 0 ? p : ~p);
    if (operand.IsRegister() && operand.width == sizeof(T)) {
      w.CheckNotPoisoned(operand, chosen);
      defined[k] = w.Defined(operand);
      halves[k] = w.DefinedHalves(operand);
      s[k] = w.frame().template Lanes<T>(operand);
    } else if (operand.IsRegister() && chosen == 0) {
      s[k] = scratch[k];
    } else {
      s[k] = w.Source(operand, scratch[k]);
    }
  }
  for (int l = 0; l < kWarpSize; ++l) r[l] = InMask(p, l) ? s[0][l] : s[1][l];
  w.Store(i.operands[0], r);
  w.CopyUndefined(i.operands[0], (p & defined[0]) | (~p & defined[1]),
                  {(p & halves[0].low) | (~p & halves[1].low), (p & halves[0].high) | (~p & halves[1].high)});
}

absl::Status PrepareSelect(Instruction& i) {
  FindTypes(i);
  switch (Bits(i.type)) {
    case 16:
      i.execute = Select<uint16_t>;
      break;
    case 32:
      i.execute = Select<uint32_t>;
      break;
    case 64:
      i.execute = Select<uint64_t>;
      break;
    default:
      return NoSuchType(i);
  }
  return NeedOperands(i, 4);
}

// slct.type.{s32,f32} d, a, b, c: a if c >= 0.
void SelectBySign(Warp& w, const Instruction& i) {
  uint64_t sa[kWarpSize], sb[kWarpSize], r[kWarpSize];
  uint32_t sc[kWarpSize];
  const uint64_t* a = w.Source(i.operands[1], sa);
  const uint64_t* b = w.Source(i.operands[2], sb);
  const uint32_t* c = w.Source(i.operands[3], sc);
  for (int l = 0; l < kWarpSize; ++l) {
    const bool first =
        i.type == Type::kF32 ? std::bit_cast<float>(c[l]) >= 0 : static_cast<int32_t>(c[l]) >= 0;
    r[l] = first ? a[l] : b[l];
  }
  w.Store(i.operands[0], r);
}

// testp.op.type p, a
template <class T>
void TestProperty(Warp& w, const Instruction& i) {
  T sa[kWarpSize];
  const T* a = w.Source(i.operands[1], sa);
  const std::string& op = i.modifiers[0];
  LaneMask mask = 0;
  for (int l = 0; l < kWarpSize; ++l) {
    const int c = std::fpclassify(a[l]);
    const bool holds = op == "finite"       ? c != FP_NAN && c != FP_INFINITE
                       : op == "infinite"   ? c == FP_INFINITE
                       : op == "number"     ? c != FP_NAN
                       : op == "notanumber" ? c == FP_NAN
                       : op == "normal"     ? c == FP_NORMAL
                                            : c == FP_SUBNORMAL;
    mask |= LaneMask{holds} << l;
  }
  w.StorePredicate(i.operands[0], mask);
}

}  // namespace

void RegisterCompare(Registry& registry) {
  registry.Add("setp", PrepareCompare);
  registry.Add("set", PrepareCompare);
  registry.Add("selp", PrepareSelect);
  registry.Add("slct", [](Instruction& i) {
    FindTypes(i);
    i.execute = SelectBySign;
    return NeedOperands(i, 4);
  });
  registry.Add("testp", [](Instruction& i) {
    FindTypes(i);
    i.execute = i.type == Type::kF64 ? TestProperty<double> : TestProperty<float>;
    if (i.modifiers.empty()) return absl::InvalidArgumentError("testp without a property");
    return NeedOperands(i, 2);
  });
}

}  // namespace tessera::ptx
