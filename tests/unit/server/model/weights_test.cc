#include "server/model/weights.h"

#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/model/checkpoint.h"
#include "server/model/linear_rows.h"
#include "server/model/quantization_label.h"
#include "tests/unit/server/model/test_files.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Tensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> data;
};
using Tensors = std::map<std::string, Tensor>;

std::vector<uint8_t> FloatBytes(float value) {
  std::vector<uint8_t> bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

// Golden checkpoints with something changed.
class WeightsTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Checkpoint>> OpenChanged(const std::string& name,
                                                          const std::function<void(Tensors&)>& change) {
    Tensors tensors;
    {
      auto reader = SafetensorsReader::OpenDirectory(GoldenDirectory(name));
      EXPECT_TRUE(reader.ok()) << reader.status();
      for (const auto& [tensor_name, tensor] : (*reader)->tensors()) {
        tensors[tensor_name] = {tensor.dtype, tensor.shape, {tensor.data.begin(), tensor.data.end()}};
      }
    }
    change(tensors);
    std::vector<SafetensorsWriter::Entry> entries;
    for (const auto& [tensor_name, tensor] : tensors)
      entries.push_back({tensor_name, tensor.dtype, tensor.shape});
    auto writer = SafetensorsWriter::Create(directory_ / "model.safetensors", entries, {});
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (const auto& [tensor_name, tensor] : tensors) {
      EXPECT_TRUE((*writer)->Write(tensor_name, tensor.data).ok()) << tensor_name;
    }
    EXPECT_TRUE((*writer)->Finish().ok());
    WriteFile(directory_ / "config.json", ReadFile(GoldenDirectory(name) + "/config.json"));
    return Checkpoint::Open(directory_.path());
  }

  std::string ErrorOf(const std::string& name, const std::function<void(Tensors&)>& change) {
    auto checkpoint = OpenChanged(name, change);
    EXPECT_EQ(checkpoint.status().code(), absl::StatusCode::kInvalidArgument) << checkpoint.status();
    return std::string(checkpoint.status().message());
  }

  TemporaryDirectory directory_;
};

TEST_F(WeightsTest, ResolvesNvfp4) {
  auto checkpoint = Checkpoint::Open(GoldenDirectory("moe_nvfp4"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelWeights& weights = (*checkpoint)->weights();
  ASSERT_EQ(weights.layers.size(), 2);
  ASSERT_EQ(weights.layers[1].experts.size(), 6);
  const LinearWeights& down = weights.layers[1].experts[5].down;
  EXPECT_EQ(down.name, "model.layers.1.mlp.experts.5.down_proj");
  EXPECT_EQ(down.format, WeightFormat::kNvfp4);
  EXPECT_EQ(down.out, 48);
  EXPECT_EQ(down.in, 32);
  EXPECT_EQ(down.file_bytes(), 48 * 32 / 2 + 48 * 32 / 16);
  EXPECT_TRUE(down.contiguous());
  EXPECT_GT(down.tensor_scale, 0);
  EXPECT_EQ(weights.layers[0].router.format, WeightFormat::kBf16);
  EXPECT_EQ(weights.layers[0].q_norm.ToFloat().size(), 32);
  EXPECT_NE(weights.lm_head.tensor, weights.embeddings.tensor);
  EXPECT_THAT((*checkpoint)->facts().warnings, testing::IsEmpty());
}

TEST_F(WeightsTest, CountsParameters) {
  // hidden 48, 2 layers, 4 query and 2 KV heads of 32, 6 experts (2 a token) of 32, vocabulary 97.
  auto checkpoint = Checkpoint::Open(GoldenDirectory("moe_nvfp4"));
  ASSERT_TRUE(checkpoint.ok());
  const int64_t attention = 48 * 128 * 2 + 48 * 64 * 2 + 2 * 32;
  const int64_t shared = 48 + 2 * (attention + 2 * 48 + 6 * 48);
  const CheckpointFacts& facts = (*checkpoint)->facts();
  EXPECT_EQ(facts.num_parameters, 2 * 97 * 48 + shared + 2 * 6 * 3 * 48 * 32);
  EXPECT_EQ(facts.num_active_parameters, 97 * 48 + 48 + shared + 2 * 2 * 3 * 48 * 32);
  int64_t parameters = 0;
  for (const FormatUse& use : facts.formats) parameters += use.parameters;
  EXPECT_EQ(parameters, facts.num_parameters);
  const CheckpointFacts dummy = DummyFacts((*checkpoint)->spec());
  EXPECT_EQ(dummy.num_parameters, facts.num_parameters);
  EXPECT_EQ(dummy.weight_bytes, facts.weight_bytes);
}

// All that a layer can have, stacked experts and shared ones among it: every element of the file is counted once.
TEST_F(WeightsTest, CountsEveryElementOfEveryFamily) {
  for (const std::string name :
       {"llama_bf16", "mistral_bf16", "qwen2_bf16", "qwen3_bf16", "mixtral_bf16", "gpt_oss_bf16",
        "glm4_moe_bf16", "deepseek_v3_bf16", "moonlight_bf16", "smollm3_bf16", "deepseek_v2_bf16",
        "glm4_moe_lite_bf16", "olmoe_bf16", "minimax_m2_bf16"}) {
    SCOPED_TRACE(name);
    auto checkpoint = Checkpoint::Open(GoldenDirectory(name));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const ModelSpec& spec = (*checkpoint)->spec();
    const std::string prediction = absl::StrCat("model.layers.", spec.layers.size(), ".");
    int64_t elements = 0;
    for (const auto& [tensor_name, tensor] : (*checkpoint)->reader()->tensors()) {
      if (tensor_name.rfind(prediction, 0) != 0) elements += tensor.num_elements();
    }
    const CheckpointFacts& facts = (*checkpoint)->facts();
    EXPECT_EQ(facts.num_parameters, elements);
    EXPECT_EQ(DummyFacts(spec).num_parameters, elements);
    EXPECT_EQ(DummyFacts(spec).num_active_parameters, facts.num_active_parameters);
    EXPECT_EQ(facts.warnings.size(), spec.num_prediction_layers) << absl::StrJoin(facts.warnings, "; ");
  }
}

TEST_F(WeightsTest, ActiveParametersHaveSharedExpertsButNotTheOthers) {
  auto checkpoint = Checkpoint::Open(GoldenDirectory("glm4_moe_nvfp4"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const CheckpointFacts& facts = (*checkpoint)->facts();
  // Two layers of 6 experts of 16, 3 a token; a table of 41 x 32, of which a token uses a row.
  EXPECT_EQ(facts.num_parameters - facts.num_active_parameters, 2 * 3 * 3 * 16 * 32 + 40 * 32);
}

TEST_F(WeightsTest, SlicesOfRowsHaveTheRowsOfTheWhole) {
  for (const std::string name : {"deepseek_v3_bf16", "deepseek_v3_nvfp4", "gpt_oss_bf16", "gpt_oss_mxfp4"}) {
    SCOPED_TRACE(name);
    auto checkpoint = Checkpoint::Open(GoldenDirectory(name));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const LayerWeights& layer = (*checkpoint)->weights().layers[1];
    const LinearWeights& whole = layer.kv_b.present() ? layer.kv_b : layer.experts[2].up;
    std::vector<float> all(whole.out * whole.in), part(7 * whole.in);
    Dequantize(whole, 0, whole.out, all.data());
    Dequantize(SliceRows(whole, 5, 7), 0, 7, part.data());
    EXPECT_EQ(part, std::vector<float>(all.begin() + 5 * whole.in, all.begin() + 12 * whole.in));
  }
  // FP8 has a scale for a block of rows, which a slice may begin within.
  const int64_t rows = 300, columns = 4;
  std::vector<uint8_t> codes(rows * columns, 0x38);  // 1
  const std::vector<float> scales = {1, 2, 3};
  const TensorView tensor;
  LinearWeights whole;
  whole.format = WeightFormat::kFp8;
  whole.out = rows;
  whole.in = columns;
  whole.data = {codes.data(), columns, 1};
  whole.scales = {reinterpret_cast<const uint8_t*>(scales.data()), sizeof(float), sizeof(float)};
  whole.scale_block_rows = whole.scale_block_columns = 128;
  whole.tensor = &tensor;
  std::vector<float> part(3 * columns);
  Dequantize(SliceRows(SliceRows(whole, 100, 200), 26, 3), 0, 3, part.data());
  EXPECT_EQ(part, std::vector<float>({1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2}));
}

TEST_F(WeightsTest, GivesUpOnAnotherModelsConfiguration) {
  auto checkpoint = Checkpoint::Open(GoldenDirectory("mixtral_bf16"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ModelSpec spec = (*checkpoint)->spec();
  spec.layers.resize(4096, spec.layers[0]);
  for (LayerSpec& layer : spec.layers) layer.mlp.num_experts = 1 << 16;
  CheckpointFacts facts;
  const absl::Status status = ResolveWeights(spec, *(*checkpoint)->reader(), &facts).status();
  EXPECT_THAT(status.message(), testing::HasSubstr("block_sparse_moe.gate.weight\": expected"));
  EXPECT_THAT(status.message(), testing::HasSubstr("and "));
}

TEST_F(WeightsTest, NamesWhatAFamilyLacks) {
  auto checkpoint = Checkpoint::Open(GoldenDirectory("deepseek_v3_bf16"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ModelSpec spec = (*checkpoint)->spec();
  spec.layers[1].attention.latent.query_rank = 0;
  spec.layers[2].attention.sinks = true;
  spec.num_prediction_layers = 0;
  CheckpointFacts facts;
  const absl::Status status = ResolveWeights(spec, *(*checkpoint)->reader(), &facts).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"\"model.layers.1.self_attn.q_proj.weight\" is missing, expected shape [96, 32]",
                           "\"model.layers.2.self_attn.sinks\" is missing",
                           "model.layers.1.self_attn.q_b_proj.weight", "\"model.layers.3.enorm.weight\""}) {
    EXPECT_THAT(status.message(), testing::HasSubstr(part));
  }
}

TEST_F(WeightsTest, TiedModelsUseTheEmbeddings) {
  auto checkpoint = Checkpoint::Open(GoldenDirectory("mixed_bf16"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelWeights& weights = (*checkpoint)->weights();
  EXPECT_EQ(weights.lm_head.tensor, weights.embeddings.tensor);
  EXPECT_EQ(weights.layers[0].experts.size(), 1);  // dense
  EXPECT_FALSE(weights.layers[0].router.present());
  EXPECT_EQ(weights.layers[3].experts.size(), 4);

  // Some files hold the output matrix all the same.
  checkpoint = OpenChanged("mixed_bf16", [](Tensors& tensors) {
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  });
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT((*checkpoint)->facts().warnings, testing::ElementsAre(HasSubstr("lm_head.weight")));
}

TEST_F(WeightsTest, MixedFormatsAreTakenTensorByTensor) {
  Tensors plain;
  ASSERT_TRUE(OpenChanged("moe_bf16", [&](Tensors& tensors) { plain = tensors; }).ok());
  const std::string one = "model.layers.0.mlp.experts.2.up_proj";
  const std::string other = "model.layers.1.self_attn.o_proj";
  auto checkpoint = OpenChanged("moe_nvfp4", [&](Tensors& tensors) {
    for (const std::string& name : {one, other}) {
      tensors[name + ".weight"] = plain[name + ".weight"];
      tensors.erase(name + ".weight_scale");
      tensors.erase(name + ".weight_scale_2");
    }
    tensors[one + ".weight"].dtype = DType::kF16;
    tensors["model.layers.0.mlp.experts.1.up_proj.input_scale"] = {DType::kF32, {}, FloatBytes(0.1f)};
  });
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelWeights& weights = (*checkpoint)->weights();
  EXPECT_EQ(weights.layers[0].experts[2].up.format, WeightFormat::kF16);
  EXPECT_EQ(weights.layers[0].experts[2].gate.format, WeightFormat::kNvfp4);
  EXPECT_EQ(weights.layers[1].o.format, WeightFormat::kBf16);
  EXPECT_THAT(
      (*checkpoint)->facts().warnings,
      testing::ElementsAre(HasSubstr("rounded to BF16"), HasSubstr("41 matrices have no input scale")));
}

TEST_F(WeightsTest, GateAndUpMayDifferInTensorScale) {
  auto checkpoint = OpenChanged("moe_nvfp4", [](Tensors& tensors) {
    tensors["model.layers.0.mlp.experts.2.up_proj.weight_scale_2"].data = FloatBytes(0.5f);
  });
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ExpertWeights& expert = (*checkpoint)->weights().layers[0].experts[2];
  EXPECT_EQ(expert.up.tensor_scale, 0.5f);
  EXPECT_NE(expert.gate.tensor_scale, 0.5f);
}

TEST_F(WeightsTest, RefusesBadTensorScales) {
  for (const float bad :
       {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::string error = ErrorOf("moe_nvfp4", [&](Tensors& tensors) {
      tensors["model.layers.0.self_attn.q_proj.weight_scale_2"].data = FloatBytes(bad);
    });
    EXPECT_THAT(error, HasSubstr("model.layers.0.self_attn.q_proj.weight_scale_2"));
    EXPECT_THAT(error, HasSubstr("expected a finite value above 0"));
  }
}

TEST_F(WeightsTest, NamesAllThatIsWrongAtOnce) {
  const std::string error = ErrorOf("moe_nvfp4", [](Tensors& tensors) {
    tensors.erase("model.layers.0.input_layernorm.weight");
    tensors.erase("model.layers.0.mlp.experts.3.gate_proj.weight");
    tensors.erase("model.layers.1.mlp.experts.0.down_proj.weight_scale");
    tensors["model.layers.1.self_attn.k_proj.weight"].shape = {32, 48};
    tensors["model.layers.1.self_attn.q_norm.weight"].dtype = DType::kI16;
    tensors["model.layers.7.mlp.gate.weight"] = {DType::kU8, {1}, {1}};
    tensors["model.layers.0.self_attn.q_proj.weight_packed"] = {DType::kU8, {1}, {1}};
  });
  EXPECT_THAT(error,
              HasSubstr("\"model.layers.0.input_layernorm.weight\" is missing, expected BF16, F16 or F32"));
  EXPECT_THAT(error, HasSubstr("\"model.layers.0.mlp.experts.3.gate_proj.weight\" is missing"));
  EXPECT_THAT(error, HasSubstr("U8 without \"model.layers.1.mlp.experts.0.down_proj.weight_scale\""));
  EXPECT_THAT(error, HasSubstr("expected NVFP4 codes of shape [64, 24], found U8 of [32, 48]"));
  EXPECT_THAT(error,
              HasSubstr("q_norm.weight\": expected BF16, F16 or F32 of shape [32], found I16 of [32]"));
  EXPECT_THAT(error, HasSubstr("\"model.layers.7.mlp.gate.weight\": not a tensor of this architecture"));
  EXPECT_THAT(error, HasSubstr("q_proj.weight_packed\": not a tensor of this architecture"));
  EXPECT_THAT(error, HasSubstr(directory_.path()));
}

TEST_F(WeightsTest, ALongListOfFaultsIsCut) {
  const std::string error = ErrorOf("moe_bf16", [](Tensors& tensors) {
    for (auto it = tensors.begin(); it != tensors.end();) {
      it = it->first.find("experts") != std::string::npos ? tensors.erase(it) : std::next(it);
    }
  });
  EXPECT_THAT(error, HasSubstr("; and 16 more"));  // 36 are missing, 20 are named
  EXPECT_LT(error.size(), 4000);
}

TEST_F(WeightsTest, RefusesQuantisedEmbeddings) {
  EXPECT_THAT(
      ErrorOf("moe_bf16",
              [](Tensors& tensors) {
                tensors["model.embed_tokens.weight"] = {DType::kU8, {97, 24}, std::vector<uint8_t>(97 * 24)};
              }),
      HasSubstr("expected BF16, F16, F32 of shape [97, 48], found U8 of [97, 24]"));
}

TEST_F(WeightsTest, BadBlockScalesAreFound) {
  auto checkpoint = OpenChanged("moe_nvfp4", [](Tensors& tensors) {
    tensors["model.layers.0.self_attn.v_proj.weight_scale"].data[3 * 4 + 2] = 0x81;
  });
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();  // values are read when they are packed
  const LayerWeights& layer = (*checkpoint)->weights().layers[0];
  EXPECT_TRUE(CheckBlockScales(layer.q, *(*checkpoint)->reader()).ok());
  const absl::Status status = CheckBlockScales(layer.v, *(*checkpoint)->reader());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("v_proj.weight_scale\", row 4, block 2"));  // 3 blocks a row
  EXPECT_THAT(status.message(), HasSubstr("0x81 (negative)"));
}

TEST(QuantizationLabel, CoversModules) {
  EXPECT_TRUE(CoversModule("lm_head", "lm_head"));
  EXPECT_TRUE(CoversModule("model.layers.0*", "model.layers.0.mlp.gate"));
  EXPECT_TRUE(CoversModule("*.gate", "model.layers.0.mlp.gate"));
  EXPECT_TRUE(CoversModule("model.layers.3", "model.layers.3.mlp.gate"));
  EXPECT_FALSE(CoversModule("model.layers.3", "model.layers.31.mlp.gate"));
  EXPECT_FALSE(CoversModule("*.gate", "model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(CoversModule("", "x"));
  EXPECT_FALSE(CoversModule("re:.*", "x"));
  EXPECT_FALSE(CoversModule(std::string(2000, '*') + "b", std::string(2000, 'a')));  // and soon
}

TEST_F(WeightsTest, ListsOfExclusionsThatLie) {
  auto checkpoint = OpenChanged("moe_nvfp4", [](Tensors&) {});
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_THAT((*checkpoint)->facts().warnings, testing::IsEmpty());
  nlohmann::json config = nlohmann::json::parse(ReadFile(GoldenDirectory("moe_nvfp4") + "/config.json"));
  // Routers are BF16 whatever the list says of them; the experts of layer 1 are not.
  config["quantization_config"]["ignore"] = {"lm_head", "model.layers.1.mlp.experts*",
                                             "model.layers.0.self_attn"};
  config["quantization_config"]["quant_algo"] = "NVFP4";
  WriteFile(directory_ / "config.json", config.dump());
  checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(
      (*checkpoint)->facts().warnings,
      testing::ElementsAre(HasSubstr("22 matrices are quantised though the configuration excludes them, the "
                                     "first is \"model.layers.0.self_attn.q_proj\""),
                           HasSubstr("labelled NVFP4")));
}

// compressed-tensors' "re:" patterns need no reading: what they would say, the tensors say.
TEST_F(WeightsTest, PatternsOfRegularExpressionsDecideNothing) {
  for (const char* pattern : {"re:.*", "re:.*self_attn.*", "re:.*\\.gate$", "re:(unclosed"}) {
    ASSERT_TRUE(OpenChanged("moe_nvfp4", [](Tensors&) {}).ok());
    nlohmann::json config = nlohmann::json::parse(ReadFile(GoldenDirectory("moe_nvfp4") + "/config.json"));
    config["quantization_config"] = {
        {"quant_method", "compressed-tensors"},
        {"format", "nvfp4-pack-quantized"},
        {"config_groups",
         {{"group_0", {{"targets", nlohmann::json::array({pattern})}, {"input_activations", nullptr}}}}},
        {"ignore", nlohmann::json::array({pattern})}};
    WriteFile(directory_ / "config.json", config.dump());
    const auto checkpoint = Checkpoint::Open(directory_.path());
    ASSERT_TRUE(checkpoint.ok()) << pattern << " " << checkpoint.status();
    EXPECT_THAT((*checkpoint)->facts().warnings, testing::IsEmpty()) << pattern;
    const LayerWeights& layer = (*checkpoint)->weights().layers[0];
    EXPECT_EQ(layer.q.format, WeightFormat::kNvfp4) << pattern;
    EXPECT_EQ(layer.experts[1].down.format, WeightFormat::kNvfp4) << pattern;
    EXPECT_EQ(layer.router.format, WeightFormat::kBf16) << pattern;
  }
}

TEST_F(WeightsTest, CarriesTheScalesOfKeysAndValues) {
  const auto checkpoint = OpenChanged("moe_nvfp4", [](Tensors& tensors) {
    tensors["model.layers.0.self_attn.k_proj.k_scale"] = {DType::kF32, {}, FloatBytes(0.03f)};
    tensors["model.layers.0.self_attn.v_proj.v_scale"] = {DType::kF32, {1}, FloatBytes(0.5f)};
  });
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::vector<LayerWeights>& layers = (*checkpoint)->weights().layers;
  EXPECT_THAT(layers[0].key_scale.ToFloat(), testing::ElementsAre(0.03f));
  EXPECT_THAT(layers[0].value_scale.ToFloat(), testing::ElementsAre(0.5f));
  EXPECT_FALSE(layers[1].key_scale.present());
  EXPECT_THAT((*checkpoint)->facts().warnings,
              testing::ElementsAre(HasSubstr("2 scales of quantised keys and values are not used")));
}

TEST_F(WeightsTest, WarnsWhenTheLabelDoesNotFit) {
  auto checkpoint = Checkpoint::Open(GoldenDirectory("moe_bf16"));
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_THAT((*checkpoint)->facts().warnings, testing::IsEmpty());
  ASSERT_TRUE(OpenChanged("moe_bf16", [](Tensors&) {}).ok());
  WriteFile(directory_ / "config.json", ReadFile(GoldenDirectory("moe_nvfp4") + "/config.json"));
  checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT((*checkpoint)->facts().warnings, testing::ElementsAre(HasSubstr("but no tensor is")));
}

}  // namespace
}  // namespace tessera
