// Boxes of a tensor: which bytes of global and shared memory belong together.
#ifndef TESSERA_TESTS_PTX_TMA_TENSOR_BOX_H_
#define TESSERA_TESTS_PTX_TMA_TENSOR_BOX_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tests/ptx/tma/tensor_map.h"

namespace tessera::ptx {

// Required of a box's address in shared memory, whatever the swizzle.
inline constexpr uint32_t kBoxAlignment = 128;

// Bytes that are contiguous in both memories, at most 16 of a box. Of the `bytes` of global memory from `global` on,
// those from `begin` to `end` lie inside the tensor; the others must not be touched: a load writes the fill value for
// them, a store skips them.
struct BoxPiece {
  uint32_t shared = 0;  // address, swizzled
  uint64_t global = 0;  // address; of no meaning where begin == end
  uint32_t bytes = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
  // Shared-memory bytes after the piece that the copy leaves undefined (padded sub-byte types).
  uint32_t padding = 0;
};

enum class BoxDirection { kLoad, kStore };  // global to shared, shared to global

// The pieces of the box whose first element has the coordinates `at` (one a dimension, the innermost first), in the
// order of the rows. `shared` is the box's address within a CTA's shared memory.
// INVALID_ARGUMENT: a number of coordinates, an address or a coordinate that the tensor map does not allow.
absl::StatusOr<std::vector<BoxPiece>> BoxPieces(const TensorMap& map, absl::Span<const int32_t> at,
                                                uint32_t shared, BoxDirection direction);

// The same for .tile::gather4 and .tile::scatter4: four rows of a two-dimensional tensor whose boxes have one row;
// `at` is {column, row 0, row 1, row 2, row 3}. The rows follow each other in shared memory.
absl::StatusOr<std::vector<BoxPiece>> FourRowPieces(const TensorMap& map, absl::Span<const int32_t> at,
                                                    uint32_t shared, BoxDirection direction);

// Byte `offset` of an element outside the tensor.
uint8_t FillByte(const TensorMap& map, uint32_t offset);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TMA_TENSOR_BOX_H_
