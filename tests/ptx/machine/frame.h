// The registers of one call of a function by one warp.
//
// Storage form by declared type, one element a lane, each array 64-byte aligned at Register::offset:
//   .pred            one LaneMask: bit l is lane l's predicate
//   8 and 16 bits    uint16_t[32]
//   32 bits          uint32_t[32]
//   64 bits          uint64_t[32]
//   128 bits         unsigned __int128[32]
// `defined[index]` says which lanes of a register hold a value. An asynchronous result takes its destination's lanes
// out of it until the wait (Warp::Poison), so that an early read faults like any other read of nothing.
#ifndef TESSERA_TESTS_PTX_MACHINE_FRAME_H_
#define TESSERA_TESTS_PTX_MACHINE_FRAME_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/ptx/machine/lanes.h"
#include "tests/ptx/parser/module.h"

namespace tessera::ptx {

class Frame {
 public:
  // `local_base` is where the frame's per-lane memory starts in each thread's local memory.
  Frame(const Function& function, uint32_t local_base, std::shared_ptr<Frame> caller, int return_index);

  template <class T>
  T* Lanes(const Operand& reg) {
    return reinterpret_cast<T*>(storage_.get() + reg.offset);
  }

  const Function& function;
  const uint32_t local_base;
  const std::shared_ptr<Frame> caller;  // null in the entry
  const int return_index;               // instruction of the caller to go on with
  const Instruction* call = nullptr;    // the call that made it

  std::vector<LaneMask> defined;
  // Of registers that are not defined as a whole: the lanes whose lower or upper half is. Compilers pack a value with
  // nothing into a wider register to take the value out again.
  struct Halves {
    LaneMask low = 0, high = 0;
  };
  std::map<uint32_t, Halves> halves;
  std::map<uint32_t, std::string> poison;  // register index -> why it is not defined yet

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> storage_;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_FRAME_H_
