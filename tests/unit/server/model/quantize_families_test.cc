// Every family, from each type of weights and into both dialects: each matrix of the output stands for the one of the
// input that has its place, to within a block's step.
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/nvfp4/bf16.h"
#include "kernels/nvfp4/nvfp4.h"
#include "server/model/checkpoint.h"
#include "server/model/linear_rows.h"
#include "server/model/quantize.h"
#include "tests/unit/server/model/test_files.h"

namespace tessera {
namespace {

enum class InputType { kBf16, kF16, kFp8 };

struct Stored {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> data;
};

template <typename T>
std::vector<uint8_t> BytesOf(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<float> Bf16Values(const TensorView& tensor) {
  std::vector<float> values(tensor.num_elements());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = DenseToFloat(WeightFormat::kBf16, tensor.data.data() + 2 * i);
  }
  return values;
}

// Rounded towards zero; exact for every BF16 value that a test needs to be.
uint16_t ToHalf(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::abs(value);
  if (magnitude < 0x1p-14f) return sign | static_cast<uint16_t>(magnitude * 0x1p24f);
  const int exponent = std::ilogb(magnitude);
  const float fraction = std::ldexp(magnitude, -exponent) - 1.0f;
  return sign | static_cast<uint16_t>((exponent + 15) << 10) | static_cast<uint16_t>(fraction * 1024.0f);
}

uint8_t NearestE4M3(float value) {
  uint8_t best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    if (std::abs(nvfp4::E4M3ToFloat(code) - std::abs(value)) <
        std::abs(nvfp4::E4M3ToFloat(best) - std::abs(value))) {
      best = code;
    }
  }
  return std::signbit(value) ? best | 0x80 : best;
}

bool IsProjection(const std::string& name) {
  return name.find("_proj") != std::string::npos && name.find("bias") == std::string::npos &&
         name.find("norm") == std::string::npos;
}

// The matrices of attention and experts in FP8: with a scale for each block of 128 x 128, or for each of a stack.
void AddFp8(const TensorView& tensor, std::map<std::string, Stored>* out) {
  const std::vector<float> values = Bf16Values(tensor);
  const bool stacked = tensor.shape.size() == 3;
  const int64_t matrices = stacked ? tensor.shape[0] : 1;
  const int64_t rows = tensor.shape[tensor.shape.size() - 2], columns = tensor.shape.back();
  const int64_t block = stacked ? std::max(rows, columns) : 128;
  const int64_t grid_rows = (rows + block - 1) / block, grid_columns = (columns + block - 1) / block;
  std::vector<float> scales(matrices * grid_rows * grid_columns, 1e-9f);
  const auto scale_of = [&](size_t i) -> float& {
    const int64_t matrix = i / (rows * columns), r = i / columns % rows, c = i % columns;
    return scales[(matrix * grid_rows + r / block) * grid_columns + c / block];
  };
  for (size_t i = 0; i < values.size(); ++i) {
    scale_of(i) = std::max(scale_of(i), std::abs(values[i]) / nvfp4::kE4M3Max);
  }
  std::vector<uint8_t> codes(values.size());
  for (size_t i = 0; i < values.size(); ++i) codes[i] = NearestE4M3(values[i] / scale_of(i));
  (*out)[tensor.name] = {DType::kF8E4M3, tensor.shape, codes};
  const std::vector<int64_t> grid =
      stacked ? std::vector<int64_t>{matrices} : std::vector<int64_t>{grid_rows, grid_columns};
  const std::string prefix = stacked ? tensor.name + "_" : tensor.name.substr(0, tensor.name.rfind('.') + 1);
  (*out)[prefix + "weight_scale_inv"] = {DType::kF32, grid, BytesOf(scales)};
}

void WriteInput(const std::string& name, InputType type, const std::string& directory) {
  std::filesystem::create_directory(directory);
  WriteFile(directory + "/config.json", ReadFile(GoldenDirectory(name) + "/config.json"));
  const auto reader = SafetensorsReader::OpenDirectory(GoldenDirectory(name));
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::map<std::string, Stored> tensors;
  for (const auto& [tensor_name, tensor] : (*reader)->tensors()) {
    const std::vector<uint8_t> data(tensor.data.begin(), tensor.data.end());
    if (tensor.dtype != DType::kBf16 || type == InputType::kBf16) {
      tensors[tensor_name] = {tensor.dtype, tensor.shape, data};
    } else if (type == InputType::kF16) {
      std::vector<uint16_t> halves;
      for (const float value : Bf16Values(tensor)) halves.push_back(ToHalf(value));
      tensors[tensor_name] = {DType::kF16, tensor.shape, BytesOf(halves)};
    } else if (tensor.shape.size() >= 2 && IsProjection(tensor_name)) {
      AddFp8(tensor, &tensors);
    } else {
      tensors[tensor_name] = {tensor.dtype, tensor.shape, data};
    }
  }
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [tensor_name, tensor] : tensors)
    entries.push_back({tensor_name, tensor.dtype, tensor.shape});
  const auto writer = SafetensorsWriter::Create(directory + "/model.safetensors", entries, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& [tensor_name, tensor] : tensors) {
    ASSERT_TRUE((*writer)->Write(tensor_name, tensor.data).ok()) << tensor_name;
  }
  ASSERT_TRUE((*writer)->Finish().ok());
}

enum class Part { kTable, kRouter, kAttention, kMlp };

// Calls fn(name, part, of the first, of the second) for every matrix, present or not.
template <typename Fn>
void ForEachMatrix(const ModelWeights& a, const ModelWeights& b, Fn fn) {
  fn("embeddings", Part::kTable, a.embeddings, b.embeddings);
  fn("lm_head", Part::kTable, a.lm_head, b.lm_head);
  for (size_t i = 0; i < a.layers.size(); ++i) {
    const LayerWeights &x = a.layers[i], &y = b.layers[i];
    for (const auto& [name, member] :
         {std::pair("q", &LayerWeights::q), std::pair("k", &LayerWeights::k),
          std::pair("v", &LayerWeights::v), std::pair("o", &LayerWeights::o),
          std::pair("q_a", &LayerWeights::q_a), std::pair("kv_a", &LayerWeights::kv_a),
          std::pair("kv_b", &LayerWeights::kv_b)}) {
      fn(absl::StrCat(name, " of layer ", i), Part::kAttention, x.*member, y.*member);
    }
    fn(absl::StrCat("router of layer ", i), Part::kRouter, x.router, y.router);
    ASSERT_EQ(x.experts.size(), y.experts.size());
    for (size_t e = 0; e <= x.experts.size(); ++e) {
      const bool shared = e == x.experts.size();
      const ExpertWeights& from = shared ? x.shared_expert : x.experts[e];
      const ExpertWeights& to = shared ? y.shared_expert : y.experts[e];
      const std::string expert = absl::StrCat(" of expert ", e, " of layer ", i);
      fn("gate" + expert, Part::kMlp, from.gate, to.gate);
      fn("up" + expert, Part::kMlp, from.up, to.up);
      fn("down" + expert, Part::kMlp, from.down, to.down);
      if (to.gate.format == WeightFormat::kNvfp4) {
        EXPECT_EQ(to.gate.tensor_scale, to.up.tensor_scale);
      }
    }
  }
}

template <typename Fn>
void ForEachVector(const LayerWeights& a, const LayerWeights& b, Fn fn) {
  for (const auto member :
       {&LayerWeights::input_norm, &LayerWeights::post_attention_norm, &LayerWeights::q_bias,
        &LayerWeights::k_bias, &LayerWeights::v_bias, &LayerWeights::o_bias, &LayerWeights::q_norm,
        &LayerWeights::k_norm, &LayerWeights::q_a_norm, &LayerWeights::kv_a_norm, &LayerWeights::sinks,
        &LayerWeights::router_bias, &LayerWeights::selection_bias, &LayerWeights::key_scale,
        &LayerWeights::value_scale}) {
    fn(a.*member, b.*member);
  }
  for (size_t e = 0; e < a.experts.size(); ++e) {
    for (const auto member :
         {&ExpertWeights::gate_bias, &ExpertWeights::up_bias, &ExpertWeights::down_bias}) {
      fn(a.experts[e].*member, b.experts[e].*member);
    }
  }
}

std::vector<float> Values(const LinearWeights& matrix) {
  std::vector<float> values(matrix.out * matrix.in);
  Dequantize(matrix, 0, matrix.out, values.data());
  return values;
}

// Empty, or what is wrong.
std::string Compare(const LinearWeights& original, const LinearWeights& written) {
  if (written.out != original.out || written.in != original.in) return "another shape";
  const std::vector<float> expected = Values(original), found = Values(written);
  RowReader reader;
  for (int64_t r = 0; r < original.out; ++r) {
    const LinearRows rows = reader.Read(written, r, 1);
    for (int64_t c = 0; c < original.in; ++c) {
      const float value = expected[r * original.in + c], got = found[r * original.in + c];
      // The widest gap between codes, 4 to 6, is two of these steps; a value lies in the middle at worst.
      const float step = written.format == WeightFormat::kNvfp4
                             ? nvfp4::E4M3ToFloat(rows.scales[c / nvfp4::kBlockSize]) * written.tensor_scale
                             : 0.0f;
      const bool good = written.format == WeightFormat::kNvfp4 ? std::abs(got - value) <= 1.001f * step
                                                               : got == ToFloat(ToBf16(value));
      if (!good)
        return absl::StrCat("row ", r, ", column ", c, ": ", value, " became ", got, ", step ", step);
    }
  }
  return "";
}

using Parameter = std::tuple<std::string, InputType>;

class QuantizeFamiliesTest : public testing::TestWithParam<Parameter> {
 protected:
  TemporaryDirectory directory_;
};

TEST_P(QuantizeFamiliesTest, EveryMatrixKeepsItsPlaceAndValues) {
  const auto& [name, type] = GetParam();
  const std::string in = directory_ / "in";
  WriteInput(name, type, in);
  const auto original = Checkpoint::Open(in);
  ASSERT_TRUE(original.ok()) << original.status();
  for (const bool attention : {true, false}) {
    for (const QuantizeDialect dialect : {QuantizeDialect::kModelOpt, QuantizeDialect::kCompressedTensors}) {
      for (const bool four_over_six : {false, true}) {
        SCOPED_TRACE(absl::StrCat("attention ", attention, ", dialect ", static_cast<int>(dialect),
                                  ", four over six ", four_over_six));
        const std::string out = directory_ / "out";
        const auto report = Quantize(in, out,
                                     {.dialect = dialect,
                                      .four_over_six = four_over_six,
                                      .attention = attention,
                                      .overwrite = true,
                                      .num_threads = 1});
        ASSERT_TRUE(report.ok()) << report.status();
        const auto quantized = Checkpoint::Open(out);
        ASSERT_TRUE(quantized.ok()) << quantized.status();
        EXPECT_THAT((*quantized)->facts().warnings, testing::IsEmpty());
        EXPECT_EQ((*quantized)->facts().num_parameters, (*original)->facts().num_parameters);
        int64_t matrices = 0;
        ForEachMatrix(
            (*original)->weights(), (*quantized)->weights(),
            [&](const std::string& what, Part part, const LinearWeights& from, const LinearWeights& to) {
              ASSERT_EQ(from.present(), to.present()) << what;
              if (!from.present()) return;
              const bool quantize = (part == Part::kMlp || (part == Part::kAttention && attention)) &&
                                    from.in % nvfp4::kBlockSize == 0;
              EXPECT_EQ(to.format, quantize ? WeightFormat::kNvfp4 : WeightFormat::kBf16) << what;
              matrices += quantize;
              EXPECT_EQ(Compare(from, to), "") << what;
            });
        EXPECT_EQ(report->tensors.size(), static_cast<size_t>(matrices));
        EXPECT_GT(matrices, 0);
        for (size_t i = 0; i < (*original)->weights().layers.size(); ++i) {
          ForEachVector((*original)->weights().layers[i], (*quantized)->weights().layers[i],
                        [&](const VectorWeights& from, const VectorWeights& to) {
                          ASSERT_EQ(from.present(), to.present());
                          if (!from.present()) return;
                          std::vector<float> expected = from.ToFloat();
                          if (to.format == WeightFormat::kBf16) {
                            for (float& value : expected) value = ToFloat(ToBf16(value));
                          }
                          EXPECT_EQ(to.ToFloat(), expected) << to.tensor->name;
                        });
        }
      }
    }
  }
}

std::string NameOf(const testing::TestParamInfo<Parameter>& info) {
  constexpr const char* kTypes[] = {"Bf16", "F16", "Fp8"};
  return std::get<0>(info.param) + "_as_" + kTypes[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(
    Families, QuantizeFamiliesTest,
    testing::Combine(testing::Values("moe_bf16", "mixed_bf16", "bias_bf16", "llama_bf16", "mistral_bf16",
                                     "qwen2_bf16", "qwen3_bf16", "smollm3_bf16", "mixtral_bf16", "olmoe_bf16",
                                     "minimax_m2_bf16", "gpt_oss_bf16", "glm4_moe_bf16", "glm4_moe_lite_bf16",
                                     "deepseek_v2_bf16", "deepseek_v3_bf16", "moonlight_bf16"),
                     testing::Values(InputType::kBf16, InputType::kF16, InputType::kFp8)),
    NameOf);

TEST(QuantizeKvScales, StayWithTheCheckpoint) {
  TemporaryDirectory directory;
  const std::string in = directory / "in";
  WriteInput("moe_bf16", InputType::kFp8, in);
  {
    // The same again with scales of keys and values.
    std::map<std::string, Stored> tensors;
    const auto reader = SafetensorsReader::OpenDirectory(in);
    ASSERT_TRUE(reader.ok());
    for (const auto& [name, tensor] : (*reader)->tensors()) {
      tensors[name] = {tensor.dtype, tensor.shape, {tensor.data.begin(), tensor.data.end()}};
    }
    for (const int layer : {0, 1}) {
      const std::string prefix = absl::StrCat("model.layers.", layer, ".self_attn.");
      tensors[prefix + "k_proj.k_scale"] = {
          DType::kF32, {}, BytesOf<float>({0.01f * static_cast<float>(layer + 1)})};
      tensors[prefix + "v_proj.v_scale"] = {DType::kF32, {}, BytesOf<float>({0.3f})};
    }
    std::vector<SafetensorsWriter::Entry> entries;
    for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.dtype, tensor.shape});
    const auto writer = SafetensorsWriter::Create(directory / "in/model.safetensors.new", entries, {});
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const auto& [name, tensor] : tensors) ASSERT_TRUE((*writer)->Write(name, tensor.data).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  }
  std::filesystem::rename(directory / "in/model.safetensors.new", directory / "in/model.safetensors");
  WriteFile(directory / "in/hf_quant_config.json",
            R"({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})");
  for (const QuantizeDialect dialect : {QuantizeDialect::kModelOpt, QuantizeDialect::kCompressedTensors}) {
    const auto report = Quantize(in, directory / "out", {.dialect = dialect, .overwrite = true});
    ASSERT_TRUE(report.ok()) << report.status();
    const auto checkpoint = Checkpoint::Open(directory / "out");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->config().quantization.kv_cache, "FP8");
    const std::vector<LayerWeights>& layers = (*checkpoint)->weights().layers;
    EXPECT_THAT(layers[0].key_scale.ToFloat(), testing::ElementsAre(0.01f));
    EXPECT_THAT(layers[1].key_scale.ToFloat(), testing::ElementsAre(0.02f));
    EXPECT_THAT(layers[1].value_scale.ToFloat(), testing::ElementsAre(0.3f));
  }
}

}  // namespace
}  // namespace tessera
