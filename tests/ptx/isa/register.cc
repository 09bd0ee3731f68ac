#include "tests/ptx/isa/scalar.h"

namespace tessera::ptx {

void FindTypes(Instruction& i) {
  i.type = i.type2 = Type::kNone;
  for (const std::string& modifier : i.modifiers) {
    if (const auto type = ParseType(modifier)) {
      i.type2 = i.type;
      i.type = *type;
    }
  }
}

absl::Status NoSuchType(const Instruction& i) {
  return absl::UnimplementedError(Cat(i.opcode, " does not take the type '", TypeName(i.type), "'"));
}

absl::Status NeedOperands(const Instruction& i, size_t count) {
  if (i.operands.size() == count) return absl::OkStatus();
  return absl::InvalidArgumentError(Cat(i.opcode, " takes ", count, " operands, not ", i.operands.size()));
}

const uint64_t* SourceBits(Warp& w, const Operand& operand, int bits, uint64_t (&scratch)[kWarpSize]) {
  if (bits > 32) return w.Source(operand, scratch);
  uint32_t narrow[kWarpSize];
  const uint32_t* values = w.Source(operand, narrow);
  const uint32_t mask = bits == 32 ? ~0u : (1u << bits) - 1;
  for (int l = 0; l < kWarpSize; ++l) scratch[l] = values[l] & mask;
  return scratch;
}

void RegisterScalarIsa(Registry& registry) {
  RegisterInteger(registry);
  RegisterBits(registry);
  RegisterFloat(registry);
  RegisterConvert(registry);
  RegisterCompare(registry);
  RegisterMove(registry);
  RegisterControl(registry);
  RegisterRegisterPool(registry);
  RegisterCall(registry);
  RegisterMemory(registry);
  RegisterAtomics(registry);
  RegisterWarpWide(registry);
  RegisterCtaBarrier(registry);
  RegisterMbarrier(registry);
  RegisterFence(registry);
  RegisterCluster(registry);
  RegisterCopyAsync(registry);
}

}  // namespace tessera::ptx
