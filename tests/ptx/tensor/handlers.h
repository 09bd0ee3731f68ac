// What the handlers of the tensor-core instructions share. Each family registers itself; register.cc calls them all.
#ifndef TESSERA_TESTS_PTX_TENSOR_HANDLERS_H_
#define TESSERA_TESTS_PTX_TENSOR_HANDLERS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tests/ptx/machine/fault.h"
#include "tests/ptx/machine/registry.h"
#include "tests/ptx/parser/module.h"
#include "tests/ptx/tensor/formats.h"

namespace tessera::ptx {

void RegisterWarpMatrix(Registry& registry);    // ldmatrix, stmatrix, movmatrix
void RegisterWarpMma(Registry& registry);       // mma.sync
void RegisterWgmma(Registry& registry);         // wgmma.*
void RegisterTcgen05Alloc(Registry& registry);  // tcgen05.alloc, dealloc, relinquish_alloc_permit
void RegisterTcgen05LdSt(Registry& registry);   // tcgen05.ld, st, wait
void RegisterTcgen05Copy(Registry& registry);   // tcgen05.cp
void RegisterTcgen05Mma(Registry& registry);    // tcgen05.mma
void RegisterTcgen05Sync(Registry& registry);   // tcgen05.commit, fence

// Raises the status' message: Unimplemented as kUnsupported, anything else as `rule`.
inline void RaiseIfError(const absl::Status& status, Rule rule) {
  if (status.ok()) return;
  Raise(absl::IsUnimplemented(status) ? Rule::kUnsupported : rule, std::string(status.message()));
}

// The registers of a brace-enclosed list, or the one register that stands alone.
inline absl::Span<const Operand> Registers(const Operand& operand) {
  if (operand.kind == Operand::Kind::kVector) return operand.elements;
  return absl::MakeConstSpan(&operand, 1);
}

// InvalidArgument unless every element is a register (or, where allowed, anything) and there are `count` of them.
absl::Status RequireRegisters(const Instruction& i, size_t operand, size_t count, std::string_view what);

// "bf16" -> kBF16.
std::optional<ElementType> ParseElementType(std::string_view name);

// "m16n8k16" -> 16, 8, 16.
struct MmaShape {
  int m = 0, n = 0, k = 0;
};
std::optional<MmaShape> ParseMmaShape(std::string_view name);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_HANDLERS_H_
