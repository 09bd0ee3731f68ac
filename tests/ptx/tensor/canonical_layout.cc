#include "tests/ptx/tensor/canonical_layout.h"

namespace tessera::ptx {

uint32_t ApplySwizzle(Swizzle swizzle, uint32_t address, uint8_t base_offset) {
  const uint32_t line = (address >> 7) - base_offset;
  switch (swizzle) {
    case Swizzle::kNone:
      return address;
    case Swizzle::k32B:
      return address ^ ((line & 1) << 4);
    case Swizzle::k64B:
      return address ^ ((line & 3) << 4);
    case Swizzle::k128B:
      return address ^ ((line & 7) << 4);
    case Swizzle::k128B32BAtom:
      return address ^ ((line & 3) << 5);
  }
  return address;
}

uint32_t KMajorChunkAddress(const MatrixDescriptor& descriptor, int row, int chunk) {
  const uint32_t row_bytes = SwizzleWidth(descriptor.swizzle);
  const uint32_t column = descriptor.swizzle == Swizzle::kNone ? descriptor.leading_offset : kChunkBytes;
  const uint32_t address =
      descriptor.start_address + row % 8 * row_bytes + row / 8 * descriptor.stride_offset + chunk * column;
  return ApplySwizzle(descriptor.swizzle, address, descriptor.base_offset);
}

uint32_t MnMajorChunkAddress(const MatrixDescriptor& descriptor, int k, int chunk) {
  const int atom_chunks = SwizzleWidth(descriptor.swizzle) / kChunkBytes;
  const int atom_k = descriptor.swizzle == Swizzle::k128B32BAtom ? 4 : 8;
  const bool swapped = descriptor.swizzle == Swizzle::kNone;
  const uint32_t chunk_stride = swapped ? descriptor.stride_offset : descriptor.leading_offset;
  const uint32_t k_stride = swapped ? descriptor.leading_offset : descriptor.stride_offset;
  const uint32_t address = descriptor.start_address + chunk % atom_chunks * kChunkBytes +
                           chunk / atom_chunks * chunk_stride + k % atom_k * atom_chunks * kChunkBytes +
                           k / atom_k * k_stride;
  return ApplySwizzle(descriptor.swizzle, address, descriptor.base_offset);
}

}  // namespace tessera::ptx
