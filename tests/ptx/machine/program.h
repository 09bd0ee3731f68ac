// A module made ready to run: instructions bound to their handlers, registers and variables placed.
#ifndef TESSERA_TESTS_PTX_MACHINE_PROGRAM_H_
#define TESSERA_TESTS_PTX_MACHINE_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/ptx/machine/global_memory.h"
#include "tests/ptx/machine/registry.h"
#include "tests/ptx/parser/module.h"

namespace tessera::ptx {

class Program {
 public:
  // Module variables (.global, .const) get host memory, which Program owns and registers with `memory` while it lives.
  // `memory` must outlive it.
  static absl::StatusOr<std::unique_ptr<Program>> Load(std::string_view ptx, std::string name,
                                                       const Registry& registry, GlobalMemory& memory);
  ~Program();

  const Module& module() const { return *module_; }
  // NotFound names the entries there are.
  absl::StatusOr<const Function*> FindEntry(std::string_view name) const;
  // Host address and size of a module variable; null if there is none.
  void* FindVariable(std::string_view name, uint64_t* size) const;
  // Instructions that no handler takes: "line 12: wgmma...: why". Empty is what one wants.
  std::vector<std::string> Unsupported() const;

 private:
  Program() = default;
  absl::Status Link(const Registry& registry, GlobalMemory& memory);

  struct Storage {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<Module> module_;
  GlobalMemory* memory_ = nullptr;
  std::vector<std::unique_ptr<std::byte[], Storage>> storage_;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_PROGRAM_H_
