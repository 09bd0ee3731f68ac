#include "tests/ptx/cudart/kernel_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/ptx/emulator.h"

namespace tessera::ptx {

KernelModule* KernelTable::AddModule(const void* fat_binary_wrapper) {
  modules_.push_back(
      std::make_unique<KernelModule>(KernelModule{ReadFatBinary(fat_binary_wrapper), {}, std::nullopt}));
  return modules_.back().get();
}

void KernelTable::AddKernel(KernelModule* module, const void* host_function, std::string name) {
  auto kernel = std::make_unique<Kernel>();
  kernel->module = module;
  module->kernels.push_back(name);
  kernel->name = std::move(name);
  kernels_[host_function] = std::move(kernel);
}

void KernelTable::AddVariable(KernelModule* module, const void* host_variable, std::string name,
                              uint64_t bytes) {
  variables_[host_variable] = {module, std::move(name), bytes};
}

absl::StatusOr<PtxImage> KernelTable::FindImage(const KernelModule& module) {
  if (!module.images.ok()) return module.images.status();
  for (const PtxImage& image : *module.images) {
    if (image.arch == arch_) return image;
  }
  absl::StatusOr<PtxImage> file = files_.Find(arch_, module.kernels);
  if (file.ok()) return file;
  return absl::FailedPreconditionError(absl::StrCat("no PTX for sm_", arch_, " among ", module.images->size(),
                                                    " in the fat binary (nvcc -gencode=arch=compute_", arch_,
                                                    "a,code=compute_", arch_, "a puts it there), and ",
                                                    file.status().message()));
}

absl::StatusOr<Program*> KernelTable::LoadModule(KernelModule* module) {
  if (!module->program.has_value()) {
    absl::StatusOr<PtxImage> image = FindImage(*module);
    if (image.ok()) {
      module->program = Program::Load(image->text, image->name, FullRegistry(), memory_);
    } else {
      module->program = image.status();
    }
  }
  if (!module->program->ok()) return module->program->status();
  return (**module->program).get();
}

absl::Status KernelTable::Load(Kernel* kernel) {
  if (kernel->entry != nullptr) return absl::OkStatus();
  absl::StatusOr<Program*> program = LoadModule(kernel->module);
  if (!program.ok()) return program.status();
  absl::StatusOr<const Function*> entry = (*program)->FindEntry(kernel->name);
  if (!entry.ok()) return entry.status();
  kernel->entry = *entry;
  return absl::OkStatus();
}

absl::StatusOr<Kernel*> KernelTable::FindKernel(const void* host_function) {
  const auto found = kernels_.find(host_function);
  Kernel* kernel = nullptr;
  if (found != kernels_.end()) {
    kernel = found->second.get();
  } else {
    for (const auto& [host, registered] : kernels_) {  // a cudaKernel_t does as well
      if (registered.get() == host_function) kernel = registered.get();
    }
  }
  if (kernel == nullptr) return absl::NotFoundError("the address stands for no __global__ function");
  if (absl::Status status = Load(kernel); !status.ok()) return status;
  return kernel;
}

absl::StatusOr<void*> KernelTable::FindVariable(const void* host_variable, uint64_t* bytes) {
  const auto found = variables_.find(host_variable);
  if (found == variables_.end()) return absl::NotFoundError("the address stands for no __device__ variable");
  const DeviceVariable& variable = found->second;
  absl::StatusOr<Program*> program = LoadModule(variable.module);
  if (!program.ok()) return program.status();
  void* address = (*program)->FindVariable(variable.name, bytes);
  if (address == nullptr) {
    return absl::NotFoundError(absl::StrCat("the PTX has no variable ", variable.name));
  }
  if (*bytes != variable.bytes) {
    return absl::InternalError(absl::StrCat("variable ", variable.name, " has ", *bytes,
                                            " bytes in the PTX and ", variable.bytes, " on the host"));
  }
  return address;
}

}  // namespace tessera::ptx
