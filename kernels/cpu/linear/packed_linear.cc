#include "kernels/cpu/linear/packed_linear.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/nvfp4/nvfp4.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kNoRow = std::numeric_limits<int64_t>::max();

template <typename Fn>
void ForEachTile(int64_t tiles, ThreadPool* pool, Fn fn) {
  if (pool != nullptr) {
    pool->ParallelFor(tiles, fn);
  } else {
    for (int64_t i = 0; i < tiles; ++i) fn(i);
  }
}

absl::Status CheckShape(int64_t n, int64_t k, const void* data, const std::byte* dst) {
  if (n <= 0 || k <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights of shape [", n, ", ", k, "]: both must be positive"));
  }
  if (data == nullptr || dst == nullptr) {
    return absl::InvalidArgumentError("weights: null source or destination");
  }
  if (reinterpret_cast<uintptr_t>(dst) % kPackedAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("packed weights must be aligned to ", kPackedAlignment, " bytes"));
  }
  return absl::OkStatus();
}

// Two blocks of 16 columns (16 bytes of codes) to the 32-bit lanes of their halves: even columns' nibbles gathered in a
// lane's low 16 bits, odd columns' in its high ones.
typedef uint64_t U64x2 __attribute__((vector_size(16)));
typedef uint32_t U32x4 __attribute__((vector_size(16)));

U32x4 PackCodes(U64x2 bytes) {
  const auto gather = [](U64x2 nibbles) {
    nibbles = (nibbles | nibbles >> 4) & 0x00ff00ff00ff00ffu;
    return (nibbles | nibbles >> 8) & 0x0000ffff0000ffffu;
  };
  return reinterpret_cast<U32x4>(gather(bytes & 0x0f0f0f0f0f0f0f0fu) |
                                 gather(bytes >> 4 & 0x0f0f0f0f0f0f0f0fu) << 16);
}

// Codes of four blocks of columns and sixteen rows, `stride` bytes apart, four rows at a time.
void PackCodesOfGroup(const uint8_t* codes, int64_t stride, std::byte* dst) {
  for (int64_t pair = 0; pair < 2; ++pair) {
    for (int64_t r = 0; r < kTileRows; r += 4) {
      U32x4 row[4];
      for (int64_t i = 0; i < 4; ++i) {
        U64x2 bytes;
        std::memcpy(&bytes, codes + (r + i) * stride + pair * 16, sizeof(bytes));
        row[i] = PackCodes(bytes);
      }
      const U32x4 low01 = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
      const U32x4 low23 = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
      const U32x4 high01 = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
      const U32x4 high23 = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
      const U32x4 lanes[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                              __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                              __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                              __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
      std::byte* out = dst + pair * 256 + r * 4;
      for (int64_t half = 0; half < 4; ++half) std::memcpy(out + half * 64, &lanes[half], sizeof(U32x4));
    }
  }
}

// How the scales of a four-bit format are checked and stored.
struct E4M3Scales {
  static constexpr int64_t kBlock = 16;
  static bool Bad(uint8_t scale) { return scale >= nvfp4::kE4M3NaN; }
};
struct E8M0Scales {
  static constexpr int64_t kBlock = 32;
  static bool Bad(uint8_t scale) { return scale == 0xff; }
};

struct FourBitSource {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t n;
  int64_t k;
};

// Returns the first row with a bad scale, else kNoRow.
template <typename Scales>
int64_t PackFourBitTile(const FourBitSource& source, int64_t tile, std::byte* dst) {
  constexpr int64_t kBlocksPerScale = Scales::kBlock / nvfp4::kBlockSize;
  const int64_t blocks = source.k / nvfp4::kBlockSize;
  const int64_t code_stride = source.k / 2, scale_stride = source.k / Scales::kBlock;
  const int64_t first_row = tile * kTileRows;
  const int64_t rows = std::min(kTileRows, source.n - first_row);
  const uint8_t* codes = source.codes + first_row * code_stride;
  const uint8_t* scales = source.scales + first_row * scale_stride;
  int64_t bad_row = kNoRow;
  for (int64_t first = 0; first < blocks; first += 4, dst += kNvfp4GroupBytes, codes += 32) {
    const int64_t in_group = std::min<int64_t>(4, blocks - first);
    if (rows < kTileRows || in_group < 4) std::memset(dst, 0, kNvfp4GroupBytes);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t block = 0; block < in_group; ++block) {
        const uint8_t scale = scales[r * scale_stride + (first + block) / kBlocksPerScale];
        if (Scales::Bad(scale)) bad_row = std::min(bad_row, first_row + r);
        dst[block * kTileRows + r] = static_cast<std::byte>(scale);
      }
    }
    if (rows == kTileRows && in_group == 4) {
      PackCodesOfGroup(codes, code_stride, dst + 64);
      continue;
    }
    // At an edge: what is there, with zeros around it.
    uint8_t padded[kTileRows * 32] = {};
    for (int64_t r = 0; r < rows; ++r) std::memcpy(padded + r * 32, codes + r * code_stride, in_group * 8);
    PackCodesOfGroup(padded, 32, dst + 64);
  }
  return bad_row;
}

void NoteRow(int64_t row, std::atomic<int64_t>* first) {
  int64_t seen = first->load();
  while (row < seen && !first->compare_exchange_weak(seen, row)) {
  }
}

template <typename Scales>
absl::StatusOr<PackedLinear> PackFourBit(const char* name, const FourBitSource& source,
                                         const PackedLinear& packed, std::byte* dst, ThreadPool* pool) {
  if (absl::Status status = CheckShape(source.n, source.k, source.codes, dst); !status.ok()) return status;
  if (source.scales == nullptr)
    return absl::InvalidArgumentError(absl::StrCat(name, " weights: null scales"));
  if (source.k % Scales::kBlock != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, " weights of shape [", source.n, ", ", source.k,
                                                   "]: columns must be a multiple of ", Scales::kBlock));
  }
  std::atomic<int64_t> bad_row{kNoRow};
  ForEachTile(packed.num_tiles(), pool, [&](int64_t tile) {
    NoteRow(PackFourBitTile<Scales>(source, tile, dst + tile * packed.tile_bytes()), &bad_row);
  });
  if (bad_row.load() == kNoRow) return packed;
  const int64_t blocks = source.k / Scales::kBlock;
  const uint8_t* row = source.scales + bad_row.load() * blocks;
  const uint8_t* bad = std::find_if(row, row + blocks, Scales::Bad);
  const bool negative = Scales::kBlock == 16 && (*bad & 0x7f) != nvfp4::kE4M3NaN;
  return absl::InvalidArgumentError(absl::StrCat(
      name, " block scale at row ", bad_row.load(), ", block ", bad - row, " is ",
      negative ? "negative" : "NaN", " (0x", absl::Hex(*bad), "); scales must be finite and not negative"));
}

// Packed scales are multiplied by this, as decoded values are divided by it.
constexpr float kFp8ScaleFactor = 256.0f;

// Exchanges rows and columns of 8 x 8 bytes, a row a word, its first byte lowest.
void Transpose8x8(uint64_t rows[8]) {
  const auto exchange = [&](int distance, uint64_t mask) {
    for (int i = 0; i < 8; ++i) {
      if (i & distance) continue;
      const uint64_t moved = (rows[i] >> (8 * distance) ^ rows[i + distance]) & mask;
      rows[i] ^= moved << (8 * distance);
      rows[i + distance] ^= moved;
    }
  };
  exchange(4, 0x00000000ffffffffu);
  exchange(2, 0x0000ffff0000ffffu);
  exchange(1, 0x00ff00ff00ff00ffu);
}

bool HoldsNaN(const uint8_t* codes, int64_t count) {
  uint8_t any = 0;
  for (int64_t i = 0; i < count; ++i) any |= (codes[i] & 0x7f) == nvfp4::kE4M3NaN;
  return any != 0;
}

// Returns the first row with a NaN or a bad scale, else kNoRow.
int64_t PackFp8Tile(const Fp8Source& source, int64_t tile, std::byte* dst) {
  const int64_t groups = (source.k + kFp8GroupColumns - 1) / kFp8GroupColumns;
  const int64_t scale_columns = (source.k + source.columns_per_scale - 1) / source.columns_per_scale;
  const int64_t first_row = tile * kTileRows;
  const int64_t rows = std::min(kTileRows, source.n - first_row);
  int64_t bad_row = kNoRow;
  if (rows < kTileRows || source.k % 4 != 0) std::memset(dst, 0, groups * 64 + (source.k + 3) / 4 * 64);
  for (int64_t g = 0; g < groups; ++g, dst += kFp8GroupBytes) {
    const int64_t begin = g * kFp8GroupColumns;
    const int64_t columns = std::min(kFp8GroupColumns, source.k - begin);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = first_row + r;
      const float scale =
          source.scales[row * scale_columns + begin / source.columns_per_scale] * kFp8ScaleFactor;
      std::memcpy(dst + 4 * r, &scale, sizeof(scale));
      const bool good =
          scale >= 0 && std::isfinite(scale) && !HoldsNaN(source.codes + row * source.k + begin, columns);
      if (!good) bad_row = std::min(bad_row, row);
    }
    std::byte* out = dst + 64;
    for (int64_t c = 0; c < columns; c += 8) {
      const int64_t width = std::min<int64_t>(8, columns - c);
      for (int64_t half = 0; half < rows; half += 8) {
        uint64_t words[8] = {};
        for (int64_t r = half; r < std::min(half + 8, rows); ++r) {
          std::memcpy(&words[r - half], source.codes + (first_row + r) * source.k + begin + c, width);
        }
        Transpose8x8(words);
        for (int64_t i = 0; i < width; ++i) std::memcpy(out + (c + i) * kTileRows + half, &words[i], 8);
      }
    }
  }
  return bad_row;
}

// Pairs of columns of a tile at once: what they become stays in the first cache while the rows come one by one.
constexpr int64_t kPairsAtOnce = 16;

template <typename T, typename Convert>
void PackDenseTile(const DenseSource& source, int64_t tile, std::byte* dst, Convert convert) {
  const T* data = static_cast<const T*>(source.data) + tile * kTileRows * source.k;
  const int64_t rows = std::min(kTileRows, source.n - tile * kTileRows);
  const int64_t pairs = (source.k + 1) / 2, whole_pairs = source.k / 2;
  Bf16* out = reinterpret_cast<Bf16*>(dst);
  if (rows < kTileRows || whole_pairs < pairs) std::memset(static_cast<void*>(out), 0, pairs * 64);
  for (int64_t begin = 0; begin < whole_pairs; begin += kPairsAtOnce) {
    const int64_t end = std::min(begin + kPairsAtOnce, whole_pairs);
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = data + r * source.k;
      for (int64_t p = begin; p < end; ++p) {
        out[p * 32 + r * 2] = convert(row[2 * p]);
        out[p * 32 + r * 2 + 1] = convert(row[2 * p + 1]);
      }
    }
  }
  if (whole_pairs == pairs) return;
  for (int64_t r = 0; r < rows; ++r)
    out[whole_pairs * 32 + r * 2] = convert(data[r * source.k + source.k - 1]);
}

}  // namespace

size_t PackedBytes(WeightFormat format, int64_t n, int64_t k) {
  PackedLinear shape;
  shape.format = format;
  shape.n = n;
  shape.k = k;
  return shape.bytes();
}

absl::StatusOr<PackedLinear> PackNvfp4(const Nvfp4Source& source, std::byte* dst, ThreadPool* pool) {
  if (!std::isfinite(source.tensor_scale)) {
    return absl::InvalidArgumentError(absl::StrCat("NVFP4 tensor scale is ", source.tensor_scale));
  }
  return PackFourBit<E4M3Scales>("NVFP4", {source.codes, source.scales, source.n, source.k},
                                 {WeightFormat::kNvfp4, source.n, source.k, dst, source.tensor_scale}, dst,
                                 pool);
}

absl::StatusOr<PackedLinear> PackMxfp4(const Mxfp4Source& source, std::byte* dst, ThreadPool* pool) {
  return PackFourBit<E8M0Scales>("MXFP4", {source.codes, source.scales, source.n, source.k},
                                 {WeightFormat::kMxfp4, source.n, source.k, dst, 1.0f}, dst, pool);
}

absl::StatusOr<PackedLinear> PackFp8(const Fp8Source& source, std::byte* dst, ThreadPool* pool) {
  if (absl::Status status = CheckShape(source.n, source.k, source.codes, dst); !status.ok()) return status;
  if (source.scales == nullptr) return absl::InvalidArgumentError("FP8 weights: null scales");
  if (source.columns_per_scale < source.k &&
      (source.columns_per_scale <= 0 || source.columns_per_scale % kFp8GroupColumns != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("FP8 weights: a scale for ", source.columns_per_scale,
                                                   " columns; expected a multiple of ", kFp8GroupColumns));
  }
  PackedLinear packed{WeightFormat::kFp8, source.n, source.k, dst, 1.0f};
  std::atomic<int64_t> bad_row{kNoRow};
  ForEachTile(packed.num_tiles(), pool, [&](int64_t tile) {
    NoteRow(PackFp8Tile(source, tile, dst + tile * packed.tile_bytes()), &bad_row);
  });
  if (bad_row.load() != kNoRow) {
    return absl::InvalidArgumentError(absl::StrCat(
        "FP8 row ", bad_row.load(), " holds a NaN, or a scale that is negative, not finite or too large"));
  }
  return packed;
}

absl::StatusOr<PackedLinear> PackDense(const DenseSource& source, std::byte* dst, ThreadPool* pool) {
  if (absl::Status status = CheckShape(source.n, source.k, source.data, dst); !status.ok()) return status;
  const PackedLinear packed{WeightFormat::kBf16, source.n, source.k, dst, 1.0f};
  ForEachTile(packed.num_tiles(), pool, [&](int64_t tile) {
    std::byte* out = dst + tile * packed.tile_bytes();
    switch (source.type) {
      case DenseType::kBf16:
        return PackDenseTile<Bf16>(source, tile, out, [](Bf16 v) { return v; });
      case DenseType::kF16:
        return PackDenseTile<uint16_t>(source, tile, out,
                                       [](uint16_t v) { return ToBf16(HalfBitsToFloat(v)); });
      case DenseType::kF32:
        return PackDenseTile<float>(source, tile, out, [](float v) { return ToBf16(v); });
    }
  });
  return packed;
}

void UnpackRow(const PackedLinear& weights, int64_t row, float* out) {
  const std::byte* tile = weights.data + row / kTileRows * weights.tile_bytes();
  const int64_t r = row % kTileRows;
  for (int64_t column = 0; column < weights.k; ++column) {
    if (weights.format == WeightFormat::kBf16) {
      Bf16 value;
      std::memcpy(&value, tile + column / 2 * 64 + r * 4 + column % 2 * 2, 2);
      out[column] = ToFloat(value);
      continue;
    }
    if (weights.format == WeightFormat::kFp8) {
      const std::byte* group = tile + column / kFp8GroupColumns * kFp8GroupBytes;
      float scale;
      std::memcpy(&scale, group + 4 * r, sizeof(scale));
      const uint8_t code = static_cast<uint8_t>(group[64 + column % kFp8GroupColumns * 16 + r]);
      out[column] = nvfp4::E4M3ToFloat(code) * (scale / kFp8ScaleFactor);
      continue;
    }
    const int64_t block = column / 16;
    const std::byte* group = tile + block / 4 * kNvfp4GroupBytes;
    uint32_t lane;
    std::memcpy(&lane, group + 64 + block % 4 * 128 + column % 16 / 8 * 64 + r * 4, 4);
    const int shift = static_cast<int>(column % 2 * 16 + column % 8 / 2 * 4);
    const uint8_t code = static_cast<uint8_t>((lane >> shift) & 0xf);
    const uint8_t scale = static_cast<uint8_t>(group[block % 4 * 16 + r]);
    out[column] = weights.format == WeightFormat::kNvfp4
                      ? nvfp4::DequantizeUnscaled(code, scale)
                      : nvfp4::E2M1ToFloat(code) * nvfp4::E8M0ToFloat(scale);
  }
}

}  // namespace tessera::cpu
