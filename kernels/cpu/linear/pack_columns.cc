#include "kernels/cpu/linear/pack_columns.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/nvfp4/nvfp4.h"

namespace tessera::cpu {
namespace {

typedef uint8_t U8x16 __attribute__((vector_size(16)));
typedef uint16_t U16x8 __attribute__((vector_size(16)));
typedef uint32_t U32x4 __attribute__((vector_size(16)));

// Columns that are read side by side, few enough for the processor to follow each of them.
constexpr int64_t kColumnsAtOnce = 32;
constexpr int64_t kFp8TilesAtOnce = 64 / kTileRows;

template <typename T>
T Load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

absl::Status CheckRange(int64_t n, int64_t k, int64_t first, int64_t count, const void* data,
                        const std::byte* dst) {
  const int64_t end = first + count;
  if (n <= 0 || k <= 0 || first < 0 || count <= 0 || end > k || first % kColumnRangeStep != 0 ||
      (end != k && end % kColumnRangeStep != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("columns [", first, ", ", end, ") of weights of shape [", n, ", ", k, "]"));
  }
  if (data == nullptr || dst == nullptr || reinterpret_cast<uintptr_t>(dst) % kPackedAlignment != 0) {
    return absl::InvalidArgumentError("weights: null or misaligned source or destination");
  }
  return absl::OkStatus();
}

absl::Status BadValue(const char* what, int64_t first, int64_t count) {
  return absl::InvalidArgumentError(absl::StrCat("columns [", first, ", ", first + count, ") hold ", what));
}

// Bytes of up to sixteen rows; rows that are not there are zero.
U8x16 LoadRows(const ColumnUnits& units, int64_t row, int64_t rows, int64_t column) {
  const uint8_t* from = units.data + row * units.row_stride + column * units.column_stride;
  if (rows == kTileRows && units.row_stride == 1) return Load<U8x16>(from);
  uint8_t bytes[kTileRows] = {};
  for (int64_t r = 0; r < rows; ++r) bytes[r] = from[r * units.row_stride];
  return Load<U8x16>(bytes);
}

// Lane r of the result is bytes r of a, b, c and d, a's lowest.
void StoreLanes(U8x16 a, U8x16 b, U8x16 c, U8x16 d, std::byte* dst) {
  const auto low = [](U8x16 x, U8x16 y) {
    return __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  };
  const auto high = [](U8x16 x, U8x16 y) {
    return __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  };
  const auto store = [&](U8x16 ab, U8x16 cd, std::byte* out) {
    const U16x8 x = reinterpret_cast<U16x8>(ab), y = reinterpret_cast<U16x8>(cd);
    const U16x8 first = __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
    const U16x8 second = __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
    std::memcpy(out, &first, sizeof(first));
    std::memcpy(out + 16, &second, sizeof(second));
  };
  store(low(a, b), low(c, d), dst);
  store(high(a, b), high(c, d), dst + 32);
}

// Sixteen rows of BF16 in each of two columns, side by side.
void PackPairNextToEachOther(const uint8_t* even, const uint8_t* odd, std::byte* dst) {
  for (int64_t half = 0; half < 2; ++half, dst += 32) {
    const U16x8 a = Load<U16x8>(even + 16 * half), b = Load<U16x8>(odd + 16 * half);
    const U16x8 first = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    const U16x8 second = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    std::memcpy(dst, &first, sizeof(first));
    std::memcpy(dst + 16, &second, sizeof(second));
  }
}

// The same of every other row. Reads the two bytes behind the last row.
void PackPairOfEveryOther(const uint8_t* even, const uint8_t* odd, std::byte* dst) {
  for (int64_t quarter = 0; quarter < 4; ++quarter) {
    const U32x4 a = Load<U32x4>(even + 16 * quarter), b = Load<U32x4>(odd + 16 * quarter);
    const U32x4 lanes = (a & 0xffffu) | b << 16;
    std::memcpy(dst + 16 * quarter, &lanes, sizeof(lanes));
  }
}

template <typename T, typename Convert>
void PackPair(const ColumnUnits& values, int64_t row, int64_t rows, int64_t column, bool has_odd,
              std::byte* dst, Convert convert) {
  const uint8_t* even = values.data + row * values.row_stride + column * values.column_stride;
  Bf16 lanes[kTileRows][2] = {};
  for (int64_t r = 0; r < rows; ++r) {
    lanes[r][0] = convert(Load<T>(even + r * values.row_stride));
    if (has_odd) lanes[r][1] = convert(Load<T>(even + r * values.row_stride + values.column_stride));
  }
  std::memcpy(dst, lanes, sizeof(lanes));
}

void PackDensePair(const DenseColumns& source, int64_t row, int64_t column, std::byte* dst) {
  const ColumnUnits& values = source.values;
  const int64_t rows = std::min(kTileRows, source.n - row);
  const bool has_odd = column + 1 < source.k;
  switch (source.type) {
    case DenseType::kBf16: {
      const uint8_t* even = values.data + row * values.row_stride + column * values.column_stride;
      if (rows == kTileRows && has_odd && values.row_stride == 2) {
        return PackPairNextToEachOther(even, even + values.column_stride, dst);
      }
      if (row + kTileRows < source.n && has_odd && values.row_stride == 4) {
        return PackPairOfEveryOther(even, even + values.column_stride, dst);
      }
      return PackPair<uint16_t>(values, row, rows, column, has_odd, dst, [](uint16_t v) { return Bf16{v}; });
    }
    case DenseType::kF16:
      return PackPair<uint16_t>(values, row, rows, column, has_odd, dst,
                                [](uint16_t v) { return ToBf16(HalfBitsToFloat(v)); });
    case DenseType::kF32:
      return PackPair<float>(values, row, rows, column, has_odd, dst, [](float v) { return ToBf16(v); });
  }
}

bool AnySet(U8x16 bytes) {
  uint64_t words[2];
  std::memcpy(words, &bytes, sizeof(words));
  return (words[0] | words[1]) != 0;
}

// A group of 64 columns, or what is left of them, of a tile. False for a bad scale.
bool PackNvfp4Group(const Nvfp4Columns& source, int64_t group, int64_t row, std::byte* dst) {
  constexpr int64_t kBlocks = kNvfp4GroupColumns / nvfp4::kBlockSize;
  const int64_t rows = std::min(kTileRows, source.n - row);
  const int64_t blocks = std::min(kBlocks, source.k / nvfp4::kBlockSize - group * kBlocks);
  U8x16 bad = {};
  if (blocks < kBlocks) std::memset(dst, 0, kNvfp4GroupBytes);
  for (int64_t b = 0; b < blocks; ++b) {
    const U8x16 scales = LoadRows(source.scales, row, rows, group * kBlocks + b);
    bad |= reinterpret_cast<U8x16>(scales >= nvfp4::kE4M3NaN);  // negative ones too
    std::memcpy(dst + b * kTileRows, &scales, sizeof(scales));
    for (int64_t half = 0; half < 2; ++half) {
      U8x16 pairs[4];
      for (int64_t i = 0; i < 4; ++i) {
        pairs[i] = LoadRows(source.codes, row, rows, group * kNvfp4GroupColumns / 2 + b * 8 + half * 4 + i);
      }
      StoreLanes((pairs[0] & 0x0f) | pairs[1] << 4, (pairs[2] & 0x0f) | pairs[3] << 4,
                 pairs[0] >> 4 | (pairs[1] & 0xf0), pairs[2] >> 4 | (pairs[3] & 0xf0),
                 dst + 64 + b * 128 + half * 64);
    }
  }
  return !AnySet(bad);
}

// A group of 128 columns, or what is left of them, of a tile and the next ones, up to a cache line of rows: however far
// apart columns lie, each line is read once. False for a NaN or a bad scale.
bool PackFp8Group(const Fp8Columns& source, int64_t group, int64_t first_tile, const PackedLinear& shape,
                  std::byte* dst) {
  constexpr float kScaleFactor = 256.0f;  // decoded values are divided by it
  const int64_t scale_columns = (source.k + source.columns_per_scale - 1) / source.columns_per_scale;
  const int64_t begin = group * kFp8GroupColumns;
  const int64_t columns = std::min(kFp8GroupColumns, source.k - begin);
  const int64_t end_tile = std::min(first_tile + kFp8TilesAtOnce, shape.num_tiles());
  bool good = true;
  U8x16 nan = {};
  const auto codes_of = [&](int64_t tile) {
    return dst + tile * shape.tile_bytes() + group * kFp8GroupBytes + kTileRows * sizeof(float);
  };
  for (int64_t tile = first_tile; tile < end_tile; ++tile) {
    const int64_t row = tile * kTileRows;
    float scales[kTileRows] = {};
    for (int64_t r = 0; r < std::min(kTileRows, source.n - row); ++r) {
      scales[r] = source.scales[(row + r) * scale_columns + begin / source.columns_per_scale] * kScaleFactor;
      good = good && scales[r] >= 0 && std::isfinite(scales[r]);
    }
    std::memcpy(codes_of(tile) - sizeof(scales), scales, sizeof(scales));
    std::memset(codes_of(tile) + columns * kTileRows, 0, ((columns + 3) / 4 * 4 - columns) * kTileRows);
  }
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t tile = first_tile; tile < end_tile; ++tile) {
      const int64_t row = tile * kTileRows;
      const U8x16 codes = LoadRows(source.codes, row, std::min(kTileRows, source.n - row), begin + c);
      nan |= reinterpret_cast<U8x16>((codes & 0x7f) == nvfp4::kE4M3NaN);
      std::memcpy(codes_of(tile) + c * kTileRows, &codes, sizeof(codes));
    }
  }
  return good && !AnySet(nan);
}

PackedLinear Shape(WeightFormat format, int64_t n, int64_t k) {
  PackedLinear shape;
  shape.format = format;
  shape.n = n;
  shape.k = k;
  return shape;
}

}  // namespace

absl::Status PackDense(const DenseColumns& source, int64_t first, int64_t count, std::byte* dst) {
  absl::Status status = CheckRange(source.n, source.k, first, count, source.values.data, dst);
  if (!status.ok()) return status;
  const PackedLinear shape = Shape(WeightFormat::kBf16, source.n, source.k);
  for (int64_t begin = first; begin < first + count; begin += kColumnsAtOnce) {
    const int64_t end = std::min(begin + kColumnsAtOnce, first + count);
    for (int64_t tile = 0; tile < shape.num_tiles(); ++tile) {
      std::byte* out = dst + tile * shape.tile_bytes();
      for (int64_t column = begin; column < end; column += 2) {
        PackDensePair(source, tile * kTileRows, column, out + column / 2 * 64);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status PackNvfp4(const Nvfp4Columns& source, int64_t first, int64_t count, std::byte* dst) {
  absl::Status status = CheckRange(source.n, source.k, first, count, source.codes.data, dst);
  if (!status.ok()) return status;
  if (source.scales.data == nullptr || source.k % nvfp4::kBlockSize != 0) {
    return absl::InvalidArgumentError(absl::StrCat("NVFP4 weights of shape [", source.n, ", ", source.k,
                                                   "]: no scales, or columns that are no multiple of 16"));
  }
  const PackedLinear shape = Shape(WeightFormat::kNvfp4, source.n, source.k);
  bool good = true;
  for (int64_t group = first / kNvfp4GroupColumns; group * kNvfp4GroupColumns < first + count; ++group) {
    for (int64_t tile = 0; tile < shape.num_tiles(); ++tile) {
      good &= PackNvfp4Group(source, group, tile * kTileRows,
                             dst + tile * shape.tile_bytes() + group * kNvfp4GroupBytes);
    }
  }
  return good ? absl::OkStatus() : BadValue("a block scale that is negative or NaN", first, count);
}

absl::Status PackFp8(const Fp8Columns& source, int64_t first, int64_t count, std::byte* dst) {
  absl::Status status = CheckRange(source.n, source.k, first, count, source.codes.data, dst);
  if (!status.ok()) return status;
  if (source.scales == nullptr || source.columns_per_scale <= 0 ||
      (source.columns_per_scale < source.k && source.columns_per_scale % kFp8GroupColumns != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("FP8 weights: no scales, or one for ", source.columns_per_scale, " columns"));
  }
  const PackedLinear shape = Shape(WeightFormat::kFp8, source.n, source.k);
  bool good = true;
  for (int64_t group = first / kFp8GroupColumns; group * kFp8GroupColumns < first + count; ++group) {
    for (int64_t tile = 0; tile < shape.num_tiles(); tile += kFp8TilesAtOnce) {
      good &= PackFp8Group(source, group, tile, shape, dst);
    }
  }
  return good ? absl::OkStatus()
              : BadValue("a NaN, or a scale that is negative, not finite or too large", first, count);
}

}  // namespace tessera::cpu
