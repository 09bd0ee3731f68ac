// Operands for the tests: random codes placed in an image of shared memory, and their values.
#ifndef TESSERA_TESTS_PTX_TENSOR_TEST_TILE_H_
#define TESSERA_TESTS_PTX_TENSOR_TEST_TILE_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/ptx/tensor/canonical_layout.h"
#include "tests/ptx/tensor/formats.h"
#include "tests/ptx/tensor/matmul.h"
#include "tests/ptx/tensor/smem_descriptor.h"

namespace tessera::ptx {

// Writes `width` bits at a bit offset.
inline void PutBits(std::vector<uint8_t>& bytes, size_t bit, int width, uint32_t value) {
  for (int i = 0; i < width; ++i, ++bit) {
    bytes[bit / 8] =
        static_cast<uint8_t>((bytes[bit / 8] & ~(1 << (bit % 8))) | ((value >> i & 1) << (bit % 8)));
  }
}

struct Tile {
  Matrix values;
  std::vector<uint32_t> codes;  // row-major
  MatrixDescriptor descriptor;
};

// A code whose value is a small integer or a short fraction, never NaN.
inline uint32_t RandomCode(ElementType type, std::mt19937& random) {
  if (BitsOf(type) <= 6) return random() % (1u << BitsOf(type));
  if (IsInteger(type)) return random() & 0xff;
  return Encode(type, static_cast<int>(random() % 17) - 8, Overflow::kSpecial);
}

// Dense tile of rows x k elements at `start`, in a layout of the mode, whose descriptor it makes. A start that is no multiple
// of the swizzle's period needs the base offset (start >> 7) & 7.
inline Tile MakeTile(std::vector<uint8_t>& image, uint32_t start, Major major, Swizzle swizzle,
                     ElementType type, Packing packing, int rows, int k, std::mt19937& random,
                     uint8_t base_offset = 0) {
  Tile tile;
  tile.values = Matrix(rows, k);
  MatrixDescriptor& d = tile.descriptor;
  d.start_address = start;
  d.swizzle = swizzle;
  d.base_offset = base_offset;
  const int width = SwizzleWidth(swizzle);
  const int elements = ChunkElements(type, packing);
  if (major == Major::kK) {
    d.stride_offset = 8 * width;
    d.leading_offset = swizzle == Swizzle::kNone ? rows * 16 : 16;
  } else if (swizzle == Swizzle::kNone) {
    d.stride_offset = 128;
    d.leading_offset = rows / elements * 128;
  } else {
    const int atom_k = swizzle == Swizzle::k128B32BAtom ? 4 : 8;
    d.stride_offset = atom_k * width;
    d.leading_offset = k * width;
  }
  for (int row = 0; row < rows; ++row) {
    for (int x = 0; x < k; ++x) {
      const uint32_t code = RandomCode(type, random);
      tile.codes.push_back(code);
      tile.values.at(row, x) = Decode(type, code);
      const int along = major == Major::kK ? x : row;
      const uint32_t chunk = major == Major::kK ? KMajorChunkAddress(d, row, along / elements)
                                                : MnMajorChunkAddress(d, x, along / elements);
      PutBits(image, size_t{8} * chunk + along % elements * BitsOf(type), BitsOf(type), code);
    }
  }
  return tile;
}

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_TEST_TILE_H_
