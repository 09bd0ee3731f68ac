// The quantised half of LinearFinder: which scales stand beside a matrix, and whether they fit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/nvfp4/nvfp4.h"
#include "server/model/linear_finder.h"

namespace tessera {
namespace {

// A weight this large is not one.
constexpr float kLargestPlausibleWeight = 1e5f;

}  // namespace

bool LinearFinder::FourBit(const Request& request, LinearWeights* result) {
  const TensorView& values = *request.values;
  const TensorView* scale = Take(absl::StrCat(request.prefix, "weight_scale"));
  if (scale == nullptr) scale = Take(absl::StrCat(request.prefix, "scales"));  // of NAME_blocks
  if (scale == nullptr) scale = Take(absl::StrCat(request.prefix, "scale"));
  if (scale == nullptr) {
    Problem(values, absl::StrCat(DTypeName(values.dtype), " without \"", request.prefix,
                                 "weight_scale\", as NVFP4 has, or another block scale beside it"));
    return false;
  }
  if (scale->dtype == DType::kF8E4M3) return Nvfp4(request, *scale, result);
  if (scale->dtype == DType::kF8E8M0 || scale->dtype == DType::kU8) return Mxfp4(request, *scale, result);
  Problem(*scale, absl::StrCat("expected block scales in F8_E4M3 (NVFP4), U8 or F8_E8M0 (MXFP4), found ",
                               DTypeName(scale->dtype), " of ", scale->ShapeString()));
  return false;
}

bool LinearFinder::Nvfp4(const Request& request, const TensorView& scale, LinearWeights* result) {
  result->format = WeightFormat::kNvfp4;
  if (request.in % nvfp4::kBlockSize != 0) {
    Problem(*request.values,
            absl::StrCat("NVFP4 needs an input size that is a multiple of 16, this one is ", request.in));
    return false;
  }
  const TensorView* factor = Take(absl::StrCat(request.prefix, "weight_scale_2"));
  const TensorView* divisor = Take(absl::StrCat(request.prefix, "weight_global_scale"));
  if ((factor == nullptr) == (divisor == nullptr)) {
    Problem(*request.values, absl::StrCat(factor == nullptr ? "U8 without" : "both", " \"", request.prefix,
                                          "weight_scale_2\" (ModelOpt) ", factor == nullptr ? "or" : "and",
                                          " \"weight_global_scale\" (compressed-tensors) beside it"));
    return false;
  }
  // The scales cannot be square where the codes are, so they tell by which way they lie.
  bool scales_transposed, transposed;
  if (!Lay(request, scale, request.rows, request.in / nvfp4::kBlockSize, Order::kEither, "F8_E4M3",
           &result->scales, &scales_transposed) ||
      !Lay(request, *request.values, request.rows, request.in / 2,
           scales_transposed ? Order::kEitherPreferColumns : Order::kEither, "NVFP4 codes", &result->data,
           &transposed)) {
    return false;
  }
  result->data = CutRows(result->data, request.place);
  result->scales = CutRows(result->scales, request.place);
  result->scale_tensor = &scale;
  return TensorScale(request, factor != nullptr ? *factor : *divisor, divisor != nullptr,
                     &result->tensor_scale);
}

bool LinearFinder::Mxfp4(const Request& request, const TensorView& scale, LinearWeights* result) {
  result->format = WeightFormat::kMxfp4;
  const int64_t block = FormatBlock(WeightFormat::kMxfp4);
  if (request.in % block != 0) {
    Problem(*request.values, absl::StrCat("MXFP4 needs an input size that is a multiple of ", block,
                                          ", this one is ", request.in));
    return false;
  }
  bool transposed;
  if (!Lay(request, scale, request.rows, request.in / block, Order::kRows, "E8M0 scales", &result->scales,
           &transposed) ||
      !Lay(request, *request.values, request.rows, request.in / 2, Order::kRows, "MXFP4 codes", &result->data,
           &transposed)) {
    return false;
  }
  result->data = CutRows(result->data, request.place);
  result->scales = CutRows(result->scales, request.place);
  result->scale_tensor = &scale;
  return true;
}

bool LinearFinder::Fp8(const Request& request, LinearWeights* result) {
  result->format = WeightFormat::kFp8;
  const TensorView* scale = nullptr;
  for (const char* name : {"weight_scale_inv", "weight_scale", "scale_inv", "scale"}) {
    if (scale == nullptr) scale = Take(absl::StrCat(request.prefix, name));
  }
  if (scale == nullptr) {
    Problem(*request.values, absl::StrCat("F8_E4M3 without \"", request.prefix, "weight_scale_inv\" or \"",
                                          request.prefix, "weight_scale\" beside it"));
    return false;
  }
  const MatrixPlace& place = request.place;
  bool transposed;
  const Order order = place.stack == 0 ? (place.transposed ? Order::kColumns : Order::kRows)
                                       : (place.transposed ? Order::kEitherPreferColumns : Order::kEither);
  if (!Lay(request, *request.values, request.rows, request.in, order, "F8_E4M3", &result->data,
           &transposed)) {
    return false;
  }
  result->data = CutRows(result->data, place);

  WeightFormat dense;
  if (!DenseFormat(scale->dtype, &dense) && scale->dtype != DType::kF8E8M0) {
    Problem(*scale, absl::StrCat("expected scales in F32, BF16, F16 or F8_E8M0, found ",
                                 DTypeName(scale->dtype), " of ", scale->ShapeString()));
    return false;
  }
  result->scale_dtype = scale->dtype;
  result->scale_tensor = scale;
  const int64_t unit = DTypeSize(scale->dtype);
  const int64_t stack = std::max<int64_t>(1, place.stack);
  const int64_t each = scale->num_elements() / stack;
  // The scales of one matrix, as [block rows, block columns].
  std::vector<int64_t> grid = scale->shape;
  const bool complete = place.stack == 0 || (!grid.empty() && grid[0] == stack);
  if (place.stack > 0 && complete) grid.erase(grid.begin());
  if (grid.size() == 2 && transposed) std::swap(grid[0], grid[1]);
  if (scale->num_elements() == 1 || (each == 1 && scale->num_elements() == stack)) {
    result->scale_block_rows = request.rows;
    result->scale_block_columns = request.in;
    result->scales = {scale->data.data() + (scale->num_elements() == 1 ? 0 : place.index * unit), 0, 0};
    return true;
  }
  result->scales.data = scale->data.data() + place.index * each * unit;
  if (complete &&
      (grid == std::vector<int64_t>{request.rows} || grid == std::vector<int64_t>{request.rows, 1})) {
    result->scale_block_rows = 1;
    result->scale_block_columns = request.in;
    result->scales.row_stride = unit;
    return true;
  }
  constexpr int64_t kBlock = 128;
  const int64_t block_rows = (request.rows + kBlock - 1) / kBlock;
  const int64_t block_columns = (request.in + kBlock - 1) / kBlock;
  if (complete && grid == std::vector<int64_t>{block_rows, block_columns}) {
    result->scale_block_rows = result->scale_block_columns = kBlock;
    result->scales.row_stride = transposed ? unit : block_columns * unit;
    result->scales.column_stride = transposed ? block_rows * unit : unit;
    return true;
  }
  Problem(*scale, absl::StrCat("expected one scale, one a row (", request.rows,
                               ") or one a block of 128 x 128 ([", block_rows, ", ", block_columns,
                               "]), found ", DTypeName(scale->dtype), " of ", scale->ShapeString()));
  return false;
}

// One value for all, one a matrix of the stack, or one a part of each (gate and up).
bool LinearFinder::TensorScale(const Request& request, const TensorView& tensor, bool reciprocal,
                               float* value) {
  const MatrixPlace& place = request.place;
  const int64_t stack = std::max<int64_t>(1, place.stack);
  const int64_t count = tensor.num_elements();
  const int64_t parts = count % stack == 0 ? count / stack : 0;
  const bool split = parts == 2 && request.rows == 2 * request.out;
  if (tensor.dtype != DType::kF32 || !(count == 1 || parts == 1 || split)) {
    Problem(tensor,
            absl::StrCat("expected one F32", place.stack > 0 ? absl::StrCat(" or ", stack, " of them") : "",
                         ", found ", DTypeName(tensor.dtype), " of ", tensor.ShapeString()));
    return false;
  }
  if (absl::Status status = reader_.CheckUnchanged(tensor); !status.ok()) {
    problems_.push_back(std::string(status.message()));
    return false;
  }
  int64_t at = count == 1 ? 0 : place.index * parts;
  if (split && place.first_row > 0) ++at;
  float stored;
  std::memcpy(&stored, tensor.data.data() + at * sizeof(float), sizeof(stored));
  *value = reciprocal ? 1.0f / stored : stored;
  if (!std::isfinite(stored) || stored <= 0 || !std::isfinite(*value) || *value <= 0) {
    Problem(tensor, absl::StrCat("expected a finite value above 0, found ", stored));
    return false;
  }
  if (*value * nvfp4::kE2M1Max * nvfp4::kE4M3Max > kLargestPlausibleWeight) large_.push_back(tensor.name);
  return true;
}

// Of W4A4 and W8A8 checkpoints. Activations are BF16 here, so that a bad or missing one does no harm.
void LinearFinder::InputScale(const Request& request, LinearWeights* result) {
  const TensorView* factor = Take(absl::StrCat(request.prefix, "input_scale"));
  const TensorView* divisor = Take(absl::StrCat(request.prefix, "input_global_scale"));
  if (result->format != WeightFormat::kNvfp4) return;
  const TensorView* tensor = factor != nullptr ? factor : divisor;
  if (tensor == nullptr) {
    no_input_scale_.push_back(result->name);
    return;
  }
  ++with_input_scale_;
  const int64_t stack = std::max<int64_t>(1, request.place.stack);
  const int64_t count = tensor->num_elements();
  if (tensor->dtype != DType::kF32 || count < 1 || !reader_.CheckUnchanged(*tensor).ok()) {
    bad_input_scales_.push_back(tensor->name);
    return;
  }
  float stored;
  const int64_t at = count % stack == 0 && count > 1 ? request.place.index * (count / stack) : 0;
  std::memcpy(&stored, tensor->data.data() + at * sizeof(float), sizeof(stored));
  const float value = factor != nullptr ? stored : 1.0f / stored;
  if (std::isfinite(value) && value > 0) {
    result->input_scale = value;
  } else {
    bad_input_scales_.push_back(tensor->name);
  }
}

}  // namespace tessera
