// mov, cvta, isspacep (PTX ISA, "Data Movement and Conversion Instructions").
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/launch.h"

namespace tessera::ptx {
namespace {

// A register to a register of the same width. What is not defined is copied as such, as compilers move values that only
// some paths have set.
template <class T>
void MoveRegister(Warp& w, const Instruction& i) {
  const Operand& from = i.operands[1];
  w.CheckNotPoisoned(from, w.active());
  const LaneMask whole = w.Defined(from);
  const Frame::Halves halves = w.DefinedHalves(from);
  w.Store(i.operands[0], w.frame().Lanes<T>(from));
  w.CopyUndefined(i.operands[0], whole, halves);
}

template <class T>
void MoveValue(Warp& w, const Instruction& i) {
  T scratch[kWarpSize];
  w.Store(i.operands[0], w.Source(i.operands[1], scratch));
}

void MovePredicate(Warp& w, const Instruction& i) {
  w.StorePredicate(i.operands[0], w.SourcePredicate(i.operands[1]));
}

// The lanes of a source of mov that are defined, and its values.
template <class T>
const T* SourceAsIs(Warp& w, const Operand& operand, T (&scratch)[kWarpSize], LaneMask* defined) {
  *defined = kAllLanes;
  if (!operand.IsRegister() || operand.width != sizeof(T)) return w.Source(operand, scratch);
  w.CheckNotPoisoned(operand, w.active());
  *defined = w.Defined(operand);
  return w.frame().template Lanes<T>(operand);
}

// mov.b64 d, {a, b}: elements from the lowest bits up.
void Pack(Warp& w, const Instruction& i) {
  const auto& elements = i.operands[1].elements;
  const uint32_t each = Bits(i.type) / static_cast<uint32_t>(elements.size());
  unsigned __int128 r[kWarpSize] = {};
  Frame::Halves halves{kAllLanes, kAllLanes};
  for (size_t k = 0; k < elements.size(); ++k) {
    LaneMask defined;
    const auto put = [&](auto* s) {
      const uint64_t mask = each >= 64 ? ~uint64_t{0} : (uint64_t{1} << each) - 1;
      for (int l = 0; l < kWarpSize; ++l) r[l] |= static_cast<unsigned __int128>(s[l] & mask) << (each * k);
    };
    uint16_t s16[kWarpSize];
    uint32_t s32[kWarpSize];
    uint64_t s64[kWarpSize];
    if (each <= 16)
      put(SourceAsIs(w, elements[k], s16, &defined));
    else if (each == 32)
      put(SourceAsIs(w, elements[k], s32, &defined));
    else
      put(SourceAsIs(w, elements[k], s64, &defined));
    (2 * k < elements.size() ? halves.low : halves.high) &= defined;
  }
  w.Store(i.operands[0], r);
  w.CopyUndefined(i.operands[0], halves.low & halves.high, halves);
}

void Unpack(Warp& w, const Instruction& i) {
  const auto& elements = i.operands[0].elements;
  const Operand& from = i.operands[1];
  const uint32_t each = Bits(i.type) / static_cast<uint32_t>(elements.size());
  unsigned __int128 s[kWarpSize], r[kWarpSize];
  Frame::Halves halves{kAllLanes, kAllLanes};
  if (from.IsRegister() && from.width * 8 == Bits(i.type)) {
    w.CheckNotPoisoned(from, w.active());
    halves = w.DefinedHalves(from);
    for (int l = 0; l < kWarpSize; ++l) {
      s[l] = 0;
      std::memcpy(&s[l], w.frame().Lanes<std::byte>(from) + l * from.width, from.width);
    }
  } else {
    w.Source(from, s);
  }
  for (size_t k = 0; k < elements.size(); ++k) {
    const unsigned __int128 mask = (static_cast<unsigned __int128>(1) << each) - 1;
    for (int l = 0; l < kWarpSize; ++l) r[l] = s[l] >> (each * k) & mask;
    w.Store(elements[k], r);
    w.CopyUndefined(elements[k], 2 * k < elements.size() ? halves.low : halves.high, {});
  }
}

// Registers of another width than the type (a .b16 type with a 32-bit register) go through a 64-bit value.
absl::Status PrepareMove(Instruction& i) {
  FindTypes(i);
  if (absl::Status s = NeedOperands(i, 2); !s.ok()) return s;
  const Operand& to = i.operands[0];
  const Operand& from = i.operands[1];
  if (i.type == Type::kPred) {
    i.execute = MovePredicate;
  } else if (to.kind == Operand::Kind::kVector || from.kind == Operand::Kind::kVector) {
    const auto& vector = to.kind == Operand::Kind::kVector ? to : from;
    if (vector.elements.empty() || Bits(i.type) % vector.elements.size() != 0) {
      return absl::InvalidArgumentError("the vector of mov does not divide its type");
    }
    i.execute = to.kind == Operand::Kind::kVector ? Unpack : Pack;
  } else if (from.IsRegister() && to.IsRegister() && from.width == to.width && from.width != 0) {
    i.execute = from.width == 2   ? MoveRegister<uint16_t>
                : from.width == 4 ? MoveRegister<uint32_t>
                : from.width == 8 ? MoveRegister<uint64_t>
                                  : MoveRegister<unsigned __int128>;
  } else if (Bits(i.type) == 128) {
    i.execute = MoveValue<unsigned __int128>;
  } else {
    i.execute = Bits(i.type) == 16   ? MoveValue<uint16_t>
                : Bits(i.type) == 32 ? MoveValue<uint32_t>
                                     : MoveValue<uint64_t>;
  }
  return absl::OkStatus();
}

// cvta.space d, a: to generic; cvta.to.space: from generic. Instruction::flags: to the space.
template <class T>
void ConvertAddress(Warp& w, const Instruction& i) {
  T scratch[kWarpSize], r[kWarpSize];
  const T* a = w.Source(i.operands[1], scratch);
  const bool to_space = i.Has("to");
  const bool shared = i.Has("shared") || i.Has("shared::cta") || i.Has("shared::cluster"),
             local = i.Has("local");
  const bool param = i.Has("param");
  ForLanes(w.active(), [&](int l) {
    if (!to_space) {
      // A parameter of a call is in local memory; the kernel's own are at host addresses already.
      const bool in_local = local || (param && a[l] < LocalMemory::kLimit);
      r[l] = static_cast<T>(shared ? kSharedWindow | a[l] : in_local ? kLocalWindow | a[l] : uint64_t{a[l]});
      return;
    }
    uint64_t address;
    const Space space = Warp::Classify(a[l], &address);
    const bool fits = shared  ? space == Space::kSharedCluster
                      : local ? space == Space::kLocal
                              : space == Space::kGlobal || param;
    // Compilers convert null pointers too, and only use the others.
    if (!fits && a[l] != 0) {
      RaiseAt(l, Rule::kWrongSpace, Cat(i.text, ": ", Hex(a[l]), " is a ", SpaceName(space), " address"));
    }
    r[l] = static_cast<T>(address);
  });
  w.Store(i.operands[0], r);
}

// isspacep.space p, a
void IsSpace(Warp& w, const Instruction& i) {
  uint64_t scratch[kWarpSize];
  const uint64_t* a = w.Source(i.operands[1], scratch);
  const std::string& space = i.modifiers[0];
  const GridContext& grid = w.cta().grid();
  LaneMask mask = 0;
  for (int l = 0; l < kWarpSize; ++l) {
    uint64_t address;
    const Space found = Warp::Classify(a[l], &address);
    const bool own = found == Space::kSharedCluster && address >> kSharedWindowBits == w.cta().rank();
    const bool param = a[l] - reinterpret_cast<uint64_t>(grid.params) < grid.param_bytes;
    const bool holds = space == "shared::cluster"                    ? found == Space::kSharedCluster
                       : space == "shared" || space == "shared::cta" ? own
                       : space == "local"                            ? found == Space::kLocal
                       : space.starts_with("param")                  ? param
                                                                     : found == Space::kGlobal && !param;
    mask |= LaneMask{holds} << l;
  }
  w.StorePredicate(i.operands[0], mask);
}

}  // namespace

void RegisterMove(Registry& registry) {
  registry.Add("mov", PrepareMove);
  registry.Add("cvta", [](Instruction& i) {
    FindTypes(i);
    i.execute = Bits(i.type) == 64 ? ConvertAddress<uint64_t> : ConvertAddress<uint32_t>;
    return NeedOperands(i, 2);
  });
  registry.Add("isspacep", [](Instruction& i) {
    i.execute = IsSpace;
    if (i.modifiers.empty()) return absl::InvalidArgumentError("isspacep without a space");
    return NeedOperands(i, 2);
  });
}

}  // namespace tessera::ptx
