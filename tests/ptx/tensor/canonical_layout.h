// Where an operand's elements lie in shared memory, in units of 16 bytes ("chunks").
//
// Source: PTX ISA "Canonical Layouts" (the same table for wgmma and for tcgen05), in CuTe's notation, T elements a
// chunk, W chunks the width of a swizzle atom:
//   K-major   none      ((8,m),(T,2k)) : ((1T,SBO),(1,LBO))
//             swizzled  ((8,m),(T,2k)) : ((WT,SBO),(1,T))
//   MN-major  none      ((T,1,m),(8,k)) : ((1,T,SBO),(1T,LBO))
//             swizzled  ((T,W,m),(8,k)) : ((1,T,LBO),(WT,SBO))      8 is 4 for 128B with 32B atoms
// LBO and SBO trade places between the last two.
//
// The swizzle acts on the address that this gives, start included: chunk bits are XORed with bits of the 128-byte
// line, of the absolute shared-memory address. So a tile that starts at the pattern's natural alignment, an advance
// along K inside an atom (add 32 bytes to the start) and what TMA writes with the same swizzle all agree.
#ifndef TESSERA_TESTS_PTX_TENSOR_CANONICAL_LAYOUT_H_
#define TESSERA_TESTS_PTX_TENSOR_CANONICAL_LAYOUT_H_

#include <cstdint>

#include "tests/ptx/tensor/smem_descriptor.h"

namespace tessera::ptx {

// Bytes of one core-matrix row, the unit in which everything here is addressed.
inline constexpr int kChunkBytes = 16;

// The XOR of a swizzle mode: bits 4.. with bits 7.., one, two, three bits for 32B, 64B, 128B; bits 5-6 with bits 7-8
// for 128B with 32B atoms. Its own inverse. A pattern that starts at (base_offset << 7) counts its lines from there.
uint32_t ApplySwizzle(Swizzle swizzle, uint32_t address, uint8_t base_offset = 0);

// Byte address of the 16-byte column `chunk` of K of row `row` (of M or N), K-major.
uint32_t KMajorChunkAddress(const MatrixDescriptor& descriptor, int row, int chunk);

// Byte address of the 16 bytes that hold elements chunk * T .. of M or N at K index `k`, MN-major.
uint32_t MnMajorChunkAddress(const MatrixDescriptor& descriptor, int k, int chunk);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_CANONICAL_LAYOUT_H_
