// The golden checkpoints exercise what their families are made of: with one key of config.json changed, the logits are
// no longer transformers', neither by the CPU's bounds nor by those that the CUDA backend is held to.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/server/backend/golden_model.h"
#include "tests/unit/server/backend/logits_difference.h"

namespace tessera {
namespace {

using nlohmann::json;

struct Change {
  const char* model;
  const char* key;  // a JSON pointer
  json value;
};

const Change kChanges[] = {
    {"llama_bf16", "/rope_parameters/factor", 7.0},
    {"llama_bf16", "/rope_parameters/high_freq_factor", 3.0},
    {"mistral_bf16", "/sliding_window", 21},
    {"qwen2_bf16", "/sliding_window", 25},
    {"qwen2_bf16", "/layer_types/0", "sliding_attention"},
    {"qwen3_bf16", "/rope_parameters/factor", 3.0},
    {"mixtral_nvfp4", "/num_experts_per_tok", 1},
    {"gpt_oss_bf16", "/sliding_window", 25},
    {"gpt_oss_bf16", "/layer_types/1", "sliding_attention"},
    {"gpt_oss_mxfp4", "/swiglu_limit", 2.5},
    {"gpt_oss_nvfp4", "/swiglu_alpha", 1.6},
    {"gpt_oss_bf16", "/rope_parameters/truncate", true},
    {"gpt_oss_bf16", "/rope_parameters/attention_factor", 1.0},
    {"glm4_moe_bf16", "/rope_parameters/partial_rotary_factor", 0.25},
    {"glm4_moe_nvfp4", "/routed_scaling_factor", 1.4},
    {"glm4_moe_bf16", "/norm_topk_prob", false},
    {"deepseek_v3_bf16", "/topk_group", 4},
    {"deepseek_v3_bf16", "/n_group", 2},
    {"deepseek_v3_nvfp4", "/rope_interleave", false},
    {"deepseek_v3_bf16", "/rope_parameters/mscale", 1.0},
    {"deepseek_v3_bf16", "/rope_parameters/mscale_all_dim", 0.9},
    {"deepseek_v3_bf16", "/rms_norm_eps", 1e-6},
    {"deepseek_v3_nvfp4", "/routed_scaling_factor", 2.4},
    {"moonlight_bf16", "/rope_interleave", true},
    {"smollm3_bf16", "/no_rope_layers/1", 1},
    {"olmoe_bf16", "/norm_topk_prob", true},
    {"minimax_m2_bf16", "/rope_parameters/partial_rotary_factor", 0.25},
    {"deepseek_v2_bf16", "/routed_scaling_factor", 1.0},
    {"deepseek_v2_bf16", "/rope_parameters/mscale_all_dim", 1.0},
    {"glm4_moe_lite_bf16", "/routed_scaling_factor", 1.5},
    {"moonlight_bf16", "/norm_topk_prob", true},
};

struct Mismatches {
  std::string cpu, cuda;  // by the bounds of each
};

// Logits of the checkpoint against its golden ones, with `change`, or as it is.
Mismatches Compute(const std::string& name, const Change* change) {
  std::string pattern = testing::TempDir() + "/golden_sensitivity_XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) return {"no temporary directory", ""};
  const std::string directory = pattern + "/model";
  std::filesystem::copy(GoldenDirectory(name), directory);
  if (change != nullptr) {
    json config = json::parse(std::ifstream(directory + "/config.json"));
    EXPECT_NE(config.value(json::json_pointer(change->key), json()), change->value);
    config[json::json_pointer(change->key)] = change->value;
    std::ofstream(directory + "/config.json") << config;
  }
  auto golden = SafetensorsReader::OpenFile(directory + "/golden.safetensors");
  std::filesystem::remove(directory +
                          "/golden.safetensors");  // the model's directory would have it for its own
  EXPECT_TRUE(golden.ok()) << golden.status();
  TestModel model(directory, 2);
  EXPECT_TRUE(model.ok());
  if (!golden.ok() || !model.ok()) return {"not loaded", ""};
  const auto tokens = TensorValues<int32_t>(**golden, "tokens");
  const std::vector<float> logits = model.RunChunked(tokens, Blocks(8), {1000});
  std::filesystem::remove_all(pattern);
  const auto expected = TensorValues<float>(**golden, "logits");
  return {GoldenMismatch(logits, expected, model.spec().vocab_size),
          CudaGoldenMismatch(logits, expected, LargestMagnitude(expected))};
}

TEST(GoldenSensitivity, EveryKeyMatters) {
  for (const Change& change : kChanges) {
    SCOPED_TRACE(absl::StrCat(change.model, " ", change.key, " ", change.value.dump()));
    const Mismatches as_it_is = Compute(change.model, nullptr), changed = Compute(change.model, &change);
    ASSERT_EQ(as_it_is.cpu, "");
    EXPECT_NE(changed.cpu, "");
    EXPECT_NE(changed.cuda, "");
  }
}

}  // namespace
}  // namespace tessera
