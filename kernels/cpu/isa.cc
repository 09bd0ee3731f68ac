#include "kernels/cpu/isa.h"

#include <atomic>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/kernel_table.h"

namespace tessera::cpu {
namespace {

constexpr Isa kAllIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};
constexpr char kEnvironmentName[] = "TESSERA_CPU_ISA";

// The compiler's run-time library asks both the processor and the operating system (saved registers).
bool Supports(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Isa::kAvx512:
      return Supports(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq");
    case Isa::kAvx512Bf16:
      return Supports(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16");
  }
  return false;
#else
  return isa == Isa::kPortable;
#endif
}

bool ParseIsa(std::string_view name, Isa* isa) {
  for (Isa candidate : kAllIsas) {
    if (IsaName(candidate) == name) {
      *isa = candidate;
      return true;
    }
  }
  return false;
}

Isa InitialIsa() {
  Isa isa;
  const char* name = std::getenv(kEnvironmentName);
  if (name != nullptr && ParseIsa(name, &isa) && Supports(isa)) return isa;
  return BestIsa();
}

std::atomic<Isa>& Active() {
  static std::atomic<Isa> active(InitialIsa());
  return active;
}

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
  }
  return "unknown";
}

Isa BestIsa() {
  static const Isa best = [] {
    Isa result = Isa::kPortable;
    for (Isa isa : kAllIsas) {
      if (Supports(isa)) result = isa;
    }
    return result;
  }();
  return best;
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> result;
  for (Isa isa : kAllIsas) {
    if (Supports(isa)) result.push_back(isa);
  }
  return result;
}

Isa ActiveIsa() { return Active().load(std::memory_order_relaxed); }

absl::Status ForceIsa(Isa isa) {
  if (!Supports(isa)) {
    return absl::FailedPreconditionError(absl::StrCat("this machine lacks the instruction set ",
                                                      std::string(IsaName(isa)), "; the best it has is ",
                                                      std::string(IsaName(BestIsa()))));
  }
  Active().store(isa, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status CheckIsaEnvironment() {
  const char* name = std::getenv(kEnvironmentName);
  Isa isa;
  if (name == nullptr || (ParseIsa(name, &isa) && Supports(isa))) return absl::OkStatus();
  std::string supported;
  for (Isa candidate : SupportedIsas()) {
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", std::string(IsaName(candidate)));
  }
  return absl::InvalidArgumentError(absl::StrCat(kEnvironmentName, "=", name,
                                                 " names no instruction set that this machine has (",
                                                 supported, "); using ", std::string(IsaName(BestIsa()))));
}

const KernelTable& Kernels() {
#if defined(__x86_64__)
  switch (ActiveIsa()) {
    case Isa::kPortable:
      return PortableKernels();
    case Isa::kAvx2:
      return Avx2Kernels();
    case Isa::kAvx512:
      return Avx512Kernels();
    case Isa::kAvx512Bf16:
      return Avx512Bf16Kernels();
  }
#endif
  return PortableKernels();
}

}  // namespace tessera::cpu
