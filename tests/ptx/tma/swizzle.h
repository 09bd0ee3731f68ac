// Where the tensor copy engine puts a byte of a box: a map of shared-memory addresses onto themselves, within 1024
// bytes. It works on the absolute address, so a box need not start where the pattern does. PTX ISA 9.0, "Swizzling
// Modes".
#ifndef TESSERA_TESTS_PTX_TMA_SWIZZLE_H_
#define TESSERA_TESTS_PTX_TMA_SWIZZLE_H_

#include <cstdint>

#include "tests/ptx/tma/tensor_map.h"

namespace tessera::ptx {

// The pattern is an exclusive or of address bits: bits 7 and up count the 128-byte lines. Its own inverse.
constexpr uint32_t SwizzleAddress(TensorSwizzle swizzle, uint32_t address) {
  const uint32_t line = address >> 7;
  switch (swizzle) {
    case TensorSwizzle::kNone:
      return address;
    case TensorSwizzle::k32B:
      return address ^ (line & 1) << 4;
    case TensorSwizzle::k64B:
      return address ^ (line & 3) << 4;
    case TensorSwizzle::k128B:
      return address ^ (line & 7) << 4;
    case TensorSwizzle::k128BAtom32B:
      return address ^ (line & 3) << 5;
    case TensorSwizzle::k128BAtom32BFlip8B:
      // "At every alternate shared memory line": taken to be the odd ones, where the pattern moves the atoms too.
      return address ^ (line & 3) << 5 ^ (line & 1) << 3;
    case TensorSwizzle::k128BAtom64B:
      return address ^ (line & 1) << 6;
  }
  return address;
}

// Bytes that the pattern keeps together.
constexpr uint32_t SwizzleAtomBytes(TensorSwizzle swizzle) {
  return swizzle == TensorSwizzle::k128BAtom32BFlip8B ? 8 : 16;
}

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TMA_SWIZZLE_H_
