// Control flow and what stands beside it (PTX ISA, "Control Flow Instructions", "Miscellaneous Instructions").
#include <cstdint>

#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/machine/cluster.h"

namespace tessera::ptx {
namespace {

void BranchTo(Warp& w, const Instruction& i) { w.Branch(w.active(), i.operands[0].target); }

absl::Status PrepareBranch(Instruction& i) {
  if (i.operands.size() != 1 || i.operands[0].kind != Operand::Kind::kLabel) {
    return absl::InvalidArgumentError("bra takes a label");
  }
  i.execute = BranchTo;
  return absl::OkStatus();
}

// brx.idx index, table
void BranchIndexed(Warp& w, const Instruction& i) {
  uint32_t scratch[kWarpSize];
  const uint32_t* index = w.Source(i.operands[0], scratch);
  const auto& table = i.operands[1].elements;
  int32_t targets[kWarpSize] = {};
  ForLanes(w.active(), [&](int l) {
    if (index[l] >= table.size()) {
      RaiseAt(l, Rule::kOutOfBounds,
              Cat("brx.idx with ", index[l], "; the table has ", table.size(), " targets"));
    }
    targets[l] = table[index[l]].target;
  });
  w.BranchEach(w.active(), targets);
}

void Exit(Warp& w, const Instruction&) { w.Exit(w.active()); }
void Trap(Warp&, const Instruction& i) { Raise(Rule::kTrap, Cat("the kernel executed ", i.opcode)); }
void Nothing(Warp&, const Instruction&) {}
void Sleep(Warp& w, const Instruction&) { w.Yield(); }

template <ExecuteFn kExecute>
absl::Status Simple(Instruction& i) {
  i.execute = kExecute;
  return absl::OkStatus();
}

}  // namespace

void RegisterControl(Registry& registry) {
  registry.Add("bra", PrepareBranch);
  registry.Add("brx", [](Instruction& i) {
    i.execute = BranchIndexed;
    return NeedOperands(i, 2);
  });
  registry.Add("exit", Simple<Exit>);
  registry.Add("trap", Simple<Trap>);
  registry.Add("brkpt", Simple<Trap>);
  // Dependent launches: the grid before has ended when one is emulated.
  registry.Add("griddepcontrol", Simple<Nothing>);
  registry.Add("pmevent", Simple<Nothing>);
  registry.Add("nanosleep", Simple<Sleep>);
}

}  // namespace tessera::ptx
