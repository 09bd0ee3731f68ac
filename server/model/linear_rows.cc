#include "server/model/linear_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/nvfp4/nvfp4.h"
#include "server/model/safetensors_header.h"

namespace tessera {
namespace {

// Units of N bytes into row-major order, by way of square tiles of one cache line's width: columns are read, and rows
// written, a line at a time.
template <int N>
void Gather(const UnitMatrix& view, int64_t first, int64_t count, int64_t columns, uint8_t* out) {
  constexpr int64_t kSide = 64 / N;
  uint8_t tile[kSide * kSide * N];
  for (int64_t column = 0; column < columns; column += kSide) {
    const int64_t width = std::min(kSide, columns - column);
    for (int64_t row = 0; row < count; row += kSide) {
      const int64_t height = std::min(kSide, count - row);
      for (int64_t c = 0; c < width; ++c) {
        const uint8_t* from = view.data + (first + row) * view.row_stride + (column + c) * view.column_stride;
        for (int64_t r = 0; r < height; ++r, from += view.row_stride) {
          std::memcpy(tile + (r * kSide + c) * N, from, N);
        }
      }
      for (int64_t r = 0; r < height; ++r) {
        std::memcpy(out + ((row + r) * columns + column) * N, tile + r * kSide * N, width * N);
      }
    }
  }
}

const uint8_t* ReadUnits(const UnitMatrix& view, int64_t first, int64_t count, int64_t columns, int64_t unit,
                         std::vector<uint8_t>* buffer) {
  const int64_t row_bytes = columns * unit;
  if (view.column_stride == unit && view.row_stride == row_bytes) return view.data + first * row_bytes;
  buffer->resize(count * row_bytes);
  if (view.column_stride == unit) {
    for (int64_t r = 0; r < count; ++r) {
      std::memcpy(buffer->data() + r * row_bytes, view.data + (first + r) * view.row_stride, row_bytes);
    }
  } else if (unit == 1) {
    Gather<1>(view, first, count, columns, buffer->data());
  } else if (unit == 2) {
    Gather<2>(view, first, count, columns, buffer->data());
  } else {
    Gather<4>(view, first, count, columns, buffer->data());
  }
  return buffer->data();
}

bool IsFourBit(WeightFormat format) {
  return format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4;
}

int64_t ScaleColumns(const LinearWeights& weights) {
  return (weights.in + weights.scale_block_columns - 1) / weights.scale_block_columns;
}

const uint8_t* Fp8ScaleAt(const LinearWeights& weights, int64_t row, int64_t column) {
  const int64_t block_row = (weights.first_row + row * weights.row_step) / weights.scale_block_rows;
  return weights.scales.data + block_row * weights.scales.row_stride + column * weights.scales.column_stride;
}

float Fp8Scale(const LinearWeights& weights, int64_t row, int64_t column) {
  const uint8_t* data = Fp8ScaleAt(weights, row, column);
  switch (weights.scale_dtype) {
    case DType::kF8E8M0:
      return nvfp4::E8M0ToFloat(*data);
    case DType::kBf16:
      return DenseToFloat(WeightFormat::kBf16, data);
    case DType::kF16:
      return DenseToFloat(WeightFormat::kF16, data);
    default:
      return DenseToFloat(WeightFormat::kF32, data);
  }
}

absl::Status BadScale(const LinearWeights& weights, const SafetensorsReader& reader, int64_t row,
                      int64_t block, const uint8_t* at, const std::string& found) {
  const TensorView& tensor = *weights.scale_tensor;
  return absl::InvalidArgumentError(
      absl::StrCat(reader.path(tensor), ": tensor \"", Printable(tensor.name), "\", row ", row, ", block ",
                   block, " (byte ", tensor.file_offset + (at - tensor.data.data()),
                   " of the file): a block scale must be a number of at least 0, ", "found ", found));
}

}  // namespace

LinearRows RowReader::Read(const LinearWeights& weights, int64_t first, int64_t count) {
  LinearRows rows;
  const bool four_bit = IsFourBit(weights.format);
  const int64_t units = four_bit ? weights.in / 2 : weights.in;
  const int64_t unit = FormatRowBytes(weights.format, weights.in) / units;
  rows.data = ReadUnits(weights.data, first, count, units, unit, &data_);
  if (four_bit) {
    rows.scale_columns = weights.in / FormatBlock(weights.format);
    rows.scales = ReadUnits(weights.scales, first, count, rows.scale_columns, 1, &scales_);
  } else if (weights.format == WeightFormat::kFp8) {
    rows.scale_columns = ScaleColumns(weights);
    float_scales_ = ReadFp8Scales(weights, first, count);
    rows.float_scales = float_scales_.data();
  }
  return rows;
}

std::vector<float> ReadFp8Scales(const LinearWeights& weights, int64_t first, int64_t count) {
  const int64_t columns = ScaleColumns(weights);
  std::vector<float> scales(count * columns);
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < columns; ++c) scales[r * columns + c] = Fp8Scale(weights, first + r, c);
  }
  return scales;
}

namespace {

// Releases what lies between the first and the last of [rows, columns] units from `begin` on.
void ReleaseUnits(const UnitMatrix& view, const uint8_t* begin, int64_t rows, int64_t columns, int64_t unit) {
  const int64_t bytes = (rows - 1) * view.row_stride + (columns - 1) * view.column_stride + unit;
  SafetensorsReader::Release(absl::MakeConstSpan(begin, bytes));
}

}  // namespace

void ReleaseRows(const LinearWeights& weights, int64_t first, int64_t count) {
  const bool four_bit = IsFourBit(weights.format);
  const int64_t units = four_bit ? weights.in / 2 : weights.in;
  const auto release = [&](const UnitMatrix& view, int64_t columns, int64_t unit) {
    if (view.column_stride <= view.row_stride) {
      ReleaseUnits(view, view.data + first * view.row_stride, count, columns, unit);
    } else if (first + count == weights.out) {
      // Stored by columns, a page holds many rows: it goes with the last ones.
      ReleaseUnits(view, view.data, weights.out, columns, unit);
    }
  };
  release(weights.data, units, FormatRowBytes(weights.format, weights.in) / units);
  if (four_bit) release(weights.scales, weights.in / FormatBlock(weights.format), 1);
}

void ReleaseColumns(const LinearWeights& weights, int64_t first, int64_t count) {
  const bool four_bit = IsFourBit(weights.format);
  const auto release = [&](const UnitMatrix& view, int64_t columns_a_unit, int64_t unit) {
    const int64_t begin = first / columns_a_unit, columns = count / columns_a_unit;
    if (columns > 0) {
      ReleaseUnits(view, view.data + begin * view.column_stride, weights.out, columns, unit);
    }
  };
  release(weights.data, four_bit ? 2 : 1, four_bit ? 1 : FormatRowBytes(weights.format, 1));
  if (four_bit) release(weights.scales, FormatBlock(weights.format), 1);
}

void Dequantize(const LinearWeights& weights, int64_t first, int64_t count, float* out) {
  RowReader reader;
  const LinearRows rows = reader.Read(weights, first, count);
  const int64_t row_bytes = FormatRowBytes(weights.format, weights.in);
  const int64_t block = FormatBlock(weights.format);
  for (int64_t r = 0; r < count; ++r) {
    const uint8_t* data = rows.data + r * row_bytes;
    float* row = out + r * weights.in;
    switch (weights.format) {
      case WeightFormat::kBf16:
      case WeightFormat::kF16:
      case WeightFormat::kF32:
        for (int64_t c = 0; c < weights.in; ++c) {
          row[c] = DenseToFloat(weights.format, data + c * (row_bytes / weights.in));
        }
        break;
      case WeightFormat::kFp8:
        for (int64_t c = 0; c < weights.in; ++c) {
          row[c] = nvfp4::E4M3ToFloat(data[c]) *
                   rows.float_scales[r * rows.scale_columns + c / weights.scale_block_columns];
        }
        break;
      case WeightFormat::kMxfp4:
      case WeightFormat::kNvfp4:
        for (int64_t c = 0; c < weights.in; ++c) {
          const uint8_t code = data[c / 2] >> (c % 2 * 4) & 0xf;
          const uint8_t scale = rows.scales[r * rows.scale_columns + c / block];
          row[c] = weights.format == WeightFormat::kMxfp4
                       ? nvfp4::E2M1ToFloat(code) * nvfp4::E8M0ToFloat(scale)
                       : nvfp4::DequantizeUnscaled(code, scale) * weights.tensor_scale;
        }
        break;
    }
  }
}

absl::Status CheckBlockScales(const LinearWeights& weights, const SafetensorsReader& reader) {
  if (weights.scale_tensor == nullptr) return absl::OkStatus();
  if (absl::Status status = reader.CheckUnchanged(*weights.scale_tensor); !status.ok()) return status;
  if (weights.format == WeightFormat::kFp8) {
    for (int64_t r = 0; r < weights.out; ++r) {
      for (int64_t c = 0; c < ScaleColumns(weights); ++c) {
        const float scale = Fp8Scale(weights, r, c);
        if (std::isfinite(scale) && scale >= 0) continue;
        return BadScale(weights, reader, r, c, Fp8ScaleAt(weights, r, c), absl::StrCat(scale));
      }
    }
    return absl::OkStatus();
  }
  const bool mxfp4 = weights.format == WeightFormat::kMxfp4;
  const int64_t blocks = weights.in / FormatBlock(weights.format);
  for (int64_t r = 0; r < weights.out; ++r) {
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* at =
          weights.scales.data + r * weights.scales.row_stride + b * weights.scales.column_stride;
      if (mxfp4 ? *at != 0xff : *at < nvfp4::kE4M3NaN) continue;
      const bool nan = mxfp4 || (*at & 0x7f) == nvfp4::kE4M3NaN;
      return BadScale(weights, reader, r, b, at,
                      absl::StrCat("0x", absl::Hex(*at, absl::kZeroPad2), nan ? " (NaN)" : " (negative)"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckUnchanged(const LinearWeights& weights, const SafetensorsReader& reader) {
  absl::Status status = reader.CheckUnchanged(*weights.tensor);
  if (weights.scale_tensor != nullptr) status.Update(reader.CheckUnchanged(*weights.scale_tensor));
  return status;
}

}  // namespace tessera
