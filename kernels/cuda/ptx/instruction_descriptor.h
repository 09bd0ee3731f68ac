// The 32-bit instruction descriptors of tcgen05.mma (PTX ISA, "Tensorcore 5th Generation: Instruction descriptor"), for
// the kinds in use, dense, cta_group::1. Usable on the host.
#ifndef TESSERA_KERNELS_CUDA_PTX_INSTRUCTION_DESCRIPTOR_H_
#define TESSERA_KERNELS_CUDA_PTX_INSTRUCTION_DESCRIPTOR_H_

#include <cstdint>

#include "kernels/host_device.h"

namespace tessera::cuda::ptx {

enum class Major : uint32_t {
  kK = 0,   // the elements of K are contiguous
  kMn = 1,  // the elements of M (of A) or N (of B) are contiguous
};

// kind::f16 with bf16 operands and float sums. D is M x N, A M x K, B N x K, K 16. M is 64 or 128, N a multiple of 16 up
// to 256.
TESSERA_HOST_DEVICE constexpr uint32_t MakeBf16InstructionDescriptor(uint32_t m, uint32_t n, Major a,
                                                                     Major b) {
  constexpr uint32_t kFloatSums = 1, kBf16 = 1;
  return (kFloatSums << 4) | (kBf16 << 7) | (kBf16 << 10) | (static_cast<uint32_t>(a) << 15) |
         (static_cast<uint32_t>(b) << 16) | ((n >> 3) << 17) | ((m >> 4) << 24);
}

// kind::mxf4nvf4, scale_vec::4X: E2M1 operands, both K-major, a UE4M3 scale for each 16 of K, K 64; float sums. M is 128.
// A scale factor word holds the four scales of a row's 64: the scale ids are 0.
TESSERA_HOST_DEVICE constexpr uint32_t MakeNvfp4InstructionDescriptor(uint32_t m, uint32_t n) {
  constexpr uint32_t kE2m1 = 1;
  return (kE2m1 << 7) | (kE2m1 << 10) | ((n >> 3) << 17) | ((m >> 7) << 27);
}

static_assert(MakeBf16InstructionDescriptor(128, 64, Major::kK, Major::kK) == 0x08100490);
static_assert(MakeBf16InstructionDescriptor(128, 16, Major::kMn, Major::kMn) == 0x08058490);
static_assert(MakeNvfp4InstructionDescriptor(128, 128) == 0x08200480);

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_INSTRUCTION_DESCRIPTOR_H_
