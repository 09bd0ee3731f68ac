// tcgen05.alloc, tcgen05.dealloc, tcgen05.relinquish_alloc_permit.
//
// Source: PTX ISA, "Tensor Memory Allocation and Management Instructions". With cta_group::2 a warp of each CTA of the
// pair takes part, and both get the same columns.
#include <bit>
#include <cstdint>
#include <memory>

#include "absl/strings/str_format.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/registry.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/tensor/handlers.h"
#include "tests/ptx/tensor/tensor_memory.h"

namespace tessera::ptx {
namespace {

struct AllocPayload : Payload {
  int cta_group = 1;
  Space space = Space::kGeneric;
};

// A warp's place in an operation of a pair, kept while it waits for the peer.
struct PairTicket : ExtensionState {
  const Instruction* instruction = nullptr;
  uint64_t number = 0;
};

void RequireWholeWarp(Warp& warp, const Instruction& i) {
  warp.RequireConverged(i);
  if (warp.active() != kAllLanes)
    Raise(Rule::kDivergence, "needs all 32 lanes of the warp; some have exited");
}

int RequireColumns(Warp& warp, const Operand& operand) {
  const uint64_t columns = warp.SourceUniform(operand, "the number of columns");
  if (columns < 32 || columns > kTmemColumns || !std::has_single_bit(columns)) {
    Raise(Rule::kTensorMemory, absl::StrFormat("%d columns; must be a power of two from 32 to 512", columns));
  }
  return static_cast<int>(columns);
}

// True once both CTAs of a pair have come as often as this warp's ticket says; else the warp waits.
bool MeetPeer(Warp& warp, const Instruction& i, uint64_t TensorMemory::*arrivals) {
  auto& ticket = warp.State<PairTicket>();
  TensorMemory& mine = warp.cta().State<TensorMemory>();
  if (ticket.instruction != &i) {
    ticket.instruction = &i;
    ticket.number = ++(mine.*arrivals);
  }
  TensorMemory& peer = PeerOf(warp.cta()).State<TensorMemory>();
  const uint64_t number = ticket.number;
  if (peer.*arrivals < number) {
    warp.Wait({[&peer, arrivals, number] { return peer.*arrivals >= number; },
               absl::StrFormat("%s with cta_group::2: the peer CTA's warp has not come", i.text)});
    return false;
  }
  return true;
}

void ExecuteAlloc(Warp& warp, const Instruction& i) {
  RequireWholeWarp(warp, i);
  const auto& p = i.As<AllocPayload>();
  RequireCtaGroup(warp, p.cta_group);
  const int columns = RequireColumns(warp, i.operands[1]);
  TensorMemory& mine = warp.cta().State<TensorMemory>();
  if (mine.relinquished)
    Raise(Rule::kTensorMemory, "tcgen05.alloc after tcgen05.relinquish_alloc_permit of this CTA");
  if (mine.last_size != 0 && columns > mine.last_size) {
    Raise(Rule::kTensorMemory,
          absl::StrFormat("tcgen05.alloc of %d columns after one of %d; later allocations of a CTA "
                          "must not be larger",
                          columns, mine.last_size));
  }
  if (p.cta_group == 2 && !MeetPeer(warp, i, &TensorMemory::allocation_arrivals)) return;
  const int base = mine.FindFree(columns);
  if (base < 0) {
    warp.Wait({[&mine, columns] { return mine.FindFree(columns) >= 0; },
               absl::StrFormat("tcgen05.alloc of %d columns: not so many are free", columns)});
    return;
  }
  warp.State<PairTicket>().instruction = nullptr;
  const uint32_t address = MakeTmemAddress(0, base);
  warp.StoreLane(warp.first_active(), p.space,
                 warp.SourceUniform(i.operands[0].elements[0], "the destination") + i.operands[0].value, 4,
                 &address);
  mine.Allocate(base, columns);
}

void ExecuteDealloc(Warp& warp, const Instruction& i) {
  RequireWholeWarp(warp, i);
  const auto& p = i.As<AllocPayload>();
  RequireCtaGroup(warp, p.cta_group);
  const auto address = static_cast<uint32_t>(warp.SourceUniform(i.operands[0], "the address"));
  const int columns = RequireColumns(warp, i.operands[1]);
  if (p.cta_group == 2 && !MeetPeer(warp, i, &TensorMemory::deallocation_arrivals)) return;
  warp.State<PairTicket>().instruction = nullptr;
  warp.cta().State<TensorMemory>().Free(address, columns);
}

void ExecuteRelinquish(Warp& warp, const Instruction& i) {
  RequireWholeWarp(warp, i);
  RequireCtaGroup(warp, i.As<AllocPayload>().cta_group);
  warp.cta().State<TensorMemory>().relinquished = true;
}

template <ExecuteFn kExecute, size_t kOperands>
absl::Status Prepare(Instruction& i) {
  absl::StatusOr<int> cta_group = ParseCtaGroup(i);
  if (!cta_group.ok()) return cta_group.status();
  if (i.operands.size() != kOperands) {
    return absl::InvalidArgumentError(absl::StrFormat("needs %d operands", kOperands));
  }
  auto payload = std::make_unique<AllocPayload>();
  payload->cta_group = *cta_group;
  if (i.Has("shared::cta") || i.Has("shared")) payload->space = Space::kSharedCta;
  if (i.Has("alloc") && i.operands[0].kind != Operand::Kind::kAddress) {
    return absl::InvalidArgumentError("the destination must be an address in shared memory: [dst]");
  }
  if (i.Has("dealloc") && i.operands[0].kind == Operand::Kind::kAddress) {
    return absl::InvalidArgumentError(
        "takes the tensor memory address itself, in a register, not the place where alloc "
        "wrote it");
  }
  i.payload = std::move(payload);
  i.execute = kExecute;
  return absl::OkStatus();
}

}  // namespace

void RegisterTcgen05Alloc(Registry& registry) {
  registry.Add("tcgen05.alloc", Prepare<ExecuteAlloc, 2>);
  registry.Add("tcgen05.dealloc", Prepare<ExecuteDealloc, 2>);
  registry.Add("tcgen05.relinquish_alloc_permit", Prepare<ExecuteRelinquish, 0>);
}

}  // namespace tessera::ptx
