#ifndef TESSERA_SERVER_MODEL_LINEAR_FINDER_H_
#define TESSERA_SERVER_MODEL_LINEAR_FINDER_H_

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/model/linear_weights.h"
#include "server/model/safetensors.h"

namespace tessera {

// Where a matrix [out, in] stands in a checkpoint: alone under its name, or as part of a larger tensor.
struct MatrixPlace {
  MatrixPlace(std::string name) : name(std::move(name)) {}  // NOLINT: a name is the common place
  MatrixPlace(const char* name) : name(name) {}             // NOLINT

  std::string name;       // without ".weight"
  int64_t stack = 0;      // matrices in the tensor's first dimension; 0 if the tensor is one matrix
  int64_t index = 0;      // which of them
  int64_t rows = 0;       // of the stored matrix; 0: `out`, all of them
  int64_t first_row = 0;  // row r is the stored row first_row + r * row_step
  int64_t row_step = 1;
  // Dense values and FP8 are stored [in, rows]. Where the tensor's shape tells, it decides; this settles the rest.
  bool transposed = false;
};

// The bytes that the tensors of a format take, and what they hold.
struct FormatUse {
  WeightFormat format = WeightFormat::kBf16;
  int64_t parameters = 0;
  int64_t bytes = 0;  // in the file, scales included
};

// Finds a model's tensors by name, decides each one's format from its type and the scales beside it, checks type,
// shape and scalar scales, and keeps account of what was used. What is wrong is gathered in `problems`, one line
// each with tensor, file, what was expected and what was found; the result is then not present().
//
// The names beside a matrix NAME (of a stacked tensor "NAME_..." for "NAME....", and the weight is NAME itself):
//   dense               NAME.weight BF16, F16 or F32
//   NVFP4, ModelOpt     NAME.weight U8, .weight_scale F8_E4M3, .weight_scale_2 F32, .input_scale F32 (W4A4)
//   NVFP4, compressed-tensors  NAME.weight_packed U8, .weight_scale, .weight_global_scale (the reciprocal of
//                       weight_scale_2), .input_global_scale
//   MXFP4               NAME_blocks U8 [..., in / 32, 16] and NAME_scales U8; or U8 or I8 codes with an E8M0 scale
//   FP8                 NAME.weight F8_E4M3 with .weight_scale_inv, .weight_scale or .scale: one, one a row, or one a
//                       block of rows and columns
class LinearFinder {
 public:
  LinearFinder(const SafetensorsReader& reader, std::vector<std::string>* problems)
      : reader_(reader), problems_(*problems) {}

  // Whether there is a tensor that Linear() would take as the matrix's values.
  bool Has(const std::string& name) const { return FindValues(name).first != nullptr; }
  bool HasTensor(const std::string& name) const { return reader_.Find(name) != nullptr; }

  LinearWeights Linear(const MatrixPlace& place, int64_t out, int64_t in, bool may_be_quantized);

  // A vector; the place's name is the tensor's whole name.
  VectorWeights Vector(const MatrixPlace& place, int64_t size);

  // The scale of an attention's keys ('k') or values ('v'), one number or one a KV head: PREFIXk_proj.k_scale as
  // ModelOpt names it, PREFIXk_scale as compressed-tensors does, PREFIXattn.k_scale, or PREFIXkv_scale for both. Not
  // present() if there is none, or, with a warning, if it is not finite and above 0.
  VectorWeights KvScale(const std::string& prefix, char kind, int64_t num_heads);

  // Tensors under `prefix` belong to a part of the model that is not run, `what`: they are passed over with a warning.
  void PassOver(std::string prefix, std::string what) {
    passed_over_.emplace_back(std::move(prefix), std::move(what));
  }

  // A tensor counts as used; nullptr if there is none.
  const TensorView* Take(const std::string& name);

  void Problem(const TensorView& tensor, absl::string_view what);
  void Problem(std::string what) { problems_.push_back(std::move(what)); }

  // Call last. Tensors that nothing asked for are problems, unless their kind is known to be harmless or was passed
  // over; then, and for what was read but is not used, there are warnings.
  void CheckLeftovers(bool tied_embeddings, std::vector<std::string>* warnings);

  const std::map<WeightFormat, FormatUse>& use() const { return use_; }
  size_t num_problems() const { return problems_.size(); }

 private:
  // The tensor that holds the values, and what stands before the names of its scales ("NAME." or "NAME_").
  std::pair<const TensorView*, std::string> FindValues(const std::string& name) const;

  // What Linear() works on.
  struct Request {
    MatrixPlace place;
    int64_t out, in;
    int64_t rows;  // of the stored matrix
    const TensorView* values;
    std::string prefix;
  };
  // Lays a view over the [rows, columns] units of `unit_bytes` in `tensor` ([stack,] rows, columns, or with the last
  // two exchanged), cut to the request's rows. Empty, with a problem, if the shape does not fit.
  enum class Order { kRows, kColumns, kEither, kEitherPreferColumns };
  bool Lay(const Request& request, const TensorView& tensor, int64_t rows, int64_t columns, Order order,
           absl::string_view what, UnitMatrix* view, bool* transposed);
  static UnitMatrix CutRows(UnitMatrix view, const MatrixPlace& place);

  bool Dense(const Request& request, LinearWeights* result);
  bool FourBit(const Request& request, LinearWeights* result);
  bool Nvfp4(const Request& request, const TensorView& scale, LinearWeights* result);
  bool Mxfp4(const Request& request, const TensorView& scale, LinearWeights* result);
  bool Fp8(const Request& request, LinearWeights* result);
  bool TensorScale(const Request& request, const TensorView& tensor, bool reciprocal, float* value);
  void InputScale(const Request& request, LinearWeights* result);
  void Count(WeightFormat format, int64_t parameters, int64_t bytes);
  bool Harmless(const std::string& name, bool tied_embeddings) const;
  void WarnOfKvScales(std::vector<std::string>* warnings);

  const SafetensorsReader& reader_;
  std::vector<std::string>& problems_;
  std::set<const TensorView*> used_;
  std::vector<std::pair<std::string, std::string>> passed_over_;
  std::map<WeightFormat, FormatUse> use_;
  // Names for warnings.
  std::vector<std::string> rounded_, bad_input_scales_, no_input_scale_, large_, kv_scales_, bad_kv_scales_;
  float least_kv_scale_ = std::numeric_limits<float>::infinity(), largest_kv_scale_ = 0;
  int64_t with_input_scale_ = 0;
};

// Whether a type is one of the dense formats, and which.
bool DenseFormat(DType dtype, WeightFormat* format);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_LINEAR_FINDER_H_
