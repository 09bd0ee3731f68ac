// The 64-bit shared-memory matrix descriptor of tcgen05 (PTX ISA, "Tensorcore 5th Generation: Shared memory descriptor").
// Usable on the host, so that tests compare it with other encoders. Hopper's wgmma descriptor has other layout codes.
//
// What the two offsets mean depends on the operand's major and on the swizzle (bytes; a "line" is the swizzle's width;
// a core matrix is 8 lines of 16 bytes):
//
//   operand           leading offset                            stride offset
//   K-major, none     next 16-byte column of K                  next 8 rows of M or N
//   K-major, swizzle  not used                                  next 8 rows of M or N (8 lines when dense)
//   MN-major, none    next 8 of K                               next 16-byte chunk of M or N
//   MN-major, swizzle next line-wide chunk of M or N            next 8 of K (8 lines when dense)
#ifndef TESSERA_KERNELS_CUDA_PTX_SMEM_DESCRIPTOR_H_
#define TESSERA_KERNELS_CUDA_PTX_SMEM_DESCRIPTOR_H_

#include <cstdint>

#include "kernels/host_device.h"

namespace tessera::cuda::ptx {

enum class SmemSwizzle : uint32_t {
  kNone = 0,
  k128Base32 = 1,  // 128 bytes in units of 32: 32-bit elements, MN-major only
  k128 = 2,
  k64 = 4,
  k32 = 6,
};

// `address` is a shared-window address; it and the offsets are multiples of 16, and a swizzled operand starts at a
// multiple of 8 lines (1024 bytes for 128): the base offset stays 0.
TESSERA_HOST_DEVICE constexpr uint64_t MakeSmemDescriptor(uint32_t address, uint32_t leading_bytes,
                                                          uint32_t stride_bytes, SmemSwizzle swizzle) {
  constexpr uint32_t kField = 0x3FFFF;  // 18 bits of bytes, 14 of 16-byte units: all of shared memory
  return (uint64_t{address & kField} >> 4) | ((uint64_t{leading_bytes & kField} >> 4) << 16) |
         ((uint64_t{stride_bytes & kField} >> 4) << 32) | (uint64_t{1} << 46) |
         (static_cast<uint64_t>(swizzle) << 61);
}

// The same operand `bytes` further on: a step along K inside a swizzled line as well, since the hardware swizzles the
// sum. The address must stay below 256 KB.
TESSERA_HOST_DEVICE constexpr uint64_t AdvanceSmemDescriptor(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

static_assert(MakeSmemDescriptor(0, 0, 0, SmemSwizzle::kNone) == uint64_t{1} << 46,
              "the constant field alone");
static_assert(MakeSmemDescriptor(1024, 0, 1024, SmemSwizzle::k128) == 0x4000404000000040,
              "K-major, 128-byte swizzle");
static_assert(MakeSmemDescriptor(0x38000, 16384, 1024, SmemSwizzle::k128) == 0x4000404004003800,
              "an address above 128 KB keeps all its bits");
static_assert(AdvanceSmemDescriptor(MakeSmemDescriptor(1024, 0, 1024, SmemSwizzle::k128), 32) ==
              MakeSmemDescriptor(1056, 0, 1024, SmemSwizzle::k128));

}  // namespace tessera::cuda::ptx

#endif  // TESSERA_KERNELS_CUDA_PTX_SMEM_DESCRIPTOR_H_
