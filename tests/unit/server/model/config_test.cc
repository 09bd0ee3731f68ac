#include "server/model/config.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/model/rope.h"
#include "tests/unit/server/model/test_files.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Qwen3-30B-A3B's configuration as published.
json Qwen3() {
  return json::parse(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936})");
}

std::string ErrorOf(const json& config, const std::string& generation = "") {
  auto parsed = ParseModelConfig(config.dump(), generation, "");
  EXPECT_FALSE(parsed.ok());
  return std::string(parsed.status().message());
}

TEST(Config, ReadsQwen3Moe) {
  auto parsed = ParseModelConfig(Qwen3().dump(), "", "");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const ModelSpec& spec = parsed->spec;
  EXPECT_EQ(spec.architecture, "Qwen3MoeForCausalLM");
  EXPECT_EQ(spec.vocab_size, 151936);
  EXPECT_EQ(spec.hidden_size, 2048);
  EXPECT_EQ(spec.max_context, 40960);
  EXPECT_FLOAT_EQ(spec.rms_norm_eps, 1e-6f);
  EXPECT_FALSE(spec.tied_embeddings);
  EXPECT_THAT(spec.eos_token_ids, ElementsAre(151645));
  EXPECT_EQ(spec.bos_token_id, 151643);
  ASSERT_EQ(spec.layers.size(), 48);
  const AttentionSpec& attention = spec.layers[47].attention;
  EXPECT_EQ(attention.num_query_heads, 32);
  EXPECT_EQ(attention.num_kv_heads, 4);
  EXPECT_EQ(attention.head_dim, 128);
  EXPECT_FLOAT_EQ(attention.softmax_scale, 1 / std::sqrt(128.0f));
  EXPECT_TRUE(attention.qk_norm);
  EXPECT_FALSE(attention.qkv_bias || attention.output_bias || attention.sinks);
  EXPECT_EQ(attention.sliding_window, 0);
  EXPECT_EQ(attention.rope.rotary_dim, 128);
  EXPECT_DOUBLE_EQ(attention.rope.inv_freq[1], std::pow(1e6, -2.0 / 128));
  const MlpSpec& mlp = spec.layers[0].mlp;
  EXPECT_EQ(mlp.kind, MlpKind::kMoe);
  EXPECT_EQ(mlp.intermediate_size, 768);
  EXPECT_EQ(mlp.num_experts, 128);
  EXPECT_EQ(mlp.num_experts_per_token, 8);
  EXPECT_TRUE(mlp.router.renormalize);
  EXPECT_EQ(mlp.router.score, RouterScore::kSoftmax);
}

TEST(Config, NormTopkProbIsFalseWhenAbsent) {
  json config = Qwen3();
  config.erase("norm_topk_prob");
  auto parsed = ParseModelConfig(config.dump(), "", "");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_FALSE(parsed->spec.layers[0].mlp.router.renormalize);
}

TEST(Config, DenseLayersComeFromListAndStep) {
  json config = Qwen3();
  config["num_hidden_layers"] = 6;
  config["decoder_sparse_step"] = 2;
  config["mlp_only_layers"] = {3};
  auto parsed = ParseModelConfig(config.dump(), "", "");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  std::vector<int> moe;
  for (const LayerSpec& layer : parsed->spec.layers) {
    moe.push_back(layer.mlp.kind == MlpKind::kMoe);
    EXPECT_EQ(layer.mlp.intermediate_size, layer.mlp.kind == MlpKind::kMoe ? 768 : 6144);
  }
  EXPECT_THAT(moe, ElementsAre(0, 1, 0, 0, 0, 1));
}

TEST(Config, HeadSizeFollowsFromHiddenSizeWhenAbsent) {
  json config = Qwen3();
  config.erase("head_dim");
  auto parsed = ParseModelConfig(config.dump(), "", "");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->spec.layers[0].attention.head_dim, 64);
}

TEST(Config, RefusesWhatIsNotSupportedAndSaysWhatIs) {
  json config = Qwen3();
  config["architectures"] = {"MambaForCausalLM"};
  auto parsed = ParseModelConfig(config.dump(), "", "");
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(
      parsed.status().message(),
      HasSubstr("\"MambaForCausalLM\" is not supported; supported are LlamaForCausalLM, MistralForCausalLM"));
  config = Qwen3();
  config["rope_scaling"] = {{"rope_type", "longrope"}, {"factor", 4.0}};
  EXPECT_THAT(ErrorOf(config),
              HasSubstr("\"longrope\" is not supported; supported are default, linear, llama3, yarn"));
  config = Qwen3();
  config["hidden_act"] = "gelu";
  EXPECT_THAT(ErrorOf(config), HasSubstr("supported is \"silu\""));
  config = Qwen3();
  config["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(ErrorOf(config), HasSubstr("partial_rotary_factor"));
}

TEST(Config, NamesEveryBadKeyAtOnce) {
  json config = Qwen3();
  config.erase("hidden_size");
  config["num_experts"] = "many";
  config["rms_norm_eps"] = "small";
  config["tie_word_embeddings"] = 1;
  config["num_key_value_heads"] = 5;
  config["mlp_only_layers"] = {48};
  config["vocab_size"] = 1.5;
  config["num_experts_per_tok"] = 0;
  const std::string error = ErrorOf(config);
  EXPECT_THAT(error, HasSubstr("config.json: \"hidden_size\" is missing; expected an integer"));
  EXPECT_THAT(error, HasSubstr("\"num_experts\": expected an integer from 0 to 65536, found \\\"many\\\""));
  EXPECT_THAT(error, HasSubstr("\"rms_norm_eps\": expected a number"));
  EXPECT_THAT(error, HasSubstr("\"tie_word_embeddings\": expected true or false, found 1"));
  EXPECT_THAT(error, HasSubstr("32 is not a multiple of \"num_key_value_heads\" 5"));
  EXPECT_THAT(error, HasSubstr("\"mlp_only_layers\": expected integers from 0 to 47"));
  EXPECT_THAT(error, HasSubstr("\"vocab_size\""));
}

TEST(Config, RefusesEveryMissingNecessaryKey) {
  for (const std::string key : {"architectures", "vocab_size", "hidden_size", "max_position_embeddings",
                                "rms_norm_eps", "num_attention_heads", "num_hidden_layers", "num_experts",
                                "moe_intermediate_size", "num_experts_per_tok", "rope_theta"}) {
    json config = Qwen3();
    config.erase(key);
    EXPECT_THAT(ErrorOf(config), HasSubstr("\"" + key + "\"")) << key;
    config[key] = nullptr;
    EXPECT_THAT(ErrorOf(config), HasSubstr("\"" + key + "\"")) << key;
    config[key] = json::object();
    EXPECT_THAT(ErrorOf(config), HasSubstr("\"" + key + "\"")) << key;
  }
}

TEST(Config, GenerationDefaultsAndEndTokens) {
  auto parsed = ParseModelConfig(Qwen3().dump(), R"({"bos_token_id": 151643, "do_sample": true,
      "eos_token_id": [151645, 151643], "temperature": 0.6, "top_k": 20, "top_p": 0.95})",
                                 "");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->spec.eos_token_ids, ElementsAre(151645, 151643));
  EXPECT_FLOAT_EQ(*parsed->generation.temperature, 0.6f);
  EXPECT_EQ(*parsed->generation.top_k, 20);
  EXPECT_FLOAT_EQ(*parsed->generation.top_p, 0.95f);
  EXPECT_FALSE(parsed->generation.min_p || parsed->generation.repetition_penalty);

  parsed = ParseModelConfig(Qwen3().dump(),
                            R"({"do_sample": false, "temperature": 0.6, "max_new_tokens": 64})", "");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed->generation.temperature, 0.0f);
  EXPECT_EQ(*parsed->generation.max_new_tokens, 64);
  EXPECT_THAT(parsed->spec.eos_token_ids, ElementsAre(151645));

  EXPECT_THAT(ErrorOf(Qwen3(), R"({"eos_token_id": 151936})"),
              HasSubstr("generation_config.json: \"eos_token_id\": expected integers from 0 to 151935"));
  EXPECT_THAT(ErrorOf(Qwen3(), R"({"top_p": 0})"), HasSubstr("top_p"));
  EXPECT_THAT(ErrorOf(Qwen3(), R"({"temperature": -1})"), HasSubstr("temperature"));
  EXPECT_THAT(ErrorOf(Qwen3(), R"([)"), HasSubstr("generation_config.json: not valid JSON"));
}

TEST(Config, QuantizationIsAHint) {
  auto parsed = ParseModelConfig(Qwen3().dump(), "", R"({"quantization": {"quant_algo": "NVFP4"}})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->quantization.method, "modelopt");
  EXPECT_EQ(parsed->quantization.algorithm, "NVFP4");
  json config = Qwen3();
  config["quantization_config"] = {{"quant_method", 4}, {"quant_algo", "W4A16_NVFP4"}};
  parsed = ParseModelConfig(config.dump(), "", "");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->quantization.algorithm, "W4A16_NVFP4");
  EXPECT_THAT(parsed->quantization.method, IsEmpty());
  EXPECT_THAT(parsed->quantization.kv_cache, IsEmpty());

  config["quantization_config"]["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}, {"dynamic", false}};
  const char kNvfp4Cache[] = R"({"quantization": {"kv_cache_quant_algo": "NVFP4"}})";
  EXPECT_EQ(ParseModelConfig(config.dump(), "", "")->quantization.kv_cache, "FP8");
  EXPECT_EQ(ParseModelConfig(config.dump(), "", kNvfp4Cache)->quantization.kv_cache, "FP8");
  config["quantization_config"]["kv_cache_scheme"] = nullptr;
  EXPECT_EQ(ParseModelConfig(config.dump(), "", kNvfp4Cache)->quantization.kv_cache, "NVFP4");
  EXPECT_THAT(ParseModelConfig(config.dump(), "", R"({"quantization": {"kv_cache_quant_algo": null}})")
                  ->quantization.kv_cache,
              IsEmpty());
}

TEST(Config, MessagesNameTheDirectory) {
  EXPECT_THAT(ReadModelConfig("/nowhere").status().message(), HasSubstr("/nowhere/config.json: cannot open"));
  TemporaryDirectory directory;
  WriteFile(directory / "config.json", "{}");
  EXPECT_THAT(ReadModelConfig(directory.path()).status().message(), HasSubstr(directory.path()));
}

// Against transformers (tests/golden/model/make_golden.py rope), which computes in float32.
TEST(Rope, MatchesTransformers) {
  const json cases = json::parse(ReadFile(GoldenDirectory("rope.json")));
  ASSERT_GE(cases.size(), 6);
  for (const json& item : cases) {
    SCOPED_TRACE(item["rope_parameters"].dump());
    json config = Qwen3();
    config["max_position_embeddings"] = 131072;
    // Once as transformers 5 writes it, once in the older form.
    for (const bool old_form : {false, true}) {
      if (old_form) {
        config.erase("rope_parameters");
        config["rope_scaling"] = item["rope_parameters"];
        config["rope_theta"] = item["rope_parameters"]["rope_theta"];
        config["rope_scaling"].erase("rope_theta");
      } else {
        config["rope_parameters"] = item["rope_parameters"];
        config.erase("rope_theta");
      }
      auto parsed = ParseModelConfig(config.dump(), "", "");
      ASSERT_TRUE(parsed.ok()) << parsed.status();
      const RopeSpec& rope = parsed->spec.layers[0].attention.rope;
      EXPECT_NEAR(rope.magnitude, item["attention_scaling"].get<double>(), 1e-6);
      ASSERT_EQ(rope.inv_freq.size(), item["inv_freq"].size());
      for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
        const double expected = item["inv_freq"][i].get<double>();
        EXPECT_NEAR(rope.inv_freq[i], expected, 2e-6 * expected) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
