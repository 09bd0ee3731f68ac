// Weights of a linear layer in the order in which the CPU kernels stream them.
//
// Packing happens once, at load, into memory that the caller owns; it keeps every value exactly. The layout
// is the same for all instruction sets. Rows are output features (n of them), columns input features (k).
// Rows are grouped in tiles of 16; the last tile is padded with zeros that never reach an output.
//
// BF16 tile: for each pair of columns (2p, 2p+1), 16 rows x 2 values = 64 bytes; row r at 32-bit lane r,
//   column 2p in its low half. An odd k is padded with one zero column. k may be any positive number.
//
// NVFP4 tile: groups of 64 columns (four blocks), 576 bytes each:
//   64 bytes   E4M3 scales, [block][row]
//   4 x 128    codes of a block of 16 columns: two halves of 8 columns, 64 bytes each. In a half, row r has
//              the 32-bit lane r; its low 16 bits hold columns 0, 2, 4, 6, its high 16 bits 1, 3, 5, 7, a
//              nibble each, from the least significant up.
//   Shifting a 64-byte half right by 0, 4, 8 or 12 in 16-bit words leaves in each word the index of one
//   element (bit 4 is a neighbour's; a table of twice 16 entries makes it harmless), so one 16-bit table
//   lookup gives 16 rows x 2 columns of BF16, ready for a BF16 pair dot product; no horizontal sum anywhere.
//   k must be a multiple of 16. When it is not one of 64, the last group's unused blocks are zero and are
//   never computed on.
//
// MXFP4 tile: the same, a block's scale being E8M0 and standing for each of its two halves of 16 columns; k is a
//   multiple of 32. Scales of 2^-119 and less count as zero.
//
// FP8 tile: groups of 128 columns: 16 float scales, one a row, times 256; then for each pair of columns the 16 rows'
//   E4M3 codes of the even column and those of the odd one, 32 bytes. The last group holds as many columns as there
//   are, rounded up to 4.
#ifndef TESSERA_KERNELS_CPU_LINEAR_PACKED_LINEAR_H_
#define TESSERA_KERNELS_CPU_LINEAR_PACKED_LINEAR_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/nvfp4/bf16.h"

namespace tessera::cpu {

inline constexpr int64_t kTileRows = 16;
inline constexpr size_t kPackedAlignment = 64;
inline constexpr int64_t kNvfp4GroupColumns = 64;
inline constexpr int64_t kNvfp4GroupBytes = 64 + 4 * 128;
inline constexpr int64_t kFp8GroupColumns = 128;
inline constexpr int64_t kFp8GroupBytes = 64 + 64 * 32;

enum class WeightFormat : uint8_t { kBf16, kNvfp4, kMxfp4, kFp8 };

// A view; the bytes belong to whoever packed them and must outlive it.
struct PackedLinear {
  WeightFormat format = WeightFormat::kBf16;
  int64_t n = 0;  // output features
  int64_t k = 0;  // input features
  const std::byte* data = nullptr;
  float tensor_scale = 1.0f;  // multiplies every output

  int64_t num_tiles() const { return (n + kTileRows - 1) / kTileRows; }
  int64_t tile_bytes() const {
    switch (format) {
      case WeightFormat::kBf16:
        return (k + 1) / 2 * 64;
      case WeightFormat::kFp8:
        return (k + kFp8GroupColumns - 1) / kFp8GroupColumns * 64 + (k + 3) / 4 * 64;
      default:
        return (k + kNvfp4GroupColumns - 1) / kNvfp4GroupColumns * kNvfp4GroupBytes;
    }
  }
  size_t bytes() const { return static_cast<size_t>(num_tiles() * tile_bytes()); }
};

// Bytes that a packed [n, k] takes; what dst below must hold, aligned to kPackedAlignment.
size_t PackedBytes(WeightFormat format, int64_t n, int64_t k);

// NVFP4 as ModelOpt stores it.
struct Nvfp4Source {
  const uint8_t* codes = nullptr;   // [n, k/2]; low nibble = even column
  const uint8_t* scales = nullptr;  // [n, k/16] E4M3FN, neither negative nor NaN
  float tensor_scale = 1.0f;        // finite
  int64_t n = 0;
  int64_t k = 0;  // a multiple of 16
};

// MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 with an E8M0 scale, 2^(scale - 127).
struct Mxfp4Source {
  const uint8_t* codes = nullptr;   // [n, k/2]; low nibble = even column
  const uint8_t* scales = nullptr;  // [n, k/32], not 255 (NaN)
  int64_t n = 0;
  int64_t k = 0;  // a multiple of 32
};

// E4M3 codes with float scales for each row and run of columns.
struct Fp8Source {
  const uint8_t* codes = nullptr;  // [n, k] E4M3FN, no NaN
  const float* scales = nullptr;   // [n, ceil(k / columns_per_scale)], finite and at least 0, below 2^119
  int64_t columns_per_scale = 0;   // a multiple of 128, or at least k
  int64_t n = 0;
  int64_t k = 0;
};

enum class DenseType : uint8_t { kBf16, kF16, kF32 };

// Dense rows, row-major without gaps. F16 and F32 values are rounded to BF16 (to nearest, ties to even):
// that a loader passes them here is its decision to round.
struct DenseSource {
  const void* data = nullptr;  // [n, k]
  DenseType type = DenseType::kBf16;
  int64_t n = 0;
  int64_t k = 0;
};

// Packs into dst (PackedBytes(...) bytes). pool may be null: then the calling thread does it alone. Fails
// with INVALID_ARGUMENT on impossible shapes, on a scale that is no number of at least 0 (row and block are
// named), on a NaN among FP8 codes and on a tensor scale that is not finite; dst's content is then unspecified.
absl::StatusOr<PackedLinear> PackNvfp4(const Nvfp4Source& source, std::byte* dst, ThreadPool* pool);
absl::StatusOr<PackedLinear> PackMxfp4(const Mxfp4Source& source, std::byte* dst, ThreadPool* pool);
absl::StatusOr<PackedLinear> PackFp8(const Fp8Source& source, std::byte* dst, ThreadPool* pool);
absl::StatusOr<PackedLinear> PackDense(const DenseSource& source, std::byte* dst, ThreadPool* pool);

// Inverse of packing, for tests and debugging: row `row` as floats, block scales applied, tensor scale not.
void UnpackRow(const PackedLinear& weights, int64_t row, float* out);

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_LINEAR_PACKED_LINEAR_H_
