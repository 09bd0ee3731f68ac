#include "server/model/linear_finder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/model/safetensors_header.h"

namespace tessera {
namespace {

// "3 matrices ..., the first is "..."".
std::string Several(const std::vector<std::string>& names, absl::string_view what) {
  return absl::StrCat(names.size(), what, ", the first is \"", Printable(names[0]), "\"");
}

}  // namespace

bool DenseFormat(DType dtype, WeightFormat* format) {
  if (dtype == DType::kBf16) *format = WeightFormat::kBf16;
  if (dtype == DType::kF16) *format = WeightFormat::kF16;
  if (dtype == DType::kF32) *format = WeightFormat::kF32;
  return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32;
}

void LinearFinder::Problem(const TensorView& tensor, absl::string_view what) {
  problems_.push_back(
      absl::StrCat("\"", Printable(tensor.name), "\": ", what, " (", reader_.path(tensor), ")"));
}

const TensorView* LinearFinder::Take(const std::string& name) {
  const TensorView* tensor = reader_.Find(name);
  if (tensor != nullptr) used_.insert(tensor);
  return tensor;
}

void LinearFinder::Count(WeightFormat format, int64_t parameters, int64_t bytes) {
  FormatUse& use = use_[format];
  use.format = format;
  use.parameters += parameters;
  use.bytes += bytes;
}

std::pair<const TensorView*, std::string> LinearFinder::FindValues(const std::string& name) const {
  for (const char* suffix : {".weight", ".weight_packed"}) {
    if (const TensorView* tensor = reader_.Find(name + suffix)) return {tensor, name + "."};
  }
  for (const char* suffix : {"", "_blocks", "_weight_packed"}) {
    if (const TensorView* tensor = reader_.Find(name + suffix)) return {tensor, name + "_"};
  }
  return {nullptr, ""};
}

UnitMatrix LinearFinder::CutRows(UnitMatrix view, const MatrixPlace& place) {
  view.data += place.first_row * view.row_stride;
  view.row_stride *= place.row_step;
  return view;
}

bool LinearFinder::Lay(const Request& request, const TensorView& tensor, int64_t rows, int64_t columns,
                       Order order, absl::string_view what, UnitMatrix* view, bool* transposed) {
  const int64_t stack = request.place.stack;
  std::vector<int64_t> expected = {rows, columns};
  std::vector<int64_t> exchanged = {columns, rows};
  if (stack > 0) {
    expected.insert(expected.begin(), stack);
    exchanged.insert(exchanged.begin(), stack);
  }
  std::vector<int64_t> shape = tensor.shape;
  // MXFP4 blocks: the last dimension is one block.
  if (shape.size() == expected.size() + 1 && shape.back() == 16) {
    shape.pop_back();
    shape.back() *= 16;
  }
  const bool fits = shape == expected && order != Order::kColumns;
  const bool fits_exchanged = shape == exchanged && order != Order::kRows;
  if (!fits && !fits_exchanged) {
    const std::vector<int64_t>& wanted =
        order == Order::kColumns || order == Order::kEitherPreferColumns ? exchanged : expected;
    const std::vector<int64_t>& other = &wanted == &expected ? exchanged : expected;
    Problem(tensor, absl::StrCat("expected ", what, " of shape [", absl::StrJoin(wanted, ", "), "], found ",
                                 DTypeName(tensor.dtype), " of ", tensor.ShapeString(),
                                 shape == other ? " (transposed?)" : ""));
    return false;
  }
  *transposed = fits_exchanged && (!fits || order == Order::kEitherPreferColumns);
  const int64_t unit = DTypeSize(tensor.dtype);
  view->data = tensor.data.data() + request.place.index * rows * columns * unit;
  view->row_stride = *transposed ? unit : columns * unit;
  view->column_stride = *transposed ? rows * unit : unit;
  return true;
}

LinearWeights LinearFinder::Linear(const MatrixPlace& place, int64_t out, int64_t in, bool may_be_quantized) {
  LinearWeights result;
  Request request{place, out, in, place.rows > 0 ? place.rows : out, nullptr, ""};
  std::tie(request.values, request.prefix) = FindValues(place.name);
  if (request.values == nullptr) {
    // Stacked tensors are named for all their parts: once is enough.
    std::string problem =
        absl::StrCat("\"", place.name, ".weight\" is missing, expected shape [", request.rows, ", ", in, "]");
    if (problems_.empty() || problems_.back() != problem) problems_.push_back(std::move(problem));
    return result;
  }
  const TensorView& tensor = *request.values;
  used_.insert(&tensor);
  if (place.first_row + (out - 1) * place.row_step >= request.rows ||
      place.index >= std::max<int64_t>(1, place.stack)) {
    Problem(tensor, absl::StrCat("has no row ", place.first_row + (out - 1) * place.row_step, " of matrix ",
                                 place.index, "; it is taken for ", std::max<int64_t>(1, place.stack), " of ",
                                 request.rows, " rows"));
    return result;
  }
  result.name = place.name;
  if (place.stack > 0) absl::StrAppend(&result.name, "[", place.index, "]");
  result.out = out;
  result.in = in;
  result.first_row = place.first_row;
  result.row_step = place.row_step;
  bool good = false;
  if (DenseFormat(tensor.dtype, &result.format)) {
    good = Dense(request, &result);
  } else if (may_be_quantized && (tensor.dtype == DType::kU8 || tensor.dtype == DType::kI8)) {
    good = FourBit(request, &result);
  } else if (may_be_quantized && tensor.dtype == DType::kF8E4M3) {
    good = Fp8(request, &result);
  } else {
    Problem(tensor,
            absl::StrCat("expected BF16, F16, F32", may_be_quantized ? ", U8 (NVFP4, MXFP4) or F8_E4M3" : "",
                         " of shape [", request.rows, ", ", in, "], found ", DTypeName(tensor.dtype), " of ",
                         tensor.ShapeString()));
  }
  if (!good) return result;
  result.tensor = &tensor;
  if (may_be_quantized) InputScale(request, &result);
  Count(result.format, out * in, result.file_bytes());
  return result;
}

bool LinearFinder::Dense(const Request& request, LinearWeights* result) {
  const bool may_be_either = request.place.stack > 0;
  const Order order = request.place.transposed
                          ? (may_be_either ? Order::kEitherPreferColumns : Order::kColumns)
                          : (may_be_either ? Order::kEither : Order::kRows);
  bool transposed;
  if (!Lay(request, *request.values, request.rows, request.in, order, WeightFormatName(result->format),
           &result->data, &transposed)) {
    return false;
  }
  result->data = CutRows(result->data, request.place);
  if (result->format != WeightFormat::kBf16) rounded_.push_back(request.values->name);
  return true;
}

VectorWeights LinearFinder::Vector(const MatrixPlace& place, int64_t size) {
  VectorWeights result;
  const int64_t stored = place.rows > 0 ? place.rows : size;
  std::vector<int64_t> expected = {stored};
  if (place.stack > 0) expected.insert(expected.begin(), place.stack);
  const std::string shape = absl::StrJoin(expected, ", ");
  const TensorView* tensor = Take(place.name);
  if (tensor == nullptr) {
    problems_.push_back(
        absl::StrCat("\"", place.name, "\" is missing, expected BF16, F16 or F32 of shape [", shape, "]"));
    return result;
  }
  if (!DenseFormat(tensor->dtype, &result.format) || tensor->shape != expected) {
    Problem(*tensor, absl::StrCat("expected BF16, F16 or F32 of shape [", shape, "], found ",
                                  DTypeName(tensor->dtype), " of ", tensor->ShapeString()));
    return result;
  }
  const int64_t unit = DTypeSize(tensor->dtype);
  result.size = size;
  result.tensor = tensor;
  result.data = tensor->data.data() + (place.index * stored + place.first_row) * unit;
  result.stride = place.row_step * unit;
  Count(result.format, size, size * unit);
  return result;
}

bool LinearFinder::Harmless(const std::string& name, bool tied_embeddings) const {
  if (tied_embeddings && name == "lm_head.weight") return true;
  // Scales of an attention's inputs and results that no cache of keys and values needs.
  for (const char* suffix : {".rotary_emb.inv_freq", ".q_scale", ".k_scale", ".v_scale"}) {
    if (absl::EndsWith(name, suffix)) return true;
  }
  return false;
}

VectorWeights LinearFinder::KvScale(const std::string& prefix, char kind, int64_t num_heads) {
  VectorWeights result;
  const std::string own = absl::StrCat(std::string(1, kind), "_scale");
  const TensorView* tensor = nullptr;
  for (const std::string& name : {absl::StrCat(std::string(1, kind), "_proj.", own), own,
                                  absl::StrCat("attn.", own), std::string("kv_scale")}) {
    if (tensor == nullptr) tensor = Take(prefix + name);
  }
  if (tensor == nullptr) return result;
  const int64_t size = tensor->num_elements();
  if (!DenseFormat(tensor->dtype, &result.format) || (size != 1 && size != num_heads)) {
    Problem(*tensor, absl::StrCat("expected a scale of ", kind == 'k' ? "keys" : "values",
                                  " in F32, F16 or BF16, or ", num_heads, " of them, found ",
                                  DTypeName(tensor->dtype), " of ", tensor->ShapeString()));
    return result;
  }
  if (absl::Status status = reader_.CheckUnchanged(*tensor); !status.ok()) {
    problems_.push_back(std::string(status.message()));
    return result;
  }
  result.size = size;
  result.data = tensor->data.data();
  result.stride = DTypeSize(tensor->dtype);
  for (const float value : result.ToFloat()) {
    if (!std::isfinite(value) || value <= 0) {
      bad_kv_scales_.push_back(tensor->name);
      return VectorWeights();
    }
    least_kv_scale_ = std::min(least_kv_scale_, value);
    largest_kv_scale_ = std::max(largest_kv_scale_, value);
  }
  result.tensor = tensor;
  kv_scales_.push_back(tensor->name);
  return result;
}

void LinearFinder::WarnOfKvScales(std::vector<std::string>* warnings) {
  if (!kv_scales_.empty()) {
    warnings->push_back(absl::StrCat(Several(kv_scales_, " scales of quantised keys and values are not used"),
                                     " (", least_kv_scale_, " to ", largest_kv_scale_,
                                     "): the cache holds BF16"));
  }
  if (!bad_kv_scales_.empty()) {
    warnings->push_back(
        Several(bad_kv_scales_, " scales of quantised keys and values are not finite numbers above 0"));
  }
}

void LinearFinder::CheckLeftovers(bool tied_embeddings, std::vector<std::string>* warnings) {
  WarnOfKvScales(warnings);
  std::vector<std::string> harmless;
  std::map<std::string, std::vector<std::string>> parts;
  for (const auto& [name, tensor] : reader_.tensors()) {
    if (used_.count(&tensor) > 0) continue;
    const auto part =
        std::find_if(passed_over_.begin(), passed_over_.end(),
                     [&name = name](const auto& entry) { return absl::StartsWith(name, entry.first); });
    if (part != passed_over_.end()) {
      parts[part->second].push_back(name);
    } else if (Harmless(name, tied_embeddings)) {
      harmless.push_back(name);
    } else if (absl::EndsWith(name, "pre_quant_scale")) {
      Problem(tensor, "AWQ input scales are not supported");
    } else if (absl::EndsWith(name, "svdquant_lora_a") || absl::EndsWith(name, "svdquant_lora_b")) {
      Problem(tensor, "SVDQuant's low-rank parts are not supported");
    } else {
      Problem(tensor, absl::StrCat("not a tensor of this architecture (", DTypeName(tensor.dtype), " of ",
                                   tensor.ShapeString(), ")"));
    }
  }
  for (const auto& [what, names] : parts)
    warnings->push_back(Several(names, absl::StrCat(" tensors of ", what, " are not used")));
  if (!harmless.empty()) warnings->push_back(Several(harmless, " tensors are not used"));
  if (!rounded_.empty())
    warnings->push_back(Several(rounded_, " matrices in F16 or F32 are rounded to BF16"));
  if (!large_.empty()) {
    warnings->push_back(
        Several(large_, " tensor scales let weights pass 100000: is the scale its reciprocal?"));
  }
  if (!bad_input_scales_.empty()) {
    warnings->push_back(Several(bad_input_scales_, " input scales are not finite numbers above 0"));
  }
  if (with_input_scale_ > 0 && !no_input_scale_.empty()) {
    warnings->push_back(Several(no_input_scale_, " matrices have no input scale where others have"));
  }
}

}  // namespace tessera
