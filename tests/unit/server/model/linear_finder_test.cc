#include "server/model/linear_finder.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/model/linear_rows.h"
#include "tests/unit/server/model/test_files.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Against tests/golden/formats: other libraries' files and values.
class FormatsTest : public testing::Test {
 protected:
  FormatsTest()
      : reader_(SafetensorsReader::OpenFile(TESSERA_SOURCE_DIR "/tests/golden/formats/formats.safetensors")
                    .value()),
        finder_(*reader_, &problems_) {}

  // Row `row` of matrix `matrix` of the expected values.
  std::vector<float> Expected(const std::string& name, int64_t matrix, int64_t row, int64_t in) {
    const TensorView* tensor = reader_->Find(name + ".expected");
    EXPECT_NE(tensor, nullptr) << name;
    const int64_t rows = tensor->shape[tensor->shape.size() - 2];
    std::vector<float> values(in);
    std::memcpy(values.data(), tensor->data.data() + (matrix * rows + row) * in * 4, in * 4);
    return values;
  }

  // The matrix at `place` has the values of rows first, first + step, ... of `name`.expected[index].
  void ExpectValues(const MatrixPlace& place, int64_t out, int64_t in, const std::string& name,
                    WeightFormat format, double tolerance = 0) {
    SCOPED_TRACE(place.name);
    const LinearWeights weights = finder_.Linear(place, out, in, true);
    ASSERT_THAT(problems_, IsEmpty());
    ASSERT_TRUE(weights.present());
    EXPECT_EQ(weights.format, format);
    EXPECT_TRUE(CheckBlockScales(weights, *reader_).ok());
    std::vector<float> values(out * in), some(2 * in);
    Dequantize(weights, 0, out, values.data());
    for (int64_t r = 0; r < out; ++r) {
      const std::vector<float> expected =
          Expected(name, place.index, place.first_row + r * place.row_step, in);
      for (int64_t c = 0; c < in; ++c) {
        ASSERT_NEAR(values[r * in + c], expected[c], tolerance * std::abs(expected[c])) << r << ", " << c;
      }
    }
    Dequantize(weights, out - 2, 2, some.data());  // from the middle, the same
    EXPECT_EQ(0, std::memcmp(some.data(), values.data() + (out - 2) * in, 2 * in * sizeof(float)));
  }

  std::unique_ptr<SafetensorsReader> reader_;
  std::vector<std::string> problems_;
  LinearFinder finder_;
};

TEST_F(FormatsTest, CompressedTensorsNvfp4) {
  ExpectValues("ct", 24, 64, "ct", WeightFormat::kNvfp4, 1e-6);  // it divides where ModelOpt multiplies
  const LinearWeights weights = finder_.Linear("ct", 24, 64, true);
  EXPECT_FLOAT_EQ(weights.input_scale, 3.5f / 2688.0f);
}

TEST_F(FormatsTest, CompressedTensorsMxfp4) {
  ExpectValues("ct_mxfp4", 8, 64, "ct_mxfp4", WeightFormat::kMxfp4);
}

TEST_F(FormatsTest, ModelOptStackedByColumns) {
  for (int64_t e = 0; e < 3; ++e) {
    for (const int64_t first : {0, 16}) {
      MatrixPlace place("llama4_gate_up");
      place.stack = 3;
      place.index = e;
      place.rows = 32;
      place.first_row = first;
      place.transposed = true;
      ExpectValues(place, 16, 32, "llama4", WeightFormat::kNvfp4);
      EXPECT_EQ(finder_.Linear(place, 16, 32, true).input_scale, 0.25f);
    }
  }
}

TEST_F(FormatsTest, StackedWithAScaleForEachExpert) {
  for (int64_t e = 0; e < 3; ++e) {
    MatrixPlace place("stacked_gate_up");
    place.stack = 3;
    place.index = e;
    place.rows = 32;
    place.first_row = 16;
    ExpectValues(place, 16, 32, "stacked", WeightFormat::kNvfp4);
  }
}

TEST_F(FormatsTest, GptOssMxfp4Interleaved) {
  for (int64_t e = 0; e < 3; ++e) {
    for (const int64_t first : {0, 1}) {
      MatrixPlace place("gpt_oss_gate_up");
      place.stack = 3;
      place.index = e;
      place.rows = 32;
      place.first_row = first;
      place.row_step = 2;
      place.transposed = true;  // as its BF16 form is; blocks never are
      ExpectValues(place, 16, 64, "gpt_oss", WeightFormat::kMxfp4);
    }
  }
}

TEST_F(FormatsTest, DenseStacksByRowsAndByColumns) {
  for (const char* name : {"dense_by_columns", "dense_by_rows"}) {
    MatrixPlace place(name);
    place.stack = 3;
    place.index = 2;
    place.transposed = std::string(name) == "dense_by_columns";
    ExpectValues(place, 32, 32, "dense", WeightFormat::kBf16);
    place.rows = 32;
    place.first_row = 1;
    place.row_step = 2;
    ExpectValues(place, 16, 32, "dense", WeightFormat::kBf16);
  }
  MatrixPlace bias("dense_bias");
  bias.stack = 3;
  bias.index = 1;
  bias.rows = 32;
  bias.first_row = 1;
  bias.row_step = 2;
  const std::vector<float> odd = finder_.Vector(bias, 16).ToFloat();
  bias.row_step = 1;
  bias.first_row = 0;
  const std::vector<float> all = finder_.Vector(bias, 32).ToFloat();
  for (int i = 0; i < 16; ++i) EXPECT_EQ(odd[i], all[2 * i + 1]);
}

TEST_F(FormatsTest, Fp8) {
  ExpectValues("fp8_blocks", 136, 160, "fp8_blocks", WeightFormat::kFp8);
  ExpectValues("fp8_tensor", 12, 40, "fp8_tensor", WeightFormat::kFp8);
  ExpectValues("fp8_rows", 12, 40, "fp8_rows", WeightFormat::kFp8);
  ExpectValues("fp8_e8m0", 12, 40, "fp8_e8m0", WeightFormat::kFp8);
  MatrixPlace up("fp8_stacked");  // begins in the middle of a block
  up.stack = 2;
  up.index = 1;
  up.rows = 136;
  up.first_row = 68;
  ExpectValues(up, 68, 48, "fp8_stacked", WeightFormat::kFp8);
}

// Tensors that a test makes up.
class FinderTest : public testing::Test {
 protected:
  struct Tensor {
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<uint8_t> data;
  };

  static std::vector<uint8_t> Floats(const std::vector<float>& values) {
    std::vector<uint8_t> bytes(values.size() * 4);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  static std::vector<uint8_t> Counted(int64_t count) {
    std::vector<uint8_t> bytes(count);
    for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(i * 37 % 120);
    return bytes;
  }
  // NVFP4 [out, in] as ModelOpt names it.
  void AddNvfp4(const std::string& name, int64_t out, int64_t in, float scale_2 = 0.001f) {
    tensors_[name + ".weight"] = {DType::kU8, {out, in / 2}, Counted(out * in / 2)};
    tensors_[name + ".weight_scale"] = {DType::kF8E4M3, {out, in / 16}, Counted(out * in / 16)};
    tensors_[name + ".weight_scale_2"] = {DType::kF32, {}, Floats({scale_2})};
  }

  LinearFinder& Open() {
    std::vector<SafetensorsWriter::Entry> entries;
    for (const auto& [name, tensor] : tensors_) entries.push_back({name, tensor.dtype, tensor.shape});
    auto writer = SafetensorsWriter::Create(directory_ / "m.safetensors", entries, {});
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (const auto& [name, tensor] : tensors_) EXPECT_TRUE((*writer)->Write(name, tensor.data).ok()) << name;
    EXPECT_TRUE((*writer)->Finish().ok());
    reader_ = SafetensorsReader::OpenFile(directory_ / "m.safetensors").value();
    finder_ = std::make_unique<LinearFinder>(*reader_, &problems_);
    return *finder_;
  }
  std::vector<std::string> Warnings() {
    std::vector<std::string> warnings;
    finder_->CheckLeftovers(false, &warnings);
    return warnings;
  }

  TemporaryDirectory directory_;
  std::map<std::string, Tensor> tensors_;
  std::vector<std::string> problems_;
  std::unique_ptr<SafetensorsReader> reader_;
  std::unique_ptr<LinearFinder> finder_;
};

TEST_F(FinderTest, TransposedNvfp4IsReadByItsShape) {
  AddNvfp4("a", 4, 32);
  tensors_["t.weight"] = {DType::kU8, {16, 4}, {}};
  for (int64_t c = 0; c < 16; ++c) {
    for (int64_t r = 0; r < 4; ++r)
      tensors_["t.weight"].data.push_back(tensors_["a.weight"].data[r * 16 + c]);
  }
  tensors_["t.weight_scale"] = {DType::kF8E4M3, {2, 4}, {}};
  for (int64_t c = 0; c < 2; ++c) {
    for (int64_t r = 0; r < 4; ++r)
      tensors_["t.weight_scale"].data.push_back(tensors_["a.weight_scale"].data[r * 2 + c]);
  }
  tensors_["t.weight_scale_2"] = tensors_["a.weight_scale_2"];
  LinearFinder& finder = Open();
  const LinearWeights a = finder.Linear("a", 4, 32, true);
  const LinearWeights t = finder.Linear("t", 4, 32, true);
  ASSERT_THAT(problems_, IsEmpty());
  EXPECT_TRUE(a.contiguous());
  EXPECT_FALSE(t.contiguous());
  std::vector<float> by_rows(4 * 32), by_columns(4 * 32);
  Dequantize(a, 0, 4, by_rows.data());
  Dequantize(t, 0, 4, by_columns.data());
  EXPECT_EQ(by_rows, by_columns);
  EXPECT_THAT(Warnings(), IsEmpty());
}

TEST_F(FinderTest, SquareCodesFollowTheirScales) {
  AddNvfp4("q", 16, 32);  // codes 16 x 16
  tensors_["q.weight_scale"].shape = {2, 16};
  LinearFinder& finder = Open();
  const LinearWeights weights = finder.Linear("q", 16, 32, true);
  ASSERT_TRUE(weights.present());
  EXPECT_EQ(weights.data.row_stride, 1);
  EXPECT_EQ(weights.data.column_stride, 16);
}

TEST_F(FinderTest, DialectsDoNotMix) {
  AddNvfp4("both", 4, 32);
  tensors_["both.weight_global_scale"] = {DType::kF32, {1}, Floats({1000})};
  AddNvfp4("none", 4, 32);
  tensors_.erase("none.weight_scale_2");
  LinearFinder& finder = Open();
  EXPECT_FALSE(finder.Linear("both", 4, 32, true).present());
  EXPECT_FALSE(finder.Linear("none", 4, 32, true).present());
  EXPECT_THAT(problems_,
              ElementsAre(HasSubstr("\"both.weight\": both \"both.weight_scale_2\" (ModelOpt) and"),
                          HasSubstr("\"none.weight\": U8 without \"none.weight_scale_2\" (ModelOpt) or")));
}

TEST_F(FinderTest, BadTensorScales) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  int i = 0;
  for (const float bad : {0.0f, -1.0f, nan, inf}) {
    AddNvfp4("a" + std::to_string(i), 4, 32, bad);
    AddNvfp4("b" + std::to_string(i), 4, 32);
    tensors_["b" + std::to_string(i) + ".weight_global_scale"] = {DType::kF32, {1}, Floats({bad})};
    tensors_.erase("b" + std::to_string(i++) + ".weight_scale_2");
  }
  LinearFinder& finder = Open();
  for (i = 0; i < 4; ++i) {
    EXPECT_FALSE(finder.Linear("a" + std::to_string(i), 4, 32, true).present());
    EXPECT_FALSE(finder.Linear("b" + std::to_string(i), 4, 32, true).present());
  }
  ASSERT_EQ(problems_.size(), 8);
  for (const std::string& problem : problems_)
    EXPECT_THAT(problem, HasSubstr("expected a finite value above 0"));
}

TEST_F(FinderTest, WarnsOfWhatIsSuspicious) {
  AddNvfp4("good", 4, 32);
  tensors_["good.input_scale"] = {DType::kF32, {}, Floats({0.5f})};
  AddNvfp4("without", 4, 32);
  AddNvfp4("zero", 4, 32);
  tensors_["zero.input_scale"] = {DType::kF32, {}, Floats({0})};
  AddNvfp4("reciprocal", 4, 32, 2688.0f / 0.1f);
  tensors_["reciprocal.input_scale"] = {DType::kF32, {}, Floats({0.5f})};
  tensors_["a.k_proj.k_scale"] = {DType::kF32, {}, Floats({0.02f})};
  tensors_["a.v_proj.v_scale"] = {DType::kF32, {1}, Floats({0.5f})};
  tensors_["b.k_scale"] = {DType::kF32, {1}, Floats({0})};
  tensors_["b.q_scale"] = {DType::kF32, {1}, Floats({1})};
  tensors_["mtp.x.weight"] = {DType::kBf16, {1}, {0, 0}};
  LinearFinder& finder = Open();
  finder.PassOver("mtp.", "the next-token predictor");
  EXPECT_EQ(finder.Linear("good", 4, 32, true).input_scale, 0.5f);
  EXPECT_EQ(finder.Linear("without", 4, 32, true).input_scale, 0.0f);
  EXPECT_EQ(finder.Linear("zero", 4, 32, true).input_scale, 0.0f);
  EXPECT_TRUE(finder.Linear("reciprocal", 4, 32, true).present());
  EXPECT_TRUE(finder.KvScale("a.", 'k', 2).present());
  EXPECT_TRUE(finder.KvScale("a.", 'v', 2).present());
  EXPECT_FALSE(finder.KvScale("b.", 'k', 2).present());
  EXPECT_THAT(
      Warnings(),
      ElementsAre(
          HasSubstr("2 scales of quantised keys and values are not used, the first is "
                    "\"a.k_proj.k_scale\" (0.02 to 0.5)"),
          HasSubstr("1 scales of quantised keys and values are not finite numbers above 0, the first is "
                    "\"b.k_scale\""),
          HasSubstr("1 tensors of the next-token predictor are not used"),
          HasSubstr("1 tensors are not used, the first is \"b.q_scale\""),
          HasSubstr("1 tensor scales let weights pass 100000"),
          HasSubstr("1 input scales are not finite numbers above 0, the first is \"zero.input_scale\""),
          HasSubstr("1 matrices have no input scale where others have, the first is \"without\"")));
  EXPECT_THAT(problems_, IsEmpty());
}

// Without them the products would be wrong, and nothing else would tell.
TEST_F(FinderTest, RefusesPartsThatChangeTheProducts) {
  AddNvfp4("a", 4, 32);
  tensors_["a.pre_quant_scale"] = {DType::kBf16, {1}, {0, 0}};
  tensors_["a.svdquant_lora_a"] = {DType::kBf16, {1}, {0, 0}};
  tensors_["a.weight_zero_point"] = {DType::kBf16, {1}, {0, 0}};
  LinearFinder& finder = Open();
  EXPECT_TRUE(finder.Linear("a", 4, 32, true).present());
  EXPECT_THAT(Warnings(), IsEmpty());
  EXPECT_THAT(problems_,
              ElementsAre(HasSubstr("\"a.pre_quant_scale\": AWQ input scales are not supported"),
                          HasSubstr("\"a.svdquant_lora_a\": SVDQuant's low-rank parts"),
                          HasSubstr("\"a.weight_zero_point\": not a tensor of this architecture")));
}

// A tensor scale of 2e-5 would be lost in E4M3, whose least number is 2^-9: it is kept apart.
TEST_F(FinderTest, SmallTensorScalesKeepEveryValue) {
  AddNvfp4("one", 4, 32, 1.0f);
  AddNvfp4("small", 4, 32, 0x1p-16f);
  LinearFinder& finder = Open();
  std::vector<float> one(4 * 32), small(4 * 32);
  Dequantize(finder.Linear("one", 4, 32, true), 0, 4, one.data());
  Dequantize(finder.Linear("small", 4, 32, true), 0, 4, small.data());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(small[i], one[i] * 0x1p-16f);
}

TEST_F(FinderTest, ReadsScalesOfKeysAndValuesByAllTheirNames) {
  tensors_["modelopt.k_proj.k_scale"] = {DType::kF32, {}, Floats({0.25f})};
  tensors_["modelopt.v_proj.v_scale"] = {DType::kBf16, {1}, {0x00, 0x3f}};
  tensors_["ct.k_scale"] = {DType::kF32, {1}, Floats({2})};
  tensors_["ct.v_scale"] = {DType::kF32, {3, 1}, Floats({1, 2, 3})};
  tensors_["old.attn.k_scale"] = {DType::kF32, {1}, Floats({3})};
  tensors_["both.kv_scale"] = {DType::kF32, {1}, Floats({4})};
  tensors_["odd.k_scale"] = {DType::kF32, {2}, Floats({1, 1})};
  tensors_["odd.v_scale"] = {DType::kI32, {1}, Floats({1})};
  LinearFinder& finder = Open();
  using testing::IsEmpty;
  const auto scale = [&](const char* prefix, char kind) { return finder.KvScale(prefix, kind, 3).ToFloat(); };
  EXPECT_THAT(scale("modelopt.", 'k'), ElementsAre(0.25f));
  EXPECT_THAT(scale("modelopt.", 'v'), ElementsAre(0.5f));
  EXPECT_THAT(scale("ct.", 'k'), ElementsAre(2));
  EXPECT_THAT(scale("ct.", 'v'), ElementsAre(1, 2, 3));
  EXPECT_THAT(scale("old.", 'k'), ElementsAre(3));
  EXPECT_THAT(scale("both.", 'k'), ElementsAre(4));
  EXPECT_THAT(scale("both.", 'v'), ElementsAre(4));
  EXPECT_FALSE(finder.KvScale("none.", 'k', 3).present());
  EXPECT_THAT(problems_, IsEmpty());
  EXPECT_FALSE(finder.KvScale("odd.", 'k', 3).present());
  EXPECT_FALSE(finder.KvScale("odd.", 'v', 3).present());
  EXPECT_THAT(problems_,
              ElementsAre(HasSubstr("\"odd.k_scale\": expected a scale of keys in F32, F16 or BF16, or 3 of "
                                    "them, found F32 of [2]"),
                          HasSubstr("\"odd.v_scale\": expected a scale of values")));
}

TEST_F(FinderTest, NamesBadBlockScalesInEveryFormat) {
  AddNvfp4("nvfp4", 4, 32);
  tensors_["nvfp4.weight_scale"].data[5] = 0xff;
  tensors_["mxfp4_blocks"] = {DType::kU8, {4, 2, 16}, Counted(128)};
  tensors_["mxfp4_scales"] = {DType::kU8, {4, 2}, Counted(8)};
  tensors_["mxfp4_scales"].data[7] = 0xff;
  tensors_["fp8.weight"] = {DType::kF8E4M3, {4, 32}, Counted(128)};
  tensors_["fp8.weight_scale"] = {DType::kF32, {4, 1}, Floats({1, 1, -1, 1})};
  LinearFinder& finder = Open();
  const LinearWeights nvfp4 = finder.Linear("nvfp4", 4, 32, true);
  const LinearWeights mxfp4 = finder.Linear("mxfp4", 4, 64, true);
  const LinearWeights fp8 = finder.Linear("fp8", 4, 32, true);
  ASSERT_THAT(problems_, IsEmpty());
  const int64_t offset = reader_->Find("nvfp4.weight_scale")->file_offset + 5;
  EXPECT_THAT(
      CheckBlockScales(nvfp4, *reader_).message(),
      HasSubstr(absl::StrCat("\"nvfp4.weight_scale\", row 2, block 1 (byte ", offset, " of the file)")));
  EXPECT_THAT(CheckBlockScales(nvfp4, *reader_).message(), HasSubstr("0xff (NaN)"));
  EXPECT_THAT(CheckBlockScales(mxfp4, *reader_).message(), HasSubstr("\"mxfp4_scales\", row 3, block 1"));
  EXPECT_THAT(CheckBlockScales(fp8, *reader_).message(), HasSubstr("\"fp8.weight_scale\", row 2, block 0"));
}

TEST_F(FinderTest, SaysWhatWasExpected) {
  tensors_["dense.weight"] = {DType::kBf16, {32, 4}, Counted(256)};
  tensors_["int8.weight"] = {DType::kI32, {4, 32}, Counted(512)};
  tensors_["bare.weight"] = {DType::kU8, {4, 16}, Counted(64)};
  tensors_["fp8.weight"] = {DType::kF8E4M3, {4, 32}, Counted(128)};
  tensors_["fp8.weight_scale"] = {DType::kF32, {3}, Floats({1, 1, 1})};
  tensors_["fp8_bare.weight"] = {DType::kF8E4M3, {4, 32}, Counted(128)};
  AddNvfp4("odd", 4, 32);
  AddNvfp4("short", 4, 32);
  tensors_["short.weight_scale"] = {DType::kF8E4M3, {4, 1}, Counted(4)};
  AddNvfp4("two", 4, 32);
  tensors_["two.weight_scale_2"] = {DType::kF32, {2}, Floats({1, 1})};
  LinearFinder& finder = Open();
  for (const char* name : {"dense", "int8", "bare", "fp8", "fp8_bare", "short", "two", "none"}) {
    EXPECT_FALSE(finder.Linear(name, 4, 32, true).present()) << name;
  }
  EXPECT_FALSE(finder.Linear("odd", 4, 40, true).present());
  EXPECT_THAT(
      problems_,
      ElementsAre(
          HasSubstr("\"dense.weight\": expected BF16 of shape [4, 32], found BF16 of [32, 4] (transposed?)"),
          HasSubstr(
              "\"int8.weight\": expected BF16, F16, F32, U8 (NVFP4, MXFP4) or F8_E4M3 of shape [4, 32], "
              "found I32 of [4, 32]"),
          HasSubstr("\"bare.weight\": U8 without \"bare.weight_scale\""),
          HasSubstr("\"fp8.weight_scale\": expected one scale, one a row (4) or one a block of 128 x 128 "
                    "([1, 1]), found F32 of [3]"),
          HasSubstr("\"fp8_bare.weight\": F8_E4M3 without \"fp8_bare.weight_scale_inv\""),
          HasSubstr("\"short.weight_scale\": expected F8_E4M3 of shape [4, 2], found F8_E4M3 of [4, 1]"),
          HasSubstr("\"two.weight_scale_2\": expected one F32, found F32 of [2]"),
          HasSubstr("\"none.weight\" is missing, expected shape [4, 32]"),
          HasSubstr("NVFP4 needs an input size that is a multiple of 16, this one is 40")));
}

TEST_F(FinderTest, AStackNeedsScalesForAll) {
  tensors_["e"] = {DType::kF8E4M3, {4, 8, 16}, Counted(512)};
  tensors_["e_weight_scale"] = {DType::kF32, {8, 1}, Floats({1, 1, 1, 1, 1, 1, 1, 1})};
  LinearFinder& finder = Open();
  MatrixPlace place("e");
  place.stack = 4;
  place.index = 3;
  EXPECT_FALSE(finder.Linear(place, 8, 16, true).present());
  place.index = 4;
  EXPECT_FALSE(finder.Linear(place, 8, 16, true).present());
  place.index = 0;
  place.rows = 8;
  place.first_row = 1;
  EXPECT_FALSE(finder.Linear(place, 8, 16, true).present());
  EXPECT_THAT(problems_, ElementsAre(HasSubstr("found F32 of [8, 1]"), HasSubstr("has no row 7 of matrix 4"),
                                     HasSubstr("has no row 8 of matrix 0")));
}

TEST_F(FinderTest, ScalesOfGateAndUpMayDifferInAStack) {
  tensors_["e.gate_up"] = {DType::kU8, {2, 8, 16}, Counted(256)};
  tensors_["e.gate_up_weight_scale"] = {DType::kF8E4M3, {2, 8, 2}, Counted(32)};
  tensors_["e.gate_up_weight_scale_2"] = {DType::kF32, {2, 2, 1}, Floats({1, 2, 3, 4})};
  LinearFinder& finder = Open();
  for (int64_t e = 0; e < 2; ++e) {
    for (int64_t half = 0; half < 2; ++half) {
      MatrixPlace place("e.gate_up");
      place.stack = 2;
      place.index = e;
      place.rows = 8;
      place.first_row = 4 * half;
      EXPECT_EQ(finder.Linear(place, 4, 32, true).tensor_scale, 1 + 2 * e + half);
    }
  }
  EXPECT_THAT(problems_, IsEmpty());
}

}  // namespace
}  // namespace tessera
