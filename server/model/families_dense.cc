// Dense transformers with grouped attention. Sources: transformers, models/{llama,mistral,qwen2,qwen3,smollm3}.
#include "absl/strings/str_cat.h"
#include "server/model/family_config.h"

namespace tessera {
namespace {

// What Llama 1 and 2 and Mistral leave out of config.json.
constexpr double kLlamaTheta = 10000.0;
constexpr double kSmolLm3Theta = 2e6;

void SetDenseMlps(FamilyConfig& config, bool bias, ModelSpec* spec) {
  const int32_t size = static_cast<int32_t>(config.keys().Int("intermediate_size", 1, kMaxSize));
  for (LayerSpec& layer : spec->layers) {
    layer.mlp.kind = MlpKind::kDense;
    layer.mlp.intermediate_size = size;
    layer.mlp.bias = bias;
  }
}

void SetAttention(const AttentionSpec& attention, ModelSpec* spec) {
  for (LayerSpec& layer : spec->layers) layer.attention = attention;
}

// Llama 1 to 3 and what is built like it (SmolLM2, TinyLlama, ...).
ModelSpec ReadLlama(FamilyConfig& config) {
  ModelSpec spec = config.Sizes();
  AttentionSpec attention = config.GroupedAttention(spec, {.default_theta = kLlamaTheta});
  attention.qkv_bias = attention.output_bias = config.keys().Bool("attention_bias", false);
  SetAttention(attention, &spec);
  SetDenseMlps(config, config.keys().Bool("mlp_bias", false), &spec);
  return spec;
}

// Llama with some layers that know no positions.
ModelSpec ReadSmolLm3(FamilyConfig& config) {
  ConfigKeys& keys = config.keys();
  ModelSpec spec = config.Sizes();
  const int64_t num_layers = spec.layers.size();
  keys.Only("use_sliding_window", false);
  AttentionSpec attention = config.GroupedAttention(spec, {.default_theta = kSmolLm3Theta});
  attention.qkv_bias = attention.output_bias = keys.Bool("attention_bias", false);
  SetAttention(attention, &spec);
  SetDenseMlps(config, keys.Bool("mlp_bias", false), &spec);
  const std::vector<int32_t> with_rope = keys.IntList("no_rope_layers", 0, 1);  // so it is called
  const int64_t interval = keys.Int("no_rope_layer_interval", 1, kMaxLayers, 4);
  if (!with_rope.empty() && static_cast<int64_t>(with_rope.size()) < num_layers) {
    keys.Problem(absl::StrCat("\"no_rope_layers\": expected a number for each of ", num_layers,
                              " layers, found ", with_rope.size()));
    return spec;
  }
  for (int64_t i = 0; i < num_layers; ++i) {
    const bool rope = with_rope.empty() ? (i + 1) % interval != 0 : with_rope[i] != 0;
    if (!rope) spec.layers[i].attention.rope = {.style = RopeStyle::kNone};
  }
  return spec;
}

ModelSpec ReadMistral(FamilyConfig& config) {
  ModelSpec spec = config.Sizes();
  AttentionSpec attention = config.GroupedAttention(spec, {.default_theta = kLlamaTheta});
  if (config.keys().Has("sliding_window")) {
    attention.sliding_window = config.keys().Int("sliding_window", 1, 1 << 30);
  }
  SetAttention(attention, &spec);
  SetDenseMlps(config, false, &spec);
  return spec;
}

// Qwen 2 to 3: with "use_sliding_window", the layers from "max_window_layers" on see a window, or those that
// "layer_types" names.
void SetQwenAttention(FamilyConfig& config, const AttentionSpec& attention, ModelSpec* spec) {
  ConfigKeys& keys = config.keys();
  SetAttention(attention, spec);
  if (!keys.Bool("use_sliding_window", false)) return;
  const int64_t first = keys.Int("max_window_layers", 0, 1 << 30, 28);
  const int32_t window = static_cast<int32_t>(keys.Int("sliding_window", 1, 1 << 30));
  const std::vector<bool> sliding =
      config.SlidingLayers(spec->layers.size(), [first](int64_t i) { return i >= first; });
  for (size_t i = 0; i < sliding.size(); ++i) {
    if (sliding[i]) spec->layers[i].attention.sliding_window = window;
  }
}

ModelSpec ReadQwen2(FamilyConfig& config) {
  ModelSpec spec = config.Sizes();
  AttentionSpec attention = config.GroupedAttention(spec, {});
  attention.qkv_bias = true;
  SetQwenAttention(config, attention, &spec);
  SetDenseMlps(config, false, &spec);
  return spec;
}

ModelSpec ReadQwen3(FamilyConfig& config) {
  ModelSpec spec = config.Sizes();
  AttentionSpec attention = config.GroupedAttention(spec, {});
  attention.qk_norm = true;
  attention.qkv_bias = attention.output_bias = config.keys().Bool("attention_bias", false);
  SetQwenAttention(config, attention, &spec);
  SetDenseMlps(config, false, &spec);
  return spec;
}

}  // namespace

const std::vector<Family>& DenseFamilies() {
  static const std::vector<Family> kFamilies = {{"LlamaForCausalLM", ReadLlama},
                                                {"MistralForCausalLM", ReadMistral},
                                                {"Qwen2ForCausalLM", ReadQwen2},
                                                {"Qwen3ForCausalLM", ReadQwen3},
                                                {"SmolLM3ForCausalLM", ReadSmolLm3}};
  return kFamilies;
}

}  // namespace tessera
