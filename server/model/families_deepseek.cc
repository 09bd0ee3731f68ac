// DeepSeek's mixture of experts, with its latent attention or with grouped attention. Sources: transformers,
// models/{deepseek_v2,deepseek_v3,glm4_moe,glm4_moe_lite}; arXiv 2405.04434 and 2412.19437, sections 2.1.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/model/family_config.h"

namespace tessera {
namespace {

// Experts, and one for every token; the router is left to the caller.
MlpSpec ReadExperts(ConfigKeys& keys) {
  keys.Only("moe_layer_freq", 1);
  MlpSpec moe;
  moe.kind = MlpKind::kMoe;
  moe.intermediate_size = keys.Int("moe_intermediate_size", 1, kMaxSize);
  moe.num_experts = keys.Int("n_routed_experts", 1, kMaxExperts);
  moe.num_experts_per_token = keys.Int("num_experts_per_tok", 1, moe.num_experts);
  const int64_t shared = keys.Int("n_shared_experts", 0, 1 << 10);
  moe.shared_intermediate_size = static_cast<int32_t>(
      std::min<int64_t>(shared * moe.intermediate_size, std::numeric_limits<int32_t>::max()));
  moe.router.scale = static_cast<float>(keys.Number("routed_scaling_factor", 1e-6, 1e6));
  return moe;
}

// The first "first_k_dense_replace" layers are dense, or those that "mlp_layer_types" calls so.
void SetMlps(FamilyConfig& config, const MlpSpec& moe, ModelSpec* spec) {
  ConfigKeys& keys = config.keys();
  const int64_t num_layers = spec->layers.size();
  std::vector<bool> dense_layers(num_layers);
  if (const std::vector<std::string> types = keys.StringList("mlp_layer_types"); !types.empty()) {
    for (int64_t i = 0; i < num_layers && i < static_cast<int64_t>(types.size()); ++i) {
      dense_layers[i] = types[i] == "dense";
    }
    const auto known = [](const std::string& type) { return type == "dense" || type == "sparse"; };
    if (static_cast<int64_t>(types.size()) != num_layers || !std::all_of(types.begin(), types.end(), known)) {
      keys.Problem(absl::StrCat("\"mlp_layer_types\": expected \"dense\" or \"sparse\" for each of ",
                                num_layers, " layers"));
    }
  } else {
    const int64_t num_dense = keys.Int("first_k_dense_replace", 0, kMaxLayers);
    for (int64_t i = 0; i < std::min(num_dense, num_layers); ++i) dense_layers[i] = true;
  }
  MlpSpec dense;
  if (std::find(dense_layers.begin(), dense_layers.end(), true) != dense_layers.end()) {
    dense.intermediate_size = keys.Int("intermediate_size", 1, kMaxSize);
  }
  for (int64_t i = 0; i < num_layers; ++i) spec->layers[i].mlp = dense_layers[i] ? dense : moe;
  spec->num_prediction_layers = config.PredictionLayers();
}

// DeepSeek-V3's: experts chosen by sigmoid scores and a correction that balances their load, within groups.
void SetBalancedMlps(FamilyConfig& config, ModelSpec* spec) {
  ConfigKeys& keys = config.keys();
  keys.Only("scoring_func", "sigmoid");
  keys.Only("topk_method", "noaux_tc");
  MlpSpec moe = ReadExperts(keys);
  RouterSpec& router = moe.router;
  router.score = RouterScore::kSigmoid;
  router.selection_bias = true;
  router.renormalize = keys.Bool("norm_topk_prob", true);
  router.num_groups = keys.Int("n_group", 1, moe.num_experts);
  router.topk_groups = keys.Int("topk_group", 1, router.num_groups);
  if (moe.num_experts % router.num_groups != 0) {
    keys.Problem(absl::StrCat("\"n_routed_experts\" ", moe.num_experts, " is not a multiple of \"n_group\" ",
                              router.num_groups));
  } else if (moe.num_experts / router.num_groups * router.topk_groups < moe.num_experts_per_token) {
    keys.Problem(absl::StrCat(
        "\"topk_group\" ", router.topk_groups, " groups of ", moe.num_experts / router.num_groups,
        " experts hold fewer than \"num_experts_per_tok\" ", moe.num_experts_per_token));
  }
  SetMlps(config, moe, spec);
}

// GLM-4.5 to 4.7: partial rotary positions, DeepSeek-V3's router and layers.
ModelSpec ReadGlm4Moe(FamilyConfig& config) {
  ConfigKeys& keys = config.keys();
  ModelSpec spec = config.Sizes();
  AttentionSpec attention = config.GroupedAttention(spec, {.partial = true});
  attention.qk_norm = keys.Bool("use_qk_norm", false);
  attention.qkv_bias = keys.Bool("attention_bias", false);
  for (LayerSpec& layer : spec.layers) layer.attention = attention;
  SetBalancedMlps(config, &spec);
  return spec;
}

void SetLatentAttention(FamilyConfig& config, bool interleaved, ModelSpec* spec) {
  ConfigKeys& keys = config.keys();
  keys.Only("attention_bias", false);
  AttentionSpec attention;
  attention.kind = AttentionKind::kLatent;
  attention.num_query_heads = keys.Int("num_attention_heads", 1, kMaxHeads);
  keys.Only("num_key_value_heads", attention.num_query_heads);
  LatentSpec& latent = attention.latent;
  if (keys.Has("q_lora_rank")) latent.query_rank = keys.Int("q_lora_rank", 1, kMaxSize);
  latent.kv_rank = keys.Int("kv_lora_rank", 2, kMaxSize);
  latent.nope_dim = keys.Int("qk_nope_head_dim", 2, kMaxHeadDim);
  latent.rope_dim = keys.Int("qk_rope_head_dim", 2, kMaxHeadDim);
  latent.value_dim = keys.Int("v_head_dim", 2, kMaxHeadDim);
  for (const auto& [key, size] :
       {std::pair("kv_lora_rank", latent.kv_rank), std::pair("qk_nope_head_dim", latent.nope_dim),
        std::pair("qk_rope_head_dim", latent.rope_dim), std::pair("v_head_dim", latent.value_dim)}) {
    if (size % 2 != 0) keys.Problem(absl::StrCat("\"", key, "\" ", size, " is odd"));
  }
  attention.head_dim = latent.nope_dim + latent.rope_dim;
  const RopeStyle style = interleaved ? RopeStyle::kInterleaved : RopeStyle::kHalf;
  const RopeConfig rope = config.Rope(latent.rope_dim, spec->max_context, {.style = style});
  attention.rope = rope.spec;
  double scale = 1.0 / std::sqrt(static_cast<double>(attention.head_dim));
  if (rope.scaling.type != "default" && rope.scaling.mscale_all_dim != 0) {
    const double mscale = YarnMagnitude(rope.scaling.factor, rope.scaling.mscale_all_dim);
    scale *= mscale * mscale;
  }
  attention.softmax_scale = static_cast<float>(scale);
  for (LayerSpec& layer : spec->layers) layer.attention = attention;
}

// DeepSeek-V3, R1 and V3.1, Kimi-K2, Moonlight; GLM-4.7-Flash.
ModelSpec ReadDeepSeekV3(FamilyConfig& config) {
  ModelSpec spec = config.Sizes();
  SetLatentAttention(config, config.keys().Bool("rope_interleave", true), &spec);
  SetBalancedMlps(config, &spec);
  return spec;
}

// DeepSeek-V2-Lite: softmax over all experts. The larger V2 chooses groups by their best expert alone.
ModelSpec ReadDeepSeekV2(FamilyConfig& config) {
  ConfigKeys& keys = config.keys();
  ModelSpec spec = config.Sizes();
  SetLatentAttention(config, true, &spec);
  keys.Only("scoring_func", "softmax");
  keys.Only("topk_method", "greedy");
  keys.Only("norm_topk_prob", false);
  keys.Only("mlp_bias", false);
  SetMlps(config, ReadExperts(keys), &spec);
  return spec;
}

}  // namespace

const std::vector<Family>& DeepSeekFamilies() {
  static const std::vector<Family> kFamilies = {{"Glm4MoeForCausalLM", ReadGlm4Moe},
                                                {"Glm4MoeLiteForCausalLM", ReadDeepSeekV3},
                                                {"DeepseekV3ForCausalLM", ReadDeepSeekV3},
                                                {"DeepseekV2ForCausalLM", ReadDeepSeekV2}};
  return kFamilies;
}

}  // namespace tessera
