#include "server/model/quantize.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/nvfp4/quantize.h"
#include "nlohmann/json.hpp"
#include "server/model/checkpoint.h"
#include "server/model/linear_rows.h"
#include "tests/unit/server/model/test_files.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class QuantizeTest : public testing::TestWithParam<std::string> {
 protected:
  // A copy of a golden BF16 checkpoint as one file, with some tensors in another type.
  void CopyAs(const std::string& name, DType dtype) {
    std::filesystem::create_directory(directory_ / "in");
    for (const auto& entry : std::filesystem::directory_iterator(GoldenDirectory(name))) {
      if (entry.path().extension() == ".json") std::filesystem::copy(entry.path(), directory_ / "in");
    }
    std::filesystem::remove(directory_ / "in/model.safetensors.index.json");
    auto reader = SafetensorsReader::OpenDirectory(GoldenDirectory(name));
    ASSERT_TRUE(reader.ok());
    std::vector<SafetensorsWriter::Entry> entries;
    for (const auto& [tensor_name, tensor] : (*reader)->tensors())
      entries.push_back({tensor_name, dtype, tensor.shape});
    auto writer = SafetensorsWriter::Create(directory_ / "in/model.safetensors", entries, {});
    ASSERT_TRUE(writer.ok());
    for (const auto& [tensor_name, tensor] : (*reader)->tensors()) {
      std::vector<uint8_t> data;
      for (int64_t i = 0; i < tensor.num_elements(); ++i) {
        uint16_t bits;
        std::memcpy(&bits, tensor.data.data() + 2 * i, 2);
        uint32_t wide = static_cast<uint32_t>(bits) << 16;
        if (tensor_name == poisoned_ && i == poisoned_index_) wide = std::bit_cast<uint32_t>(poison_);
        for (int b = dtype == DType::kF32 ? 0 : 2; b < 4; ++b) data.push_back(wide >> (8 * b));
      }
      ASSERT_TRUE((*writer)->Write(tensor_name, data).ok());
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  // `left_out`: tensors of the second alone.
  void ExpectSameTensors(const std::string& a, const std::string& b,
                         const std::vector<std::string>& left_out = {}) {
    auto first = SafetensorsReader::OpenDirectory(a);
    auto second = SafetensorsReader::OpenDirectory(b);
    ASSERT_TRUE(first.ok() && second.ok());
    std::vector<std::string> missing;
    for (const auto& [name, tensor] : (*second)->tensors()) {
      if ((*first)->Find(name) == nullptr) missing.push_back(name);
    }
    EXPECT_EQ(missing, left_out);
    for (const auto& [name, tensor] : (*first)->tensors()) {
      const TensorView* other = (*second)->Find(name);
      ASSERT_NE(other, nullptr) << name;
      EXPECT_EQ(tensor.dtype, other->dtype) << name;
      EXPECT_EQ(tensor.shape, other->shape) << name;
      EXPECT_EQ(tensor.data, other->data) << name;
    }
  }

  TemporaryDirectory directory_;
  std::string poisoned_;
  int64_t poisoned_index_ = 0;
  float poison_ = 0;
};

// tests/golden/quantize_reference.py made the NVFP4 checkpoints, in numpy and torch.
TEST_P(QuantizeTest, EveryByteAsTheReference) {
  auto report = Quantize(GoldenDirectory(GetParam() + "_bf16"), directory_ / "out", {.num_threads = 3});
  ASSERT_TRUE(report.ok()) << report.status();
  const bool predicts = GetParam() == "glm4_moe";
  std::vector<std::string> left_out;
  if (predicts) left_out = {"model.layers.3.enorm.weight", "model.layers.3.mlp.gate.weight"};
  ExpectSameTensors(directory_ / "out", GoldenDirectory(GetParam() + "_nvfp4"), left_out);
  EXPECT_EQ(directory_.num_entries(), 1);
  EXPECT_EQ(report->warnings.size(), predicts ? 1 : 0);
  const json config = json::parse(ReadFile(directory_ / "out/config.json"));
  EXPECT_EQ(config.value("num_nextn_predict_layers", 0), 0);

  // The report tells the truth: the error again, from the files.
  auto original = Checkpoint::Open(GoldenDirectory(GetParam() + "_bf16"));
  auto quantized = Checkpoint::Open(directory_ / "out");
  ASSERT_TRUE(original.ok() && quantized.ok()) << quantized.status();
  const LinearWeights& source = (*original)->weights().layers.back().experts[0].down;
  const LinearWeights& result = (*quantized)->weights().layers.back().experts[0].down;
  double error = 0, signal = 0, largest = 0;
  std::vector<float> row(result.in);
  RowReader reader;
  for (int64_t r = 0; r < result.out; ++r) {
    const LinearRows rows = reader.Read(result, r, 1);
    nvfp4::DequantizeRow(rows.data, rows.scales, result.in, result.tensor_scale, row.data());
    for (int64_t c = 0; c < result.in; ++c) {
      uint16_t bits;
      std::memcpy(&bits, source.data.data + 2 * (r * result.in + c), 2);
      const double value = ToFloat(Bf16{bits});
      error += (row[c] - value) * (row[c] - value);
      signal += value * value;
      largest = std::max(largest, std::abs(row[c] - value));
    }
  }
  const auto entry = std::find_if(report->tensors.begin(), report->tensors.end(),
                                  [&](const TensorError& tensor) { return tensor.name == result.name; });
  ASSERT_NE(entry, report->tensors.end());
  EXPECT_NEAR(entry->relative_rms, std::sqrt(error / signal), 1e-6);
  EXPECT_NEAR(entry->sqnr_db, 10 * std::log10(signal / error), 1e-4);
  EXPECT_NEAR(entry->max_abs, largest, 1e-6);
  EXPECT_GT(entry->sqnr_db, 15);
  EXPECT_EQ(report->output_bytes, std::filesystem::file_size(directory_ / "out/model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(Models, QuantizeTest,
                         testing::Values("moe", "mixed", "bias", "mixtral", "glm4_moe", "minimax_m2"));

TEST_F(QuantizeTest, WritesTheConfiguration) {
  CopyAs("mixed_bf16", DType::kBf16);
  WriteFile(directory_ / "in/tokenizer.json", "{\"a\":1}");
  WriteFile(directory_ / "in/generation_config.json", R"({"temperature":0.5})");
  WriteFile(directory_ / "in/unrelated.txt", "x");
  ASSERT_TRUE(Quantize(directory_ / "in", directory_ / "out/", {.attention = false}).ok());
  const json before = json::parse(ReadFile(directory_ / "in/config.json"));
  json after = json::parse(ReadFile(directory_ / "out/config.json"));
  const json quantization = after["quantization_config"];
  after.erase("quantization_config");
  EXPECT_EQ(after, before);
  EXPECT_EQ(quantization["quant_algo"], "W4A16_NVFP4");
  EXPECT_EQ(quantization["quant_method"], "modelopt");
  EXPECT_TRUE(quantization["config_groups"]["group_0"]["input_activations"].is_null());
  EXPECT_EQ(quantization["config_groups"]["group_0"]["weights"]["group_size"], 16);
  const auto ignore = quantization["ignore"].get<std::vector<std::string>>();
  EXPECT_THAT(ignore,
              testing::IsSupersetOf({"lm_head", "model.layers.3.mlp.gate", "model.layers.0.self_attn.q_proj",
                                     "model.layers.2.self_attn.o_proj"}));
  EXPECT_THAT(ignore,
              testing::Not(testing::Contains("model.layers.0.mlp.gate")));  // a dense layer has no router
  const json hf = json::parse(ReadFile(directory_ / "out/hf_quant_config.json"));
  EXPECT_EQ(hf["quantization"]["exclude_modules"], quantization["ignore"]);
  EXPECT_EQ(ReadFile(directory_ / "out/tokenizer.json"), "{\"a\":1}");
  EXPECT_TRUE(std::filesystem::exists(directory_ / "out/generation_config.json"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "out/unrelated.txt"));

  auto checkpoint = Checkpoint::Open(directory_ / "out");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->weights().layers[0].q.format, WeightFormat::kBf16);
  EXPECT_EQ((*checkpoint)->weights().layers[0].experts[0].up.format, WeightFormat::kNvfp4);
  EXPECT_THAT((*checkpoint)->facts().warnings, testing::IsEmpty());
}

TEST_F(QuantizeTest, TheInputsTypeDoesNotMatter) {
  CopyAs("moe_bf16", DType::kF32);  // the same values
  auto report = Quantize(directory_ / "in", directory_ / "out", {});
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectSameTensors(directory_ / "out", GoldenDirectory("moe_nvfp4"));
  EXPECT_THAT(report->warnings, testing::ElementsAre(HasSubstr("rounded")));
}

TEST_F(QuantizeTest, FourOverSixIsCloser) {
  auto plain = Quantize(GoldenDirectory("moe_bf16"), directory_ / "plain", {});
  auto better = Quantize(GoldenDirectory("moe_bf16"), directory_ / "better", {.four_over_six = true});
  ASSERT_TRUE(plain.ok() && better.ok());
  EXPECT_LT(better->relative_rms, plain->relative_rms);
  EXPECT_TRUE(Checkpoint::Open(directory_ / "better").ok());
}

TEST_F(QuantizeTest, ReportsProgress) {
  std::vector<QuantizeProgress> seen;
  ASSERT_TRUE(Quantize(GoldenDirectory("moe_bf16"), directory_ / "out",
                       {.num_threads = 3, .progress = [&](const QuantizeProgress& p) { seen.push_back(p); }})
                  .ok());
  ASSERT_FALSE(seen.empty());
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i].tensors_done, static_cast<int64_t>(i) + 1);
  EXPECT_EQ(seen.back().tensors_done, seen.back().tensors_total);
  EXPECT_EQ(seen.back().bytes_done, seen.back().bytes_total);
}

TEST_F(QuantizeTest, BadInputLeavesNothingBehind) {
  for (const auto& [tensor, index, value] :
       {std::tuple("model.layers.1.mlp.experts.4.up_proj.weight", 77, std::numeric_limits<float>::infinity()),
        std::tuple("model.layers.0.self_attn.k_proj.weight", 0, std::numeric_limits<float>::quiet_NaN()),
        std::tuple("model.norm.weight", 3, -std::numeric_limits<float>::infinity())}) {
    poisoned_ = tensor;
    poisoned_index_ = index;
    poison_ = value;
    CopyAs("moe_bf16", DType::kF32);
    const absl::Status status = Quantize(directory_ / "in", directory_ / "out", {.num_threads = 2}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("\"", tensor, "\": element ", index)));
    EXPECT_EQ(directory_.num_entries(), 1);  // the input
    std::filesystem::remove_all(directory_ / "in");
  }
  EXPECT_THAT(Quantize(GoldenDirectory("moe_nvfp4"), directory_ / "out", {}).status().message(),
              HasSubstr("NVFP4 already"));
  EXPECT_FALSE(Quantize(directory_ / "nowhere", directory_ / "out", {}).ok());
  EXPECT_FALSE(Quantize(GoldenDirectory("moe_bf16"), directory_ / "no/such/parent", {}).ok());
  EXPECT_EQ(directory_.num_entries(), 0);
}

TEST_F(QuantizeTest, OverwritesOnlyWhenAskedAndOnlyModels) {
  ASSERT_TRUE(Quantize(GoldenDirectory("moe_bf16"), directory_ / "out", {}).ok());
  EXPECT_EQ(Quantize(GoldenDirectory("bias_bf16"), directory_ / "out", {}).status().code(),
            absl::StatusCode::kAlreadyExists);
  ExpectSameTensors(directory_ / "out", GoldenDirectory("moe_nvfp4"));
  ASSERT_TRUE(Quantize(GoldenDirectory("bias_bf16"), directory_ / "out", {.overwrite = true}).ok());
  ExpectSameTensors(directory_ / "out", GoldenDirectory("bias_nvfp4"));
  EXPECT_EQ(directory_.num_entries(), 1);

  std::filesystem::create_directory(directory_ / "precious");
  WriteFile(directory_ / "precious/thesis.txt", "x");
  EXPECT_EQ(
      Quantize(GoldenDirectory("moe_bf16"), directory_ / "precious", {.overwrite = true}).status().code(),
      absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "precious/thesis.txt"));
}

TEST_F(QuantizeTest, CompressedTensorsDialectHoldsTheSameValues) {
  for (const bool four_over_six : {false, true}) {
    QuantizeOptions options{.four_over_six = four_over_six, .overwrite = true};
    ASSERT_TRUE(Quantize(GoldenDirectory("moe_bf16"), directory_ / "a", options).ok());
    options.dialect = QuantizeDialect::kCompressedTensors;
    ASSERT_TRUE(Quantize(GoldenDirectory("moe_bf16"), directory_ / "b", options).ok());
    auto a = Checkpoint::Open(directory_ / "a");
    auto b = Checkpoint::Open(directory_ / "b");
    ASSERT_TRUE(a.ok() && b.ok()) << b.status();
    EXPECT_TRUE((*b)->facts().warnings.empty());
    const LayerWeights& first = (*a)->weights().layers[1];
    const LayerWeights& second = (*b)->weights().layers[1];
    EXPECT_EQ(second.q.tensor->name, "model.layers.1.self_attn.q_proj.weight_packed");
    int64_t differences = 0, count = 0;
    for (const auto& [x, y] :
         {std::pair(&first.q, &second.q), std::pair(&first.experts[3].up, &second.experts[3].up)}) {
      std::vector<float> values(x->out * x->in), others(x->out * x->in);
      Dequantize(*x, 0, x->out, values.data());
      Dequantize(*y, 0, y->out, others.data());
      for (size_t i = 0; i < values.size(); ++i) {
        differences +=
            std::abs(values[i] - others[i]) > 1e-6f * std::abs(values[i]);  // a tie that fell otherwise
      }
      count += values.size();
    }
    EXPECT_LE(differences, count / 1000);
    const json config = json::parse(ReadFile(directory_ / "b/config.json"))["quantization_config"];
    EXPECT_EQ(config["quant_method"], "compressed-tensors");
    EXPECT_EQ(config["format"], "nvfp4-pack-quantized");
    EXPECT_FALSE(std::filesystem::exists(directory_ / "b/hf_quant_config.json"));
  }
}

// A model of one layer and two stacked experts of any format.
class StackedTest : public QuantizeTest {
 protected:
  static constexpr int64_t kHidden = 64, kIntermediate = 32, kExperts = 2;

  void Add(const std::string& name, DType dtype, std::vector<int64_t> shape, std::vector<uint8_t> data) {
    tensors_[name] = {{name, dtype, std::move(shape)}, std::move(data)};
  }
  static std::vector<uint8_t> Bf16Values(int64_t count) {
    std::vector<uint8_t> data;
    for (int64_t i = 0; i < count; ++i) {
      const Bf16 value = ToBf16(std::sin(static_cast<float>(i * i % 1009)));
      data.push_back(value.bits & 0xff);
      data.push_back(value.bits >> 8);
    }
    return data;
  }
  static std::vector<uint8_t> Bytes(int64_t count, int64_t first, int64_t limit) {
    std::vector<uint8_t> data;
    for (int64_t i = 0; i < count; ++i) data.push_back(first + i * 7919 % limit);
    return data;
  }
  void AddBf16(const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    Add(name, DType::kBf16, std::move(shape), Bf16Values(count));
  }

  void SetUp() override {
    AddBf16("model.embed_tokens.weight", {97, kHidden});
    AddBf16("lm_head.weight", {97, kHidden});
    AddBf16("model.norm.weight", {kHidden});
    AddBf16("model.layers.0.input_layernorm.weight", {kHidden});
    AddBf16("model.layers.0.post_attention_layernorm.weight", {kHidden});
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      AddBf16(absl::StrCat("model.layers.0.self_attn.", name, ".weight"), {64, 64});
    }
    AddBf16("model.layers.0.self_attn.q_norm.weight", {32});
    AddBf16("model.layers.0.self_attn.k_norm.weight", {32});
    AddBf16("model.layers.0.mlp.gate.weight", {kExperts, kHidden});
  }

  void Write() {
    std::filesystem::create_directory(directory_ / "in");
    json config = json::parse(ReadFile(GoldenDirectory("moe_bf16") + "/config.json"));
    config["hidden_size"] = kHidden;
    config["moe_intermediate_size"] = kIntermediate;
    config["num_local_experts"] = kExperts;
    config["num_hidden_layers"] = 1;
    config["num_attention_heads"] = config["num_key_value_heads"] = 2;
    WriteFile(directory_ / "in/config.json", config.dump());
    std::vector<SafetensorsWriter::Entry> entries;
    for (const auto& [name, tensor] : tensors_) entries.push_back(tensor.first);
    auto writer = SafetensorsWriter::Create(directory_ / "in/model.safetensors", entries, {});
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const auto& [name, tensor] : tensors_)
      ASSERT_TRUE((*writer)->Write(name, tensor.second).ok()) << name;
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  // Quantises and opens both.
  QuantizeReport Run(const QuantizeOptions& options) {
    Write();
    auto report = Quantize(directory_ / "in", directory_ / "out", options);
    EXPECT_TRUE(report.ok()) << report.status();
    in_ = Checkpoint::Open(directory_ / "in").value();
    out_ = Checkpoint::Open(directory_ / "out").value();
    return report.ok() ? *report : QuantizeReport{};
  }

  // Largest |out - in| of a matrix, over its largest |in|.
  static double Distance(const LinearWeights& in, const LinearWeights& out) {
    std::vector<float> a(in.out * in.in), b(in.out * in.in);
    Dequantize(in, 0, in.out, a.data());
    Dequantize(out, 0, out.out, b.data());
    double distance = 0, largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      distance = std::max<double>(distance, std::abs(a[i] - b[i]));
      largest = std::max<double>(largest, std::abs(a[i]));
    }
    return distance / largest;
  }

  std::map<std::string, std::pair<SafetensorsWriter::Entry, std::vector<uint8_t>>> tensors_;
  std::unique_ptr<Checkpoint> in_, out_;
};

TEST_F(StackedTest, ExpertsStandAlone) {
  AddBf16("model.layers.0.mlp.experts.gate_up_proj", {kExperts, 2 * kIntermediate, kHidden});
  AddBf16("model.layers.0.mlp.experts.down_proj", {kExperts, kHidden, kIntermediate});
  Run({.attention = false});
  for (int e = 0; e < kExperts; ++e) {
    const ExpertWeights& in = in_->weights().layers[0].experts[e];
    const ExpertWeights& out = out_->weights().layers[0].experts[e];
    EXPECT_EQ(out.up.tensor->name, absl::StrCat("model.layers.0.mlp.experts.", e, ".up_proj.weight"));
    EXPECT_EQ(out.gate.tensor_scale, out.up.tensor_scale);
    for (const auto& [a, b] :
         {std::pair(&in.gate, &out.gate), std::pair(&in.up, &out.up), std::pair(&in.down, &out.down)}) {
      EXPECT_GT(Distance(*a, *b), 0);
      EXPECT_LT(Distance(*a, *b), 0.2);
    }
  }
  EXPECT_EQ(Distance(in_->weights().layers[0].o, out_->weights().layers[0].o), 0);
}

TEST_F(StackedTest, Mxfp4IsCastExactly) {
  const std::string experts = "model.layers.0.mlp.experts.";
  Add(experts + "gate_up_proj_blocks", DType::kU8, {kExperts, 2 * kIntermediate, 2, 16}, Bytes(4096, 0, 256));
  Add(experts + "gate_up_proj_scales", DType::kU8, {kExperts, 2 * kIntermediate, 2}, Bytes(256, 110, 18));
  Add(experts + "down_proj_blocks", DType::kU8, {kExperts, kHidden, 1, 16}, Bytes(2048, 0, 256));
  Add(experts + "down_proj_scales", DType::kU8, {kExperts, kHidden, 1}, Bytes(128, 100, 40));  // too wide
  tensors_[experts + "gate_up_proj_scales"].second[3] = 0;  // of a block of zeros: no exponent that counts
  std::fill_n(tensors_[experts + "gate_up_proj_blocks"].second.begin() + 3 * 16, 16, 0x80);
  const QuantizeReport report = Run({});
  for (int e = 0; e < kExperts; ++e) {
    const ExpertWeights& in = in_->weights().layers[0].experts[e];
    const ExpertWeights& out = out_->weights().layers[0].experts[e];
    EXPECT_EQ(in.gate.format, WeightFormat::kMxfp4);
    EXPECT_EQ(out.gate.format, WeightFormat::kNvfp4);
    EXPECT_EQ(Distance(in.gate, out.gate), 0);
    EXPECT_EQ(Distance(in.up, out.up), 0);
    EXPECT_GT(Distance(in.down, out.down), 0);
    EXPECT_LT(Distance(in.down, out.down), 0.2);
  }
  for (const TensorError& tensor : report.tensors) {
    if (tensor.name.find("up_proj") != std::string::npos) {
      EXPECT_EQ(tensor.relative_rms, 0);
    }
  }
}

TEST_F(StackedTest, Fp8IsRead) {
  const std::string experts = "model.layers.0.mlp.experts.";
  const float scales[] = {0.01f, 0.02f};
  std::vector<uint8_t> scale_bytes(8);
  std::memcpy(scale_bytes.data(), scales, 8);
  Add(experts + "gate_up_proj", DType::kF8E4M3, {kExperts, 2 * kIntermediate, kHidden}, Bytes(8192, 0, 120));
  Add(experts + "gate_up_proj_scale_inv", DType::kF32, {kExperts, 1, 1}, scale_bytes);
  Add(experts + "down_proj", DType::kF8E4M3, {kExperts, kHidden, kIntermediate}, Bytes(4096, 0, 120));
  Add(experts + "down_proj_scale_inv", DType::kF32, {kExperts, 1, 1}, scale_bytes);
  Run({.num_threads = 2});
  for (int e = 0; e < kExperts; ++e) {
    const ExpertWeights& in = in_->weights().layers[0].experts[e];
    EXPECT_EQ(in.down.format, WeightFormat::kFp8);
    EXPECT_LT(Distance(in.gate, out_->weights().layers[0].experts[e].gate), 0.2);
    EXPECT_LT(Distance(in.down, out_->weights().layers[0].experts[e].down), 0.2);
  }
}

TEST_F(StackedTest, EveryFamily) {
  for (const std::string name : {"llama_bf16", "mistral_bf16", "qwen2_bf16", "qwen3_bf16", "gpt_oss_bf16",
                                 "gpt_oss_mxfp4", "glm4_moe_bf16", "deepseek_v3_bf16", "moonlight_bf16"}) {
    SCOPED_TRACE(name);
    for (const QuantizeDialect dialect : {QuantizeDialect::kModelOpt, QuantizeDialect::kCompressedTensors}) {
      const auto report =
          Quantize(GoldenDirectory(name), directory_ / "out", {.dialect = dialect, .overwrite = true});
      ASSERT_TRUE(report.ok()) << report.status();
      auto in = Checkpoint::Open(GoldenDirectory(name));
      auto out = Checkpoint::Open(directory_ / "out");
      ASSERT_TRUE(in.ok() && out.ok()) << out.status();
      EXPECT_EQ((*in)->facts().num_parameters, (*out)->facts().num_parameters);
      const bool exact = name == "gpt_oss_mxfp4";
      for (size_t i = 0; i < (*in)->weights().layers.size(); ++i) {
        const LayerWeights& a = (*in)->weights().layers[i];
        const LayerWeights& b = (*out)->weights().layers[i];
        for (const auto matrix : {&LayerWeights::q, &LayerWeights::k, &LayerWeights::v, &LayerWeights::o,
                                  &LayerWeights::q_a, &LayerWeights::kv_a, &LayerWeights::kv_b}) {
          if (!(a.*matrix).present()) continue;
          EXPECT_EQ((b.*matrix).format, WeightFormat::kNvfp4);
          EXPECT_LT(Distance(a.*matrix, b.*matrix), 0.2) << (a.*matrix).name;
        }
        EXPECT_EQ(a.selection_bias.ToFloat(), b.selection_bias.ToFloat());
        EXPECT_EQ(a.sinks.ToFloat(), b.sinks.ToFloat());
        for (size_t e = 0; e < a.experts.size(); ++e) {
          for (const auto matrix : {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down}) {
            EXPECT_LE(Distance(a.experts[e].*matrix, b.experts[e].*matrix), exact ? 0 : 0.2)
                << (a.experts[e].*matrix).name;
          }
          for (const auto bias :
               {&ExpertWeights::gate_bias, &ExpertWeights::up_bias, &ExpertWeights::down_bias}) {
            EXPECT_EQ((a.experts[e].*bias).ToFloat(), (b.experts[e].*bias).ToFloat());
          }
          EXPECT_EQ(b.experts[e].gate.tensor_scale, b.experts[e].up.tensor_scale);
        }
        if (a.shared_expert.up.present()) {
          EXPECT_LT(Distance(a.shared_expert.up, b.shared_expert.up), 0.2);
        }
      }
    }
  }
}

TEST_F(QuantizeTest, CancellingLeavesNothingBehind) {
  for (const int after : {0, 1, 10, 40}) {
    std::atomic<int> asked{0};
    const absl::Status status = Quantize(GoldenDirectory("moe_bf16"), directory_ / "out",
                                         {.num_threads = 2, .cancelled = [&] { return asked++ >= after; }})
                                    .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    EXPECT_EQ(directory_.num_entries(), 0);
  }
}

TEST_F(QuantizeTest, NeverReplacesItsInput) {
  CopyAs("moe_bf16", DType::kBf16);
  std::filesystem::create_directory_symlink(directory_ / "in", directory_ / "link");
  for (const std::string& out :
       {directory_ / "in", directory_ / "in/", directory_ / "link", directory_.path()}) {
    EXPECT_FALSE(Quantize(directory_ / "in", out, {.overwrite = true}).ok()) << out;
  }
  EXPECT_TRUE(Checkpoint::Open(directory_ / "in").ok());
  EXPECT_EQ(directory_.num_entries(), 2);
}

}  // namespace
}  // namespace tessera
