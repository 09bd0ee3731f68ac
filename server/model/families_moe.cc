// Mixture-of-experts transformers with grouped attention. Sources: transformers, models/{qwen3_moe,mixtral,olmoe,
// minimax_m2,gpt_oss},
// and for gpt-oss openai/gpt-oss, gpt_oss/torch/model.py.
#include <algorithm>

#include "server/model/family_config.h"

namespace tessera {
namespace {

constexpr double kMixtralTheta = 1e6;
constexpr double kMiniMaxTheta = 5e6;
constexpr double kOlmoeTheta = 1e4;
constexpr double kGptOssTheta = 150000.0;

// RMSNorm on each query and key head; a layer is MoE unless mlp_only_layers lists it or decoder_sparse_step skips
// it; softmax router over all experts.
ModelSpec ReadQwen3Moe(FamilyConfig& config) {
  ConfigKeys& keys = config.keys();
  ModelSpec spec = config.Sizes();
  const int64_t num_layers = spec.layers.size();
  AttentionSpec attention = config.GroupedAttention(spec, {});
  attention.qk_norm = true;
  attention.qkv_bias = attention.output_bias = keys.Bool("attention_bias", false);
  if (keys.Bool("use_sliding_window", false)) {
    attention.sliding_window = keys.Int("sliding_window", 1, 1 << 30);
  }

  const int64_t sparse_step = keys.Int("decoder_sparse_step", 1, kMaxLayers, 1);
  const std::vector<int32_t> dense_layers = keys.IntList("mlp_only_layers", 0, num_layers - 1);
  MlpSpec moe;
  moe.kind = MlpKind::kMoe;
  // transformers 5 may write the key under its common name.
  moe.num_experts = keys.Int(
      keys.Has("num_local_experts") && !keys.Has("num_experts") ? "num_local_experts" : "num_experts", 0,
      kMaxExperts);
  int64_t num_dense = 0;
  for (int64_t i = 0; i < num_layers; ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.attention = attention;
    const bool is_moe = moe.num_experts > 0 && (i + 1) % sparse_step == 0 &&
                        std::find(dense_layers.begin(), dense_layers.end(), i) == dense_layers.end();
    layer.mlp.kind = is_moe ? MlpKind::kMoe : MlpKind::kDense;
    num_dense += is_moe ? 0 : 1;
  }
  if (num_dense < num_layers) {
    moe.intermediate_size = keys.Int("moe_intermediate_size", 1, kMaxSize);
    moe.num_experts_per_token = keys.Int("num_experts_per_tok", 1, std::max(1, moe.num_experts));
    moe.router.renormalize = keys.Bool("norm_topk_prob", false);
  }
  const int64_t dense_size = num_dense > 0 ? keys.Int("intermediate_size", 1, kMaxSize) : 0;
  for (LayerSpec& layer : spec.layers) {
    if (layer.mlp.kind == MlpKind::kMoe) {
      layer.mlp = moe;
    } else {
      layer.mlp.intermediate_size = dense_size;
    }
  }
  return spec;
}

// "num_local_experts" experts of "intermediate_size" in every layer.
MlpSpec ReadLocalExperts(ConfigKeys& keys) {
  MlpSpec moe;
  moe.kind = MlpKind::kMoe;
  moe.intermediate_size = keys.Int("intermediate_size", 1, kMaxSize);
  moe.num_experts = keys.Int(
      keys.Has("num_experts") && !keys.Has("num_local_experts") ? "num_experts" : "num_local_experts", 1,
      kMaxExperts);
  moe.num_experts_per_token = keys.Int("num_experts_per_tok", 1, moe.num_experts);
  return moe;
}

void SetMixtralNames(TensorNames* names) {
  names->router = "block_sparse_moe.gate";
  names->experts = "block_sparse_moe.experts";
  names->gate = "w1";
  names->up = "w3";
  names->down = "w2";
}

ModelSpec ReadMixtral(FamilyConfig& config) {
  ConfigKeys& keys = config.keys();
  ModelSpec spec = config.Sizes();
  AttentionSpec attention = config.GroupedAttention(spec, {.default_theta = kMixtralTheta});
  if (keys.Has("sliding_window")) attention.sliding_window = keys.Int("sliding_window", 1, 1 << 30);
  MlpSpec moe = ReadLocalExperts(keys);
  moe.router.renormalize = true;
  for (LayerSpec& layer : spec.layers) layer = {attention, moe};
  SetMixtralNames(&spec.names);
  return spec;
}

// One norm for all heads of a query or key, softmax over all experts, kept as it is unless "norm_topk_prob".
ModelSpec ReadOlmoe(FamilyConfig& config) {
  ConfigKeys& keys = config.keys();
  ModelSpec spec = config.Sizes();
  AttentionSpec attention = config.GroupedAttention(spec, {.default_theta = kOlmoeTheta});
  attention.qk_norm = attention.qk_norm_all_heads = true;
  attention.qkv_bias = attention.output_bias = keys.Bool("attention_bias", false);
  keys.Only("clip_qkv", nullptr);
  MlpSpec moe = ReadLocalExperts(keys);
  moe.router.renormalize = keys.Bool("norm_topk_prob", false);
  for (LayerSpec& layer : spec.layers) layer = {attention, moe};
  return spec;
}

// MiniMax-M2: one norm for all heads of a query or key, partial rotary positions, sigmoid scores with a correction.
ModelSpec ReadMiniMaxM2(FamilyConfig& config) {
  ConfigKeys& keys = config.keys();
  ModelSpec spec = config.Sizes();
  keys.Only("scoring_func", "sigmoid");
  keys.Only("use_routing_bias", true);
  keys.Only("use_qk_norm", true);
  keys.Only("qk_norm_type", "per_layer");
  keys.Only("shared_intermediate_size", 0);
  keys.IntList("attn_type_list", 1, 1);  // 1: softmax attention
  AttentionSpec attention = config.GroupedAttention(spec, {.default_theta = kMiniMaxTheta, .partial = true});
  attention.qk_norm = attention.qk_norm_all_heads = true;
  MlpSpec moe = ReadLocalExperts(keys);
  moe.router.score = RouterScore::kSigmoid;
  moe.router.selection_bias = true;
  moe.router.renormalize = true;
  for (LayerSpec& layer : spec.layers) layer = {attention, moe};
  SetMixtralNames(&spec.names);
  spec.names.selection_bias = "block_sparse_moe.e_score_correction_bias";
  return spec;
}

// Windows in every other layer, sinks, biases everywhere, softmax over the chosen experts, a clamped activation.
ModelSpec ReadGptOss(FamilyConfig& config) {
  ConfigKeys& keys = config.keys();
  ModelSpec spec = config.Sizes();
  AttentionSpec attention = config.GroupedAttention(spec, {.default_theta = kGptOssTheta});
  attention.qkv_bias = attention.output_bias = keys.Bool("attention_bias", true);
  attention.sinks = true;
  MlpSpec moe = ReadLocalExperts(keys);
  moe.bias = true;
  moe.activation.limit = static_cast<float>(keys.Number("swiglu_limit", 1e-6, 1e30, 7.0));
  moe.activation.sigmoid_scale = static_cast<float>(keys.Number("swiglu_alpha", 1e-6, 1e6, 1.702));
  moe.activation.up_offset = 1.0f;
  moe.router.score = RouterScore::kSoftmaxSelected;
  moe.router.bias = true;
  const std::vector<bool> sliding =
      config.SlidingLayers(spec.layers.size(), [](int64_t i) { return i % 2 == 0; });
  const bool any_sliding = std::find(sliding.begin(), sliding.end(), true) != sliding.end();
  const int32_t window = any_sliding ? static_cast<int32_t>(keys.Int("sliding_window", 1, 1 << 30)) : 0;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    spec.layers[i] = {attention, moe};
    if (sliding[i]) spec.layers[i].attention.sliding_window = window;
  }
  spec.names.router = "mlp.router";
  spec.names.interleaved_gate_up = true;
  spec.names.transposed_experts = true;
  return spec;
}

}  // namespace

const std::vector<Family>& MoeFamilies() {
  static const std::vector<Family> kFamilies = {{"Qwen3MoeForCausalLM", ReadQwen3Moe},
                                                {"MixtralForCausalLM", ReadMixtral},
                                                {"OlmoeForCausalLM", ReadOlmoe},
                                                {"MiniMaxM2ForCausalLM", ReadMiniMaxM2},
                                                {"GptOssForCausalLM", ReadGptOss}};
  return kFamilies;
}

}  // namespace tessera
