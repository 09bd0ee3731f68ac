// What the program's translation units registered: modules of PTX, kernels and device variables, keyed by the host
// addresses that stand for them. A module is parsed and loaded when something in it is first used.
#ifndef TESSERA_TESTS_PTX_CUDART_KERNEL_TABLE_H_
#define TESSERA_TESTS_PTX_CUDART_KERNEL_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/ptx/cudart/fat_binary.h"
#include "tests/ptx/cudart/ptx_files.h"
#include "tests/ptx/machine/global_memory.h"
#include "tests/ptx/machine/program.h"

namespace tessera::ptx {

struct KernelModule {
  absl::StatusOr<std::vector<PtxImage>> images;
  std::vector<std::string> kernels;                                 // mangled names
  std::optional<absl::StatusOr<std::unique_ptr<Program>>> program;  // once loaded
};

// A kernel; cudaKernel_t points to one.
struct Kernel {
  KernelModule* module = nullptr;
  std::string name;                 // mangled
  const Function* entry = nullptr;  // once found
  // Attributes that the program set.
  std::optional<uint32_t> max_dynamic_shared;
  bool non_portable_cluster = false;
};

class KernelTable {
 public:
  // `ptx_list`: where PTX is looked for that the fat binaries lack (ptx_files.h).
  KernelTable(GlobalMemory& memory, int arch, std::string ptx_list)
      : memory_(memory), arch_(arch), files_(std::move(ptx_list)) {}

  KernelModule* AddModule(const void* fat_binary_wrapper);
  void AddKernel(KernelModule* module, const void* host_function, std::string name);
  void AddVariable(KernelModule* module, const void* host_variable, std::string name, uint64_t bytes);

  // Errors: NotFound (the address stands for no kernel, or the module has no such entry), FailedPrecondition (no PTX for
  // the device's architecture), and what the parser and the loader say.
  absl::StatusOr<Kernel*> FindKernel(const void* host_function);
  // The same for a kernel that __cudaGetKernel gave out.
  absl::Status Load(Kernel* kernel);
  // The variable's address on the device, and its size.
  absl::StatusOr<void*> FindVariable(const void* host_variable, uint64_t* bytes);

  const Program& ProgramOf(const Kernel& kernel) const { return ***kernel.module->program; }

 private:
  struct DeviceVariable {
    KernelModule* module;
    std::string name;
    uint64_t bytes;
  };

  absl::StatusOr<Program*> LoadModule(KernelModule* module);
  absl::StatusOr<PtxImage> FindImage(const KernelModule& module);

  GlobalMemory& memory_;
  const int arch_;
  PtxFiles files_;
  std::vector<std::unique_ptr<KernelModule>> modules_;
  std::map<const void*, std::unique_ptr<Kernel>> kernels_;
  std::map<const void*, DeviceVariable> variables_;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_CUDART_KERNEL_TABLE_H_
