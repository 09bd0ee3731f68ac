#include "tests/ptx/tensor/wgmma_state.h"

#include <cstring>

#include "absl/strings/str_format.h"

namespace tessera::ptx {
namespace {

// The register file as one block: the storage of register 0 on.
std::byte* StorageOf(Frame& frame) { return frame.Lanes<std::byte>(Operand()); }

constexpr size_t kRegisterBytes = sizeof(uint32_t) * kWarpSize;  // of the 32-bit registers that wgmma takes

}  // namespace

void RegisterSnapshot::Take(const std::shared_ptr<Frame>& from) {
  frame = from;
  bytes.assign(StorageOf(*from), StorageOf(*from) + from->function.storage_bytes);
  defined = from->defined;
}

bool RegisterSnapshot::Changed(Frame& other, const Operand& reg) const {
  if (&other != frame.get()) return false;
  const LaneMask lanes = other.defined[reg.reg];
  if (lanes != defined[reg.reg]) return true;
  return lanes != 0 && std::memcmp(&bytes[reg.offset], StorageOf(other) + reg.offset, kRegisterBytes) != 0;
}

void RegisterSnapshot::Update(Frame& other, const Operand& reg) {
  if (&other != frame.get()) return;
  defined[reg.reg] = other.defined[reg.reg];
  std::memcpy(&bytes[reg.offset], StorageOf(other) + reg.offset, kRegisterBytes);
}

void WgmmaCtaState::OnCtaExit(Cta& cta) {
  for (const auto& [index, warpgroup] : warpgroups) {
    if (warpgroup.open.empty()) continue;
    const WgmmaWork& work = *warpgroup.open.front();
    Raise(Rule::kDivergence,
          absl::StrFormat("the CTA exits, but `%s` (line %d) was issued by %d of the 4 warps of warpgroup %d",
                          work.instruction->text, work.instruction->where.line, work.issuers, index));
  }
}

}  // namespace tessera::ptx
