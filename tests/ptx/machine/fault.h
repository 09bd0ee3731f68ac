// A rule of PTX or of the hardware that a kernel broke. Raise stops the grid; the launch returns a status that names
// kernel, PTX line, CTA, warp, lane and rule. Faults travel as exceptions inside the emulator only.
#ifndef TESSERA_TESTS_PTX_MACHINE_FAULT_H_
#define TESSERA_TESTS_PTX_MACHINE_FAULT_H_

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "tests/ptx/machine/lanes.h"

namespace tessera::ptx {

enum class Rule {
  kUninitialisedRegister,
  kUninitialisedMemory,
  kMisalignedAddress,
  kOutOfBounds,
  kWrongSpace,
  kReadOnly,
  kDivergence,           // .aligned or .sync with lanes elsewhere
  kWarpUniform,          // an operand that must be the same in all lanes
  kDescriptor,           // matrix, instruction or tensor-map descriptor
  kShape,                // shape or type not allowed for the kind
  kUnfinishedOperation,  // a result read before its wait, bytes touched while an asynchronous operation uses them
  kRace,                 // accesses to shared memory that nothing orders
  kProxy,                // generic writes read by the async proxy without a proxy fence
  kMbarrier,
  kBarrier,
  kTensorMemory,  // allocation, lane quarter, columns
  kResource,      // shared memory, threads, registers beyond the limits
  kDeadlock,
  kInstructionLimit,
  kTrap,
  kAssertion,
  kUnsupported,  // PTX that the emulator does not know
  kBadOperand,
  kGroup,  // bulk and cp.async groups, wgmma groups
};
std::string_view RuleName(Rule rule);

class FaultError : public std::exception {
 public:
  FaultError(Rule rule, int lane, std::string message)
      : rule(rule), lane(lane), message(std::move(message)) {}
  const char* what() const noexcept override { return message.c_str(); }

  Rule rule;
  int lane;  // -1: the warp as a whole
  std::string message;
  std::string
      location;  // filled on the way out: "kernel K, line 12 `...` (a.cu:3), CTA (0,0,0), warp 1, lane 5"
};

[[noreturn]] void Raise(Rule rule, std::string message);
[[noreturn]] void RaiseAt(int lane, Rule rule, std::string message);

// f(lane) for each lane of the mask; what it raises without a lane gets this one.
template <class F>
inline void ForEachLane(LaneMask mask, F&& f) {
  int current = 0;
  try {
    ForLanes(mask, [&](int lane) {
      current = lane;
      f(lane);
    });
  } catch (FaultError& fault) {
    if (fault.lane < 0) fault.lane = current;
    throw;
  }
}

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_FAULT_H_
