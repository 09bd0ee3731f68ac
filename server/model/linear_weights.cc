#include "server/model/linear_weights.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/nvfp4/bf16.h"

namespace tessera {

absl::string_view WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return "BF16";
    case WeightFormat::kF16:
      return "F16";
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kFp8:
      return "FP8";
    case WeightFormat::kMxfp4:
      return "MXFP4";
    case WeightFormat::kNvfp4:
      return "NVFP4";
  }
  return "?";
}

int64_t FormatBlock(WeightFormat format) {
  if (format == WeightFormat::kMxfp4) return 32;
  if (format == WeightFormat::kNvfp4) return 16;
  return 1;
}

int64_t FormatRowBytes(WeightFormat format, int64_t columns) {
  switch (format) {
    case WeightFormat::kF32:
      return 4 * columns;
    case WeightFormat::kBf16:
    case WeightFormat::kF16:
      return 2 * columns;
    case WeightFormat::kFp8:
      return columns;
    case WeightFormat::kMxfp4:
    case WeightFormat::kNvfp4:
      return columns / 2;
  }
  return 0;
}

namespace {

bool HasBlockScales(WeightFormat format) {
  return format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4;
}

}  // namespace

int64_t LinearWeights::file_bytes() const {
  int64_t bytes = out * FormatRowBytes(format, in);
  if (HasBlockScales(format)) bytes += out * (in / FormatBlock(format));
  if (format == WeightFormat::kFp8) {
    const int64_t rows = (out + scale_block_rows - 1) / scale_block_rows;
    const int64_t columns = (in + scale_block_columns - 1) / scale_block_columns;
    bytes += rows * columns * DTypeSize(scale_dtype);
  }
  return bytes;
}

bool LinearWeights::contiguous() const {
  const int64_t row_bytes = FormatRowBytes(format, in);
  const int64_t units = HasBlockScales(format) ? in / 2 : in;
  if (data.row_stride != row_bytes || data.column_stride != row_bytes / units) return false;
  return !HasBlockScales(format) ||
         (scales.row_stride == in / FormatBlock(format) && scales.column_stride == 1);
}

bool LinearWeights::by_columns() const {
  const auto closer = [](const UnitMatrix& view) { return view.row_stride < view.column_stride; };
  return closer(data) && (!HasBlockScales(format) || closer(scales));
}

LinearWeights SliceRows(const LinearWeights& weights, int64_t first, int64_t count) {
  LinearWeights slice = weights;
  slice.name = absl::StrCat(weights.name, " rows ", first, "..", first + count - 1);
  slice.out = count;
  if (!weights.present()) return slice;
  slice.data.data += first * weights.data.row_stride;
  if (weights.format == WeightFormat::kFp8) {
    slice.first_row += first * weights.row_step;
  } else if (HasBlockScales(weights.format)) {
    slice.scales.data += first * weights.scales.row_stride;
  }
  return slice;
}

float DenseToFloat(WeightFormat format, const uint8_t* data) {
  if (format == WeightFormat::kF32) {
    float value;
    std::memcpy(&value, data, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data, sizeof(bits));
  return format == WeightFormat::kF16 ? HalfBitsToFloat(bits) : ToFloat(Bf16{bits});
}

std::vector<float> VectorWeights::ToFloat() const {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = DenseToFloat(format, data + i * stride);
  return values;
}

}  // namespace tessera
