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

// Codes of 16 columns (8 bytes, two columns each) to the two 32-bit lanes of the tile's halves.
void PackCodes(const uint8_t* codes, uint32_t lanes[2]) {
  for (int half = 0; half < 2; ++half) {
    uint32_t even = 0;
    uint32_t odd = 0;
    for (int j = 0; j < 4; ++j) {
      const uint32_t byte = codes[half * 4 + j];
      even |= (byte & 0xfu) << (4 * j);
      odd |= (byte >> 4) << (4 * j);
    }
    lanes[half] = even | (odd << 16);
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
  const int64_t blocks = source.k / nvfp4::kBlockSize;
  int64_t bad_row = kNoRow;
  std::memset(dst, 0, (blocks + 3) / 4 * kNvfp4GroupBytes);
  const int64_t first_row = tile * kTileRows;
  const int64_t rows = std::min(kTileRows, source.n - first_row);
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* codes = source.codes + (first_row + r) * (source.k / 2);
    const uint8_t* scales = source.scales + (first_row + r) * (source.k / Scales::kBlock);
    for (int64_t block = 0; block < blocks; ++block) {
      std::byte* group = dst + block / 4 * kNvfp4GroupBytes;
      const uint8_t scale = scales[block / (Scales::kBlock / nvfp4::kBlockSize)];
      if (Scales::Bad(scale)) bad_row = std::min(bad_row, first_row + r);
      group[block % 4 * kTileRows + r] = static_cast<std::byte>(scale);
      uint32_t lanes[2];
      PackCodes(codes + block * 8, lanes);
      std::memcpy(group + 64 + block % 4 * 128 + r * 4, &lanes[0], 4);
      std::memcpy(group + 64 + block % 4 * 128 + 64 + r * 4, &lanes[1], 4);
    }
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

// Returns the first row with a NaN or a bad scale, else kNoRow.
int64_t PackFp8Tile(const Fp8Source& source, int64_t tile, std::byte* dst) {
  const int64_t groups = (source.k + kFp8GroupColumns - 1) / kFp8GroupColumns;
  const int64_t scale_columns = (source.k + source.columns_per_scale - 1) / source.columns_per_scale;
  const int64_t first_row = tile * kTileRows;
  const int64_t rows = std::min(kTileRows, source.n - first_row);
  int64_t bad_row = kNoRow;
  std::memset(dst, 0, groups * 64 + (source.k + 3) / 4 * 64);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = first_row + r;
    const uint8_t* codes = source.codes + row * source.k;
    bool bad = false;
    for (int64_t g = 0; g < groups; ++g) {
      std::byte* group = dst + g * kFp8GroupBytes;
      const int64_t begin = g * kFp8GroupColumns;
      const float scale =
          source.scales[row * scale_columns + begin / source.columns_per_scale] * kFp8ScaleFactor;
      bad |= !(scale >= 0 && std::isfinite(scale));
      std::memcpy(group + 4 * r, &scale, sizeof(scale));
      const int64_t end = std::min(begin + kFp8GroupColumns, source.k);
      std::byte* out = group + 64 + r;
      for (int64_t c = begin; c < end; ++c, out += 16) {
        bad |= (codes[c] & 0x7f) == nvfp4::kE4M3NaN;
        *out = static_cast<std::byte>(codes[c]);
      }
    }
    if (bad) bad_row = std::min(bad_row, row);
  }
  return bad_row;
}

template <typename T, typename Convert>
void PackDenseTile(const DenseSource& source, int64_t tile, std::byte* dst, Convert convert) {
  const T* data = static_cast<const T*>(source.data);
  const int64_t pairs = (source.k + 1) / 2;
  Bf16* out = reinterpret_cast<Bf16*>(dst);
  for (int64_t r = 0; r < kTileRows; ++r) {
    const int64_t row = tile * kTileRows + r;
    for (int64_t p = 0; p < pairs; ++p) {
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t column = 2 * p + i;
        const bool inside = row < source.n && column < source.k;
        out[p * 32 + r * 2 + i] = inside ? convert(data[row * source.k + column]) : Bf16{};
      }
    }
  }
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
