// Which instruction set the CPU kernels use.
//
// Every kernel exists once per instruction set, in a file compiled with that set's flags only; the choice is
// made at run time. On a machine that is not x86-64 there is the portable path alone.
//
// The environment variable TESSERA_CPU_ISA (portable, avx2, avx512, avx512bf16) lowers the choice; a value
// that the machine lacks or that is unknown is ignored with the best supported set in its place, and
// CheckIsaEnvironment says so.
#ifndef TESSERA_KERNELS_CPU_ISA_H_
#define TESSERA_KERNELS_CPU_ISA_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tessera::cpu {

// In ascending order of preference.
enum class Isa {
  kPortable,    // plain C++
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, VL, DQ
  kAvx512Bf16,  // the above and AVX512_BF16
};

std::string_view IsaName(Isa isa);

// Best set that this machine and its operating system support; looked up once.
Isa BestIsa();

// Sets that can be forced here, ascending; always holds kPortable.
std::vector<Isa> SupportedIsas();

// Set in use: the forced one, else that of TESSERA_CPU_ISA, else BestIsa().
Isa ActiveIsa();

// Forces a set, for tests and measurements. Fails when the machine lacks it. Not to be called while kernels
// run; packed weights and KV caches stay valid, they have one layout for all sets.
absl::Status ForceIsa(Isa isa);

// OK, or what is wrong with the value of TESSERA_CPU_ISA. For a start-up log line.
absl::Status CheckIsaEnvironment();

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_ISA_H_
