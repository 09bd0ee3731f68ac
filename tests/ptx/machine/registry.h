// Which code runs which instruction. An instruction family registers a Prepare for a dotted prefix of the full name;
// the longest registered prefix wins ("wgmma.mma_async" before "wgmma").
//
//   absl::Status PrepareWaitGroup(Instruction& i) {   // once, when the module is loaded
//     i.execute = [](Warp& warp, const Instruction& i) { ... };
//     return absl::OkStatus();                        // or Unimplemented / InvalidArgument: what is wrong with it
//   }
//   void RegisterTensor(Registry& r) { r.Add("wgmma.wait_group", PrepareWaitGroup); }
//
// Prepare decodes modifiers into i.payload (or i.type, i.flags) and sets i.execute. Its error is kept and raised when a
// thread reaches the instruction. Execute runs for the lanes warp.active(), of which there is at least one. It either
// does its work, or calls warp.Wait and returns, or raises.
#ifndef TESSERA_TESTS_PTX_MACHINE_REGISTRY_H_
#define TESSERA_TESTS_PTX_MACHINE_REGISTRY_H_

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "tests/ptx/parser/module.h"

namespace tessera::ptx {

using PrepareFn = absl::Status (*)(Instruction&);

class Registry {
 public:
  void Add(std::string name, PrepareFn prepare);
  // Sets execute and payload; an unknown instruction is Unimplemented.
  absl::Status Prepare(Instruction& i) const;

 private:
  std::map<std::string, PrepareFn, std::less<>> entries_;
};

// parser, machine and isa/. tensor/ and tma/ have their own; FullRegistry (emulator.h) is all of them.
void RegisterScalarIsa(Registry& registry);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_REGISTRY_H_
