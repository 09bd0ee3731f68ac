// Packing of weights that are stored by columns, as stacked experts often are: a range of columns at a time, so that a
// loader may let go of the columns that are packed. The result is the one of packed_linear.h.
#ifndef TESSERA_KERNELS_CPU_LINEAR_PACK_COLUMNS_H_
#define TESSERA_KERNELS_CPU_LINEAR_PACK_COLUMNS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/linear/packed_linear.h"

namespace tessera::cpu {

// A matrix of units: an element, a pair of codes or a scale. Unit (r, c) begins at data + r * row_stride +
// c * column_stride, in bytes; no alignment is needed.
struct ColumnUnits {
  const uint8_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
};

// The members mean what they mean in DenseSource, Nvfp4Source and Fp8Source.
struct DenseColumns {
  ColumnUnits values;
  DenseType type = DenseType::kBf16;
  int64_t n = 0;
  int64_t k = 0;
};

struct Nvfp4Columns {
  ColumnUnits codes;   // unit c holds columns 2c and 2c + 1
  ColumnUnits scales;  // one a block of 16 columns
  int64_t n = 0;
  int64_t k = 0;
};

struct Fp8Columns {
  ColumnUnits codes;
  const float* scales = nullptr;
  int64_t columns_per_scale = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// A range of columns begins at a multiple of this and ends at one, or at k.
inline constexpr int64_t kColumnRangeStep = 128;

// Packs columns [first, first + count) of all rows into their places in dst, which is that of the whole matrix. Several
// threads may pack ranges of one matrix at once. INVALID_ARGUMENT for impossible shapes, and where the functions of
// packed_linear.h give it for a value; the message names the range alone.
absl::Status PackDense(const DenseColumns& source, int64_t first, int64_t count, std::byte* dst);
absl::Status PackNvfp4(const Nvfp4Columns& source, int64_t first, int64_t count, std::byte* dst);
absl::Status PackFp8(const Fp8Columns& source, int64_t first, int64_t count, std::byte* dst);

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_LINEAR_PACK_COLUMNS_H_
