// What the scalar instruction families share: lane loops over one, two or three sources, and the choice of a handler by
// type.
#ifndef TESSERA_TESTS_PTX_ISA_SCALAR_H_
#define TESSERA_TESTS_PTX_ISA_SCALAR_H_

#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "tests/ptx/machine/registry.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {

// Parts of RegisterScalarIsa, a file each.
void RegisterInteger(Registry& registry);
void RegisterBits(Registry& registry);
void RegisterFloat(Registry& registry);
void RegisterConvert(Registry& registry);
void RegisterCompare(Registry& registry);
void RegisterMove(Registry& registry);
void RegisterControl(Registry& registry);
void RegisterRegisterPool(Registry& registry);
void RegisterCall(Registry& registry);
void RegisterMemory(Registry& registry);
void RegisterAtomics(Registry& registry);
void RegisterWarpWide(Registry& registry);
void RegisterCtaBarrier(Registry& registry);
void RegisterMbarrier(Registry& registry);
void RegisterFence(Registry& registry);
void RegisterCluster(Registry& registry);
void RegisterCopyAsync(Registry& registry);

// The last (type), and the last but one (type2), of the modifiers that are types.
void FindTypes(Instruction& i);
// Unimplemented: "add does not take the type b8".
absl::Status NoSuchType(const Instruction& i);
absl::Status NeedOperands(const Instruction& i, size_t count);

// A source as an operand of so many bits, zero-extended. Unlike Source<uint64_t>, reads a float immediate of a 32-bit
// instruction as 32 bits.
const uint64_t* SourceBits(Warp& w, const Operand& operand, int bits, uint64_t (&scratch)[kWarpSize]);

// Handlers that apply a function object to each lane:  struct Add { template <class T> static T Do(T a, T b); };
template <class Op, class T>
void Unary(Warp& w, const Instruction& i) {
  T sa[kWarpSize], r[kWarpSize];
  const T* a = w.Source(i.operands[1], sa);
  for (int l = 0; l < kWarpSize; ++l) r[l] = Op::Do(a[l]);
  if constexpr (std::is_signed_v<T>)
    w.StoreSigned(i.operands[0], r);
  else
    w.Store(i.operands[0], r);
}

template <class Op, class T>
void Binary(Warp& w, const Instruction& i) {
  T sa[kWarpSize], sb[kWarpSize], r[kWarpSize];
  const T* a = w.Source(i.operands[1], sa);
  const T* b = w.Source(i.operands[2], sb);
  for (int l = 0; l < kWarpSize; ++l) r[l] = Op::Do(a[l], b[l]);
  if constexpr (std::is_signed_v<T>)
    w.StoreSigned(i.operands[0], r);
  else
    w.Store(i.operands[0], r);
}

template <class Op, class T>
void Ternary(Warp& w, const Instruction& i) {
  T sa[kWarpSize], sb[kWarpSize], sc[kWarpSize], r[kWarpSize];
  const T* a = w.Source(i.operands[1], sa);
  const T* b = w.Source(i.operands[2], sb);
  const T* c = w.Source(i.operands[3], sc);
  for (int l = 0; l < kWarpSize; ++l) r[l] = Op::Do(a[l], b[l], c[l]);
  if constexpr (std::is_signed_v<T>)
    w.StoreSigned(i.operands[0], r);
  else
    w.Store(i.operands[0], r);
}

// The handler template instantiated for an integer type; null for others. `Bits` types count as unsigned.
#define TESSERA_PTX_BY_INTEGER(HANDLER, OP) \
  [](Type type) -> ExecuteFn {              \
    switch (type) {                         \
      case Type::kU16:                      \
      case Type::kB16:                      \
        return HANDLER<OP, uint16_t>;       \
      case Type::kU32:                      \
      case Type::kB32:                      \
        return HANDLER<OP, uint32_t>;       \
      case Type::kU64:                      \
      case Type::kB64:                      \
        return HANDLER<OP, uint64_t>;       \
      case Type::kS16:                      \
        return HANDLER<OP, int16_t>;        \
      case Type::kS32:                      \
        return HANDLER<OP, int32_t>;        \
      case Type::kS64:                      \
        return HANDLER<OP, int64_t>;        \
      default:                              \
        return nullptr;                     \
    }                                       \
  }

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_ISA_SCALAR_H_
