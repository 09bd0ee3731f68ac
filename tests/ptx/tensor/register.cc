#include "tests/ptx/tensor/register.h"

#include <cstdio>

#include "absl/strings/str_format.h"
#include "tests/ptx/tensor/handlers.h"

namespace tessera::ptx {

void RegisterTensor(Registry& registry) {
  RegisterWarpMatrix(registry);
  RegisterWarpMma(registry);
  RegisterWgmma(registry);
  RegisterTcgen05Alloc(registry);
  RegisterTcgen05LdSt(registry);
  RegisterTcgen05Copy(registry);
  RegisterTcgen05Mma(registry);
  RegisterTcgen05Sync(registry);
}

absl::Status RequireRegisters(const Instruction& i, size_t operand, size_t count, std::string_view what) {
  if (operand >= i.operands.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("operand %d (%s) is missing", operand + 1, what));
  }
  const absl::Span<const Operand> registers = Registers(i.operands[operand]);
  if (registers.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has %d registers, the instruction takes %d", what, registers.size(), count));
  }
  return absl::OkStatus();
}

std::optional<ElementType> ParseElementType(std::string_view name) {
  for (ElementType type : {ElementType::kF16, ElementType::kBF16, ElementType::kTF32, ElementType::kF32,
                           ElementType::kE4M3, ElementType::kE5M2, ElementType::kE2M3, ElementType::kE3M2,
                           ElementType::kE2M1, ElementType::kS8, ElementType::kU8, ElementType::kS32}) {
    if (Name(type) == name) return type;
  }
  return std::nullopt;
}

std::optional<MmaShape> ParseMmaShape(std::string_view name) {
  MmaShape shape;
  int end = 0;
  const std::string text(name);
  if (std::sscanf(text.c_str(), "m%dn%dk%d%n", &shape.m, &shape.n, &shape.k, &end) != 3) return std::nullopt;
  if (end != static_cast<int>(text.size())) return std::nullopt;
  return shape;
}

}  // namespace tessera::ptx
