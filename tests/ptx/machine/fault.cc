#include "tests/ptx/machine/fault.h"

#include <utility>

namespace tessera::ptx {

std::string_view RuleName(Rule rule) {
  switch (rule) {
    case Rule::kUninitialisedRegister:
      return "uninitialised register";
    case Rule::kUninitialisedMemory:
      return "uninitialised memory";
    case Rule::kMisalignedAddress:
      return "misaligned address";
    case Rule::kOutOfBounds:
      return "address out of bounds";
    case Rule::kWrongSpace:
      return "wrong state space";
    case Rule::kReadOnly:
      return "write to read-only memory";
    case Rule::kDivergence:
      return "divergent warp";
    case Rule::kWarpUniform:
      return "operand not warp-uniform";
    case Rule::kDescriptor:
      return "bad descriptor";
    case Rule::kShape:
      return "shape or type not allowed";
    case Rule::kUnfinishedOperation:
      return "unfinished asynchronous operation";
    case Rule::kRace:
      return "data race";
    case Rule::kProxy:
      return "missing proxy fence";
    case Rule::kMbarrier:
      return "mbarrier misuse";
    case Rule::kBarrier:
      return "barrier misuse";
    case Rule::kTensorMemory:
      return "tensor memory misuse";
    case Rule::kResource:
      return "resource limit";
    case Rule::kDeadlock:
      return "deadlock";
    case Rule::kInstructionLimit:
      return "instruction limit";
    case Rule::kTrap:
      return "trap";
    case Rule::kAssertion:
      return "assertion failed";
    case Rule::kUnsupported:
      return "unsupported instruction";
    case Rule::kBadOperand:
      return "bad operand";
    case Rule::kGroup:
      return "asynchronous group misuse";
  }
  return "?";
}

void Raise(Rule rule, std::string message) { throw FaultError(rule, -1, std::move(message)); }
void RaiseAt(int lane, Rule rule, std::string message) { throw FaultError(rule, lane, std::move(message)); }

}  // namespace tessera::ptx
