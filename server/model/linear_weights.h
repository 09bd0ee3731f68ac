#ifndef TESSERA_SERVER_MODEL_LINEAR_WEIGHTS_H_
#define TESSERA_SERVER_MODEL_LINEAR_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/model/safetensors.h"

namespace tessera {

// How a matrix's values are stored. W[r, c] is
//
//   kBf16, kF16, kF32  the element
//   kFp8               e4m3(data[r, c]) * scale[r / block_rows, c / block_columns]
//   kMxfp4             e2m1(data[r, c]) * 2^(scale[r, c / 32] - 127)                    (OCP MX 1.0)
//   kNvfp4             e2m1(data[r, c]) * e4m3(scale[r, c / 16]) * tensor_scale         (ModelOpt's convention)
enum class WeightFormat { kBf16, kF16, kF32, kFp8, kMxfp4, kNvfp4 };
absl::string_view WeightFormatName(WeightFormat format);

// Columns that share a block scale in a row; 1 for formats whose blocks are given otherwise or that have none.
int64_t FormatBlock(WeightFormat format);
// Bytes that `columns` values of one row take: two E2M1 codes share a byte, the even column in the low nibble.
int64_t FormatRowBytes(WeightFormat format, int64_t columns);

// A matrix of units of one or more bytes inside a mapped file. A unit is an element, a pair of E2M1 codes or a
// scale. Unit (r, c) begins at data + r * row_stride + c * column_stride; strides are in bytes.
struct UnitMatrix {
  const uint8_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
};

// A matrix y = W x, W of shape [out, in], as a view into the mapped checkpoint, which must outlive it. It may be a
// whole tensor, one of a stack, or every so many rows of one, and stored by rows or by columns: linear_rows.h reads
// any of them.
struct LinearWeights {
  std::string name;  // without ".weight"
  WeightFormat format = WeightFormat::kBf16;
  int64_t out = 0;
  int64_t in = 0;
  UnitMatrix data;            // [out, in], or [out, in / 2] pairs
  UnitMatrix scales;          // MXFP4 and NVFP4: [out, in / block]; FP8: of the stored matrix, see below
  float tensor_scale = 1.0f;  // NVFP4 only; finite, > 0
  // FP8 only: blocks are counted in the stored matrix, of which row r here is row first_row + r * row_step.
  DType scale_dtype = DType::kF32;  // F32, BF16, F16 or F8_E8M0
  int64_t scale_block_rows = 1;
  int64_t scale_block_columns = 1;
  int64_t first_row = 0;
  int64_t row_step = 1;
  // The activations' scale of a W4A4 or W8A8 checkpoint (amax / 2688 or amax / 448); 0 if there is none.
  float input_scale = 0.0f;
  const TensorView* tensor = nullptr;
  const TensorView* scale_tensor = nullptr;

  bool present() const { return tensor != nullptr; }
  // Bytes of this matrix in the file, block scales included.
  int64_t file_bytes() const;
  // Whether `data` (and NVFP4 or MXFP4 scales) is row-major without gaps.
  bool contiguous() const;
  // Whether neighbours in a column lie closer than those in a row.
  bool by_columns() const;
};

// Rows [first, first + count) of a matrix.
LinearWeights SliceRows(const LinearWeights& weights, int64_t first, int64_t count);

// A vector (norm weight, bias) in BF16, F16 or F32, a view likewise.
struct VectorWeights {
  WeightFormat format = WeightFormat::kBf16;
  int64_t size = 0;
  const uint8_t* data = nullptr;
  int64_t stride = 0;  // in bytes
  const TensorView* tensor = nullptr;

  bool present() const { return tensor != nullptr; }
  // The values; exact, since float32 holds every BF16 and F16.
  std::vector<float> ToFloat() const;
};

// One element of a BF16, F16 or F32 tensor; `data` need not be aligned.
float DenseToFloat(WeightFormat format, const uint8_t* data);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_LINEAR_WEIGHTS_H_
