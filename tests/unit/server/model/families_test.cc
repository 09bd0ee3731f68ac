// Published configurations of each family, and the variants that are refused.
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/model/checkpoint.h"
#include "server/model/config.h"
#include "server/model/weights.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

ModelSpec Read(const json& config) {
  auto parsed = ParseModelConfig(config.dump(), "", "");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? parsed->spec : ModelSpec{};
}

std::string ErrorOf(json config, const std::string& key, const json& value) {
  config[key] = value;
  auto parsed = ParseModelConfig(config.dump(), "", "");
  EXPECT_FALSE(parsed.ok()) << key << " " << value.dump();
  return std::string(parsed.status().message());
}

json Llama3() {  // Llama-3.1-8B
  return json::parse(
      R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 128256})");
}

json SmolLm2() {  // SmolLM2-135M
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 0,
    "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": true,
    "max_position_embeddings": 8192, "mlp_bias": false, "num_attention_heads": 9, "num_hidden_layers": 30,
    "num_key_value_heads": 3, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
    "rope_theta": 100000, "tie_word_embeddings": true, "vocab_size": 49152})");
}

json Qwen2() {  // Qwen2.5-0.5B
  return json::parse(
      R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 24, "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})");
}

json Mixtral() {  // Mixtral-8x7B-v0.1
  return json::parse(R"({"architectures": ["MixtralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32000})");
}

json GptOss() {  // gpt-oss-120b
  json config =
      json::parse(R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true, "eos_token_id": 200002,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "intermediate_size": 2880, "max_position_embeddings": 131072,
    "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "num_local_experts": 128, "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                     "rope_type": "yarn", "truncate": false},
    "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
    "vocab_size": 201088, "quantization_config": {"quant_method": "mxfp4"}})");
  for (int i = 0; i < 36; ++i)
    config["layer_types"].push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  return config;
}

json Glm45Air() {
  return json::parse(R"({"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "eos_token_id":
    [151329, 151336, 151338], "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 10944, "max_position_embeddings": 131072, "model_type": "glm4_moe",
    "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 46,
    "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "rope_theta": 1000000, "routed_scaling_factor": 1.0, "tie_word_embeddings": false,
    "topk_group": 1, "use_qk_norm": false, "vocab_size": 151552})");
}

json DeepSeekV3() {
  return json::parse(
      R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "bos_token_id": 0,
    "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "quantization_config": {"fmt": "e4m3", "quant_method": "fp8"}, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
    "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280})");
}

TEST(Families, Llama) {
  const ModelSpec spec = Read(Llama3());
  ASSERT_EQ(spec.layers.size(), 32);
  const AttentionSpec& attention = spec.layers[0].attention;
  EXPECT_EQ(attention.head_dim, 128);
  EXPECT_FALSE(attention.qk_norm || attention.qkv_bias || attention.output_bias || attention.sinks);
  EXPECT_DOUBLE_EQ(attention.rope.inv_freq[63], std::pow(5e5, -126.0 / 128) / 8);
  EXPECT_EQ(spec.layers[0].mlp.kind, MlpKind::kDense);
  EXPECT_EQ(spec.layers[0].mlp.intermediate_size, 14336);
  EXPECT_EQ(DummyFacts(spec).num_parameters, 8030261248);

  const ModelSpec smol = Read(SmolLm2());
  EXPECT_TRUE(smol.tied_embeddings);
  EXPECT_EQ(smol.layers[0].attention.head_dim, 64);
  EXPECT_EQ(DummyFacts(smol).num_parameters, 134515008);
  EXPECT_EQ(DummyFacts(smol).num_active_parameters, 134515008);

  json llama2 = Llama3();
  llama2.erase("rope_theta");
  llama2.erase("rope_scaling");
  EXPECT_DOUBLE_EQ(Read(llama2).layers[0].attention.rope.inv_freq[1], std::pow(1e4, -2.0 / 128));
  EXPECT_THAT(ErrorOf(Llama3(), "hidden_act", "gelu"),
              HasSubstr("\"hidden_act\": \"gelu\" is not supported"));
}

TEST(Families, MistralAndMixtralWindowsCoverEveryLayer) {
  json config = Llama3();
  config["architectures"] = {"MistralForCausalLM"};
  EXPECT_EQ(Read(config).layers[3].attention.sliding_window, 0);
  config["sliding_window"] = 4096;
  EXPECT_EQ(Read(config).layers[31].attention.sliding_window, 4096);
  EXPECT_THAT(ErrorOf(config, "sliding_window", 0),
              HasSubstr("\"sliding_window\": expected an integer from 1"));
}

TEST(Families, Qwen2AndQwen3) {
  const ModelSpec spec = Read(Qwen2());
  EXPECT_TRUE(spec.layers[0].attention.qkv_bias);
  EXPECT_FALSE(spec.layers[0].attention.output_bias || spec.layers[0].attention.qk_norm);
  EXPECT_EQ(spec.layers[23].attention.sliding_window, 0);
  EXPECT_EQ(DummyFacts(spec).num_parameters, 494032768);

  json windows = Qwen2();
  windows["use_sliding_window"] = true;
  windows["max_window_layers"] = 22;
  windows["sliding_window"] = 512;
  EXPECT_EQ(Read(windows).layers[21].attention.sliding_window, 0);
  EXPECT_EQ(Read(windows).layers[22].attention.sliding_window, 512);
  windows["layer_types"] = std::vector<std::string>(24, "full_attention");
  windows["layer_types"][3] = "sliding_attention";
  EXPECT_EQ(Read(windows).layers[3].attention.sliding_window, 512);
  EXPECT_EQ(Read(windows).layers[22].attention.sliding_window, 0);
  EXPECT_THAT(ErrorOf(windows, "layer_types", {"full_attention"}), HasSubstr("\"layer_types\": expected 24"));
  windows["layer_types"][4] = "linear_attention";
  EXPECT_THAT(ErrorOf(windows, "vocab_size", 100),
              HasSubstr("\"layer_types\": \"linear_attention\" of layer 4 is not supported"));

  json qwen3 = Qwen2();
  qwen3["architectures"] = {"Qwen3ForCausalLM"};
  qwen3["head_dim"] = 128;
  const AttentionSpec attention = Read(qwen3).layers[0].attention;
  EXPECT_TRUE(attention.qk_norm);
  EXPECT_FALSE(attention.qkv_bias);
  EXPECT_EQ(attention.head_dim, 128);
}

TEST(Families, Mixtral) {
  const ModelSpec spec = Read(Mixtral());
  const MlpSpec& mlp = spec.layers[31].mlp;
  EXPECT_EQ(mlp.kind, MlpKind::kMoe);
  EXPECT_EQ(mlp.num_experts, 8);
  EXPECT_EQ(mlp.num_experts_per_token, 2);
  EXPECT_TRUE(mlp.router.renormalize);
  EXPECT_EQ(spec.names.experts, "block_sparse_moe.experts");
  const CheckpointFacts facts = DummyFacts(spec);
  EXPECT_EQ(facts.num_parameters, 46702792704);
  EXPECT_NEAR(facts.num_active_parameters, 12.75e9, 0.1e9);
}

TEST(Families, MiniMaxM2) {
  json config = Mixtral();
  config["architectures"] = {"MiniMaxM2ForCausalLM"};
  config.update({{"head_dim", 128},
                 {"rotary_dim", 64},
                 {"scoring_func", "sigmoid"},
                 {"use_routing_bias", true},
                 {"use_qk_norm", true},
                 {"qk_norm_type", "per_layer"},
                 {"shared_intermediate_size", 0},
                 {"attn_type_list", std::vector<int>(32, 1)}});
  const ModelSpec spec = Read(config);
  EXPECT_EQ(spec.layers[0].attention.rope.rotary_dim, 64);
  EXPECT_TRUE(spec.layers[0].attention.qk_norm_all_heads);
  EXPECT_EQ(spec.names.selection_bias, "block_sparse_moe.e_score_correction_bias");
  EXPECT_THAT(ErrorOf(config, "attn_type_list", {1, 0}), HasSubstr("\"attn_type_list\""));
  EXPECT_THAT(ErrorOf(config, "shared_intermediate_size", 8), HasSubstr("\"shared_intermediate_size\": 8"));
}

TEST(Families, Olmoe) {
  json config = Mixtral();
  config["architectures"] = {"OlmoeForCausalLM"};
  EXPECT_FALSE(Read(config).layers[0].mlp.router.renormalize);
  EXPECT_THAT(ErrorOf(config, "clip_qkv", 8.0), HasSubstr("\"clip_qkv\": 8.0 is not supported"));
}

TEST(Families, GptOss) {
  const ModelSpec spec = Read(GptOss());
  ASSERT_EQ(spec.layers.size(), 36);
  const AttentionSpec& attention = spec.layers[0].attention;
  EXPECT_EQ(attention.sliding_window, 128);
  EXPECT_EQ(spec.layers[1].attention.sliding_window, 0);
  EXPECT_TRUE(attention.sinks && attention.qkv_bias && attention.output_bias);
  EXPECT_NEAR(attention.rope.magnitude, 0.1 * std::log(32.0) + 1, 1e-6);
  const MlpSpec& mlp = spec.layers[0].mlp;
  EXPECT_EQ(mlp.router.score, RouterScore::kSoftmaxSelected);
  EXPECT_TRUE(mlp.bias && mlp.router.bias);
  EXPECT_FALSE(mlp.router.renormalize || mlp.router.selection_bias);
  EXPECT_FLOAT_EQ(mlp.activation.limit, 7.0f);
  EXPECT_FLOAT_EQ(mlp.activation.sigmoid_scale, 1.702f);
  EXPECT_FLOAT_EQ(mlp.activation.up_offset, 1.0f);
  EXPECT_TRUE(spec.names.interleaved_gate_up && spec.names.transposed_experts);
  const CheckpointFacts facts = DummyFacts(spec);  // the model card: 116.83 B and 5.13 B, without one table
  EXPECT_NEAR(facts.num_parameters, 116.83e9, 0.01e9);
  EXPECT_NEAR(facts.num_active_parameters, 5.13e9, 0.01e9);
  EXPECT_THAT(ErrorOf(GptOss(), "sliding_window", nullptr), HasSubstr("\"sliding_window\" is missing"));
}

TEST(Families, Glm45) {
  const ModelSpec spec = Read(Glm45Air());
  ASSERT_EQ(spec.layers.size(), 46);
  EXPECT_EQ(spec.num_prediction_layers, 1);
  const AttentionSpec& attention = spec.layers[0].attention;
  EXPECT_TRUE(attention.qkv_bias);
  EXPECT_FALSE(attention.output_bias || attention.qk_norm);
  EXPECT_EQ(attention.rope.rotary_dim, 64);
  EXPECT_EQ(attention.head_dim, 128);
  EXPECT_EQ(spec.layers[0].mlp.kind, MlpKind::kDense);
  EXPECT_EQ(spec.layers[0].mlp.intermediate_size, 10944);
  const MlpSpec& mlp = spec.layers[1].mlp;
  EXPECT_EQ(mlp.router.score, RouterScore::kSigmoid);
  EXPECT_TRUE(mlp.router.selection_bias && mlp.router.renormalize);
  EXPECT_EQ(mlp.shared_intermediate_size, 1408);
  const CheckpointFacts facts =
      DummyFacts(spec);  // the model card: 106 B and 12 B, without the prediction layer
  EXPECT_NEAR(facts.num_parameters, 106.9e9, 1e9);
  EXPECT_NEAR(facts.num_active_parameters, 12.5e9, 1e9);
  EXPECT_THAT(ErrorOf(Glm45Air(), "partial_rotary_factor", 0.01), HasSubstr("\"partial_rotary_factor\""));
  EXPECT_THAT(ErrorOf(Glm45Air(), "n_group", 3), HasSubstr("128 is not a multiple of \"n_group\" 3"));
}

TEST(Families, DeepSeekV3) {
  const ModelSpec spec = Read(DeepSeekV3());
  ASSERT_EQ(spec.layers.size(), 61);
  const AttentionSpec& attention = spec.layers[0].attention;
  EXPECT_EQ(attention.kind, AttentionKind::kLatent);
  EXPECT_EQ(attention.latent.query_rank, 1536);
  EXPECT_EQ(attention.head_dim, 192);
  EXPECT_EQ(attention.cache_heads(), 1);
  EXPECT_EQ(attention.cache_key_dim(), 576);
  EXPECT_EQ(attention.cache_value_dim(), 512);
  EXPECT_EQ(attention.value_dim(), 128);
  EXPECT_EQ(attention.rope.style, RopeStyle::kInterleaved);
  EXPECT_EQ(attention.rope.rotary_dim, 64);
  EXPECT_FLOAT_EQ(attention.rope.magnitude, 1.0f);  // mscale and mscale_all_dim cancel
  const double mscale = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(attention.softmax_scale, mscale * mscale / std::sqrt(192.0), 1e-8);
  EXPECT_EQ(spec.layers[2].mlp.kind, MlpKind::kDense);
  const MlpSpec& mlp = spec.layers[3].mlp;
  EXPECT_EQ(mlp.router.num_groups, 8);
  EXPECT_EQ(mlp.router.topk_groups, 4);
  EXPECT_FLOAT_EQ(mlp.router.scale, 2.5f);
  EXPECT_EQ(mlp.shared_intermediate_size, 2048);
  const CheckpointFacts facts = DummyFacts(spec);  // the report: 671 B and 37 B
  EXPECT_NEAR(facts.num_parameters, 671.03e9, 0.1e9);
  EXPECT_NEAR(facts.num_active_parameters, 37e9, 1e9);

  json moonlight = DeepSeekV3();
  moonlight["q_lora_rank"] = nullptr;
  EXPECT_EQ(Read(moonlight).layers[0].attention.latent.query_rank, 0);
}

TEST(Families, RelativesOfDeepSeekV3) {
  json flash = DeepSeekV3();  // GLM-4.7-Flash's way
  flash["architectures"] = {"Glm4MoeLiteForCausalLM"};
  EXPECT_EQ(Read(flash).layers[2].mlp.kind, MlpKind::kDense);
  flash.erase("first_k_dense_replace");
  EXPECT_THAT(ErrorOf(flash, "n_group", 8), HasSubstr("\"first_k_dense_replace\" is missing"));
  for (int i = 0; i < 61; ++i) flash["mlp_layer_types"].push_back(i == 1 ? "dense" : "sparse");
  EXPECT_EQ(Read(flash).layers[0].mlp.kind, MlpKind::kMoe);
  EXPECT_EQ(Read(flash).layers[1].mlp.kind, MlpKind::kDense);
  flash["mlp_layer_types"][5] = "hash";
  EXPECT_THAT(ErrorOf(flash, "n_group", 8), HasSubstr("\"mlp_layer_types\""));

  json v2_lite = DeepSeekV3();
  v2_lite["architectures"] = {"DeepseekV2ForCausalLM"};
  v2_lite["scoring_func"] = "softmax";
  v2_lite["topk_method"] = "greedy";
  v2_lite["norm_topk_prob"] = false;
  v2_lite["q_lora_rank"] = nullptr;
  const MlpSpec mlp = Read(v2_lite).layers[3].mlp;
  EXPECT_EQ(mlp.router.score, RouterScore::kSoftmax);
  EXPECT_FALSE(mlp.router.renormalize || mlp.router.selection_bias);
  EXPECT_EQ(mlp.router.num_groups, 1);
  EXPECT_THAT(
      ErrorOf(v2_lite, "topk_method", "group_limited_greedy"),
      HasSubstr("\"topk_method\": \"group_limited_greedy\" is not supported; supported is \"greedy\""));
}

TEST(Families, SmolLm3LayersWithoutPositions) {
  json config = SmolLm2();
  config["architectures"] = {"SmolLM3ForCausalLM"};
  config["no_rope_layer_interval"] = 4;
  EXPECT_EQ(Read(config).layers[2].attention.rope.style, RopeStyle::kHalf);
  EXPECT_EQ(Read(config).layers[3].attention.rope.style, RopeStyle::kNone);
  config["no_rope_layers"] = std::vector<int>(30, 1);
  config["no_rope_layers"][2] = 0;
  EXPECT_EQ(Read(config).layers[2].attention.rope.style, RopeStyle::kNone);
  EXPECT_EQ(Read(config).layers[3].attention.rope.style, RopeStyle::kHalf);
  EXPECT_THAT(ErrorOf(config, "no_rope_layers", {1, 0}),
              HasSubstr("\"no_rope_layers\": expected a number for each"));
  EXPECT_THAT(ErrorOf(config, "use_sliding_window", true), HasSubstr("\"use_sliding_window\": true"));
}

TEST(Families, DeepSeekVariantsAreRefusedByKeyAndValue) {
  const json config = DeepSeekV3();
  EXPECT_THAT(ErrorOf(config, "scoring_func", "softmax"),
              HasSubstr("\"scoring_func\": \"softmax\" is not supported; supported is \"sigmoid\""));
  EXPECT_THAT(ErrorOf(config, "topk_method", "greedy"), HasSubstr("\"topk_method\": \"greedy\""));
  EXPECT_THAT(ErrorOf(config, "moe_layer_freq", 2), HasSubstr("\"moe_layer_freq\": 2 is not supported"));
  EXPECT_THAT(ErrorOf(config, "attention_bias", true),
              HasSubstr("\"attention_bias\": true is not supported"));
  EXPECT_THAT(ErrorOf(config, "num_key_value_heads", 8),
              HasSubstr("\"num_key_value_heads\": 8 is not supported; supported is 128"));
  EXPECT_THAT(ErrorOf(config, "kv_lora_rank", 511), HasSubstr("\"kv_lora_rank\" 511 is odd"));
  EXPECT_THAT(ErrorOf(config, "n_group", 256),
              HasSubstr("\"topk_group\" 4 groups of 1 experts hold fewer than \"num_experts_per_tok\" 8"));
  EXPECT_THAT(ErrorOf(config, "n_routed_experts", 8), HasSubstr("\"num_experts_per_tok\""));
  EXPECT_THAT(ErrorOf(config, "n_shared_experts", nullptr), HasSubstr("\"n_shared_experts\" is missing"));
}

}  // namespace
}  // namespace tessera
